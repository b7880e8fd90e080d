"""Earlier names of modules, for one release: importing one gives the module that it is now, and says so.

>>> import warnings
>>> with warnings.catch_warnings():
...     warnings.simplefilter("ignore")
...     from critgrad.lab.spec import Trial
>>> Trial.__module__
'critgrad.lab.run.spec'
"""

from __future__ import annotations

import importlib
import sys
import warnings
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import CodeType, ModuleType
from typing import Any

_LAB = "critgrad.lab."
_GROUPS = {
    f"{_LAB}run": "batch coordinator executors results spec status worker",
    f"{_LAB}train": "bank bases capture compiling optimizers precision probes streams",
    f"{_LAB}tasks": "data metrics models",
    "critgrad.paper": "analyses compare protocol results_page search",
}
MOVED = {
    **{f"{_LAB}{name}": f"{package}.{name}" for package, names in _GROUPS.items() for name in names.split()},
    **{f"{_LAB}protocol.{name}": f"{_LAB}ledger.{name}" for name in ("committed", "ranking", "reach", "view")},
    **{f"{_LAB}statistics": f"{_LAB}stats", f"{_LAB}transfer": f"{_LAB}ledger.merge"},
    **{f"{_LAB}protocol.spaces": f"{_LAB}spaces", f"{_LAB}report.source": f"{_LAB}ledger.source"},
}


def now(name: str) -> str | None:
    """What a module of an earlier name is called; ``None`` if that is no earlier name."""
    parts = name.split(".")
    for end in range(len(parts), 2, -1):
        known = MOVED.get(".".join(parts[:end]))
        if known is not None:
            return ".".join([known, *parts[end:]])
    return None


class _Loader(Loader):
    def __init__(self, target: str) -> None:
        self.target = target

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        warnings.warn(f"{spec.name} is {self.target} now", DeprecationWarning, stacklevel=2)
        module = importlib.import_module(self.target)
        self.own = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """It has been run, under its own name, which it keeps."""
        module.__spec__ = self.own

    def get_code(self, fullname: str) -> CodeType | None:
        """For ``python -m``."""
        spec = find_spec(self.target)
        loader: Any = None if spec is None else spec.loader
        return None if loader is None else loader.get_code(self.target)


class _Finder(MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        there = now(fullname)
        spec = None if there is None else find_spec(there)
        if there is None or spec is None:
            return None
        return ModuleSpec(fullname, _Loader(there), is_package=spec.submodule_search_locations is not None)


def install() -> None:
    """Answer for earlier names, before anybody finds a moved file a second time by its package's path."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())
