"""The optimizer of an arm: found by its name, asked which options it takes, and made. Any class or function will do."""

from __future__ import annotations

import importlib.metadata
import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MethodType
from typing import Any

import torch

from ..errors import LabError
from ..train.optimizers import recipe_of
from ..train.optimizers import settled as settled_recipe
from .axes import names_of_options, settled
from .loading import UserCodeError, file_under, hash_of, is_installed, module_of, python_files, told

EXPECTED = "'module:name', 'file.py:name', or a name of `critgrad optimizers`"


@dataclass(frozen=True)
class Maker:
    """How an arm's optimizer is made.

    ``options`` are those that it takes (``None``: it does not say), ``needed`` those without a default, ``packages`` name what
    it comes from with versions or hashes, ``local`` says that it comes from the study's own folder.
    """

    text: str
    make: Callable[..., Any]
    defaults: Mapping[str, Any] = field(default_factory=dict)
    options: frozenset[str] | None = None
    needed: tuple[str, ...] = ()
    packages: str = ""
    local: bool = False

    def build(self, params: Any, values: Mapping[str, Any]) -> Any:
        """The optimizer for parameters (or groups of them), from values with dotted names."""
        return self.make(params, **settled(values, self.defaults))

    def require(self, names: list[str]) -> None:
        """Refuse options that it does not take."""
        for name in names_of_options(names):
            if self.options is not None and name not in self.options:
                takes = (
                    f"some of {', '.join(sorted(self.options))}"
                    if self.options
                    else "an optimizer, which takes options"
                )
                raise LabError(f"{self.text} does not take {name}, expected {takes}")
        missing = set(self.needed) - set(names_of_options(names))
        if missing:
            raise LabError(f"{self.text} needs {', '.join(sorted(missing))}, expected under fixed or search")

    def try_values(self, values: Mapping[str, Any]) -> None:
        """Refuse values with a place that is not there; of ours, those that it does not take; else names, if it takes any."""
        settled(values, self.defaults)
        ours = ":" not in self.text
        if self.options is not None and not ours:
            return
        weight = torch.nn.Parameter(torch.zeros(2, 2))
        try:
            made = self.build([weight], values)
            if ours:
                weight.grad = torch.ones_like(weight)
                getattr(made, "train", lambda: None)()
                made.step()
        except LabError:
            raise
        except Exception as error:  # somebody's own may want parameters of other kinds: that is for its runs to show
            if ours or (isinstance(error, TypeError) and "unexpected keyword argument" in str(error)):
                raise LabError(f"{self.text}: {told(error) if ours else error}") from None


def maker_of(text: str, folder: Path) -> Maker:
    """The optimizer that a text names; an error says what is allowed, or why it cannot be imported."""
    place, colon, name = text.rpartition(":")
    if not colon:
        recipe = recipe_of(text)
        options, defaults = _takes(recipe.make)
        more = {"beta1", "beta2"} if "betas" in (options or ()) else set()

        def make(params: Any, **values: Any) -> Any:
            return settled_recipe(recipe, values, params)

        known = None if options is None else options | more
        return Maker(
            text, make, {**defaults, **recipe.defaults}, known, packages=_packages(recipe.make, folder, "torch")
        )
    if not place or not name.isidentifier():
        raise LabError(f"{text!r}, expected {EXPECTED}")
    if place.endswith(".py") and file_under(folder, place) is None:
        raise LabError(f"there is no file {place} beside the study's, expected {EXPECTED}")
    try:
        module = module_of(place, folder)
    except UserCodeError as error:
        raise LabError(f"{text} cannot be imported: {error}") from None
    found = getattr(module, name, None)
    if not callable(found):
        raise LabError(f"{place} has no class or function {name!r}")
    options, defaults = _takes(found)
    local = _is_under(getattr(module, "__file__", None), folder)
    needed = tuple((options or frozenset()) - set(defaults))
    return Maker(text, found, defaults, options, needed, _packages(found, folder, "torch"), local)


def _takes(make: Callable[..., Any]) -> tuple[frozenset[str] | None, dict[str, Any]]:
    """The options that a class or function names (``None``: it takes any), and their defaults."""
    try:
        parameters = [*inspect.signature(make).parameters.values()]
    except (ValueError, TypeError):
        return None, {}
    named = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    if named and named[0].name == parameters[0].name:
        named = named[1:]  # the parameters to be trained
    defaults = {p.name: p.default for p in named if p.default is not p.empty}
    any_name = any(p.kind is p.VAR_KEYWORD for p in parameters)
    return None if any_name else frozenset(p.name for p in named), defaults


def _packages(make: Callable[..., Any], folder: Path, *more: str) -> str:
    """``schedulefree 1.4, torch 2.13``: what an optimizer is made of; files that are edited where they lie by their hash, too.

    ``more``: a function does not tell of what the optimizer is that it makes.
    """
    classes = make.__mro__ if isinstance(make, type) else (make,)
    own = (*(getattr(cls, "__module__", "") for cls in classes), *getattr(make, "packages", ()))
    modules = dict.fromkeys((*own, *more))
    found = dict.fromkeys(_package(module, folder) for module in modules if module not in ("builtins", "typing", "abc"))
    return ", ".join(sorted(filter(None, found)))


def _package(module: str, folder: Path) -> str:
    top = module.split(".")[0]
    file = getattr(sys.modules.get(module), "__file__", None)
    if _is_under(file, folder) and not is_installed(str(file)):
        return ""  # the hash of the folder's files has it
    if top in sys.stdlib_module_names:
        return ""
    version: Any
    try:
        version = importlib.metadata.version(top)
    except importlib.metadata.PackageNotFoundError:
        version = getattr(sys.modules.get(top), "__version__", None)
    found = [top] if version is None else [top, str(version)]
    # A package that is developed ("pip install -e") is edited under one version. Ours says which it is by its own.
    if file and top != "critgrad" and (version is None or not is_installed(file)):
        root = next(iter(getattr(sys.modules.get(top), "__path__", ())), None)
        files, where = ([Path(file)], Path(file).parent) if root is None else (python_files(Path(root)), Path(root))
        found.append(hash_of(files, where))
    return " ".join(found)


def _is_under(file: str | None, folder: Path) -> bool:
    return file is not None and Path(file).resolve().is_relative_to(folder.resolve())


def made_still(optimizer: Any) -> Any:
    """The same optimizer, whose steps do nothing: for the value before training of a loop that is not the lab's."""

    def step(self: Any, closure: Any = None, *_: Any, **__: Any) -> Any:
        if closure is None:
            return None
        with torch.enable_grad():
            return closure()

    try:
        # By its class: schedulers and trainers look at the method of the class, and wrap it.
        optimizer.__class__ = type(f"Still{type(optimizer).__name__}", (type(optimizer),), {"step": step})
    except TypeError:
        optimizer.step = MethodType(step, optimizer)
    return optimizer
