"""A memory for any optimizer class: ``critical(cls)``, and ``declare`` for the classes that have names of their own."""

from __future__ import annotations

import copyreg
import inspect as python_inspect
import sys
from typing import Any, cast

from torch.optim import Optimizer, SparseAdam

from ..memory.aggregations import aggregation_of
from ..memory.options import DEFAULTS, default_options, option_keys, unexpected
from .mixin import Critical
from .optimizer import CriticalMeta

_SUM_BY_DEFAULT = ("SGD", "ASGD")

_SPARSE = "its gradients are sparse, and a memory of whole gradients is dense"
_OWN_CLOSURE = (
    "it evaluates the closure by itself, several times or at other weights in one step, so there is no one gradient to "
    "remember; put the memory inside, where it takes an optimizer: SAM(params, base_optimizer=critgrad.SGD_C)"
)

_classes: dict[Any, type[Critical]] = {}


def options_for(base: type[Optimizer], given: dict[str, Any]) -> dict[str, Any]:
    """All options of an optimizer over ``base``: what is given, else what suits it."""
    return default_options(given, aggr="sum" if base.__name__ in _SUM_BY_DEFAULT else "mean")


def refuse(base: type[Any]) -> None:
    """Raise ``TypeError`` for what cannot have a memory."""
    closure = python_inspect.signature(base.step).parameters.get("closure")
    required = closure is not None and closure.default is closure.empty
    sam = hasattr(base, "second_step")
    for refused, why in ((issubclass(base, SparseAdam), _SPARSE), (required or sam, _OWN_CLOSURE)):
        if refused:
            raise TypeError(f"{base.__name__} cannot have a memory of critical gradients: {why}")
    if issubclass(base, Critical):
        raise TypeError(f"{base.__name__} has a memory already")


def declare(cls: type[Critical], given: dict[str, Any]) -> type[Critical]:
    """``critical(base, **given)`` is this class from here on."""
    base = cls.__bases__[1]
    cls._critical_base = base
    cls._critical_defaults = options_for(base, given)
    cls.__signature__ = _signature(base, cls._critical_defaults)  # type: ignore[attr-defined]
    _classes[_class_key(base, cls._critical_defaults)] = cls
    return cls


def _class_key(base: type[Optimizer], options: dict[str, Any]) -> Any:
    return base, tuple((name, type(options[name]), options[name]) for name in DEFAULTS)


def _signature(base: type[Optimizer], options: dict[str, Any]) -> python_inspect.Signature:
    """The base's signature with our options behind it, for ``help()`` and editors."""
    own, keyword_only = python_inspect.signature(base), python_inspect.Parameter.KEYWORD_ONLY
    keys = option_keys(own.parameters)
    ours = {**{keys[name]: value for name, value in options.items()}, "process_group": None}
    extra = [python_inspect.Parameter(key, keyword_only, default=value) for key, value in ours.items()]
    ordered = sorted([*own.parameters.values(), *extra], key=lambda parameter: parameter.kind)  # **kwargs come last
    return own.replace(parameters=ordered, return_annotation=own.empty)


def critical(cls: type[Optimizer], **defaults: Any) -> type[Critical]:
    """The optimizer class ``cls`` with a memory of critical gradients.

    The same class comes back for the same arguments. It is a subclass of ``cls``, named ``X_C``, or ``X_F`` when the
    default ``aggr`` is ``"fisher"``, and takes everything that ``cls`` takes, plus the memory's options.

    Args:
        cls: any ``torch.optim.Optimizer`` class but ``LBFGS`` and ``SparseAdam``.
        **defaults: other defaults for the memory's options.

    >>> import torch, critgrad
    >>> RAdam_C = critgrad.critical(torch.optim.RAdam)
    >>> RAdam_C.__name__, issubclass(RAdam_C, torch.optim.RAdam)
    ('RAdam_C', True)
    >>> critgrad.critical(torch.optim.Adam) is critgrad.Adam_C
    True
    """
    if not (isinstance(cls, type) and issubclass(cls, Optimizer)):
        raise TypeError(
            f"critical() takes a torch.optim.Optimizer class, got {cls!r}; for an instance: CriticalGradients"
        )
    refuse(cls)
    for name in defaults:
        if name not in DEFAULTS:
            raise unexpected("critical()", name, DEFAULTS)
    options = options_for(cls, defaults)
    key = _class_key(cls, options)
    if key not in _classes:
        name = f"{cls.__name__}_{'F' if aggregation_of(options['aggr']).damps else 'C'}"
        metaclass = CriticalMeta
        if not issubclass(CriticalMeta, type(cls)):
            metaclass = cast("type[CriticalMeta]", type("CriticalMeta", (CriticalMeta, type(cls)), {}))
            copyreg.pickle(metaclass, _reduce_class)
        doc = f"``{cls.__name__}`` with a memory of critical gradients.\n\n{cls.__doc__ or ''}"
        made = metaclass(name, (Critical, cls), {"__doc__": doc, "__module__": __name__})
        declare(cast("type[Critical]", made), options)
    return _classes[key]


def _reduce_class(cls: Any) -> Any:
    name: str = cls.__qualname__
    base, defaults = cls._critical_base, cls._critical_defaults
    stands_there = getattr(sys.modules.get(cls.__module__), name, None) is cls
    if stands_there or _classes.get(_class_key(base, defaults)) is not cls:
        return name  # also of somebody's subclass: pickle finds it by its dotted name, or says that it cannot
    return _remake, (base, defaults)


def _remake(base: type[Optimizer], defaults: dict[str, Any]) -> type[Optimizer]:
    return critical(base, **defaults)


copyreg.pickle(CriticalMeta, _reduce_class)
