"""Variants of the damping memory that are being tried: options of the research optimizers (``Adam_X``, ...).

They run in the bank engine alone (``--engine bank``): what wins goes into the library, the rest stays here. An option at
its default does what the library's ``fisher`` does; with all of them at their defaults ``Adam_X`` is ``Adam_F``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import Any


@dataclass(frozen=True)
class Choice:
    """One option: its values, the default first, each with a line that says what it does."""

    name: str
    values: Mapping[Any, str]

    @property
    def default(self) -> Any:
        """The library's own behaviour."""
        return next(iter(self.values))


_CHOICES = (
    Choice(
        "power",
        {
            1.0: "P = (I + G'G / lam)^-1: sharp directions shrink like the inverse of their size",
            0.5: "P = (I + G'G / lam)^-1/2: like the inverse root, as in full-matrix AdaGrad",
        },
    ),
    Choice(
        "apply",
        {
            "gradient": "the gradient is damped, before the base sees it",
            "momentum": "the base sees the raw gradient; its momentum (Adam: m) is damped where it is used",
            "update": "the base's whole update is damped (Adam: after the division by the root of v)",
        },
    ),
    Choice(
        "metric",
        {
            "plain": "inner products of gradients as they are",
            "adam": "inner products in Adam's own metric, a'b / (sqrt(v) + eps), with the v of the step",
        },
    ),
    Choice(
        "blocks",
        {
            "all": "one Gram matrix over all parameters",
            "kinds": "one for each run of layers of a kind (convolutions, dense layers)",
            "layers": "one for each layer, weights and biases together",
            "tensors": "one for each tensor",
        },
    ),
    Choice(
        "select",
        {
            "all": "the gradient of all parameters takes a slot or does not",
            "block": "each block decides by its own norm (with blocks=tensors: the library's scope=tensor)",
        },
    ),
    Choice(
        "evict",
        {
            "policy": "the policy's own rule",
            "redundant": "the entry that the others explain best, by the inverse Gram matrix; of equals the oldest",
        },
    ),
    Choice(
        "rho_rule",
        {
            "fixed": "rho all along",
            "noise": "rho times the share of the signal: |mean gradient|^2 over the mean square of the slots' norms",
            "linear": "rho * (1 - t / T), down to a floor",
            "cosine": "rho * (1 + cos(pi t / T)) / 2, down to a floor",
        },
    ),
    Choice(
        "before_clip",
        {
            False: "what is stored is the clipped gradient, as an optimizer sees it",
            True: "what is stored is the gradient before clipping; the clipped one is damped",
        },
    ),
)
CHOICES: Mapping[str, Choice] = MappingProxyType({choice.name: choice for choice in _CHOICES})


@dataclass(frozen=True)
class Variant:
    """One combination of the options.

    >>> Variant.of({"power": 0.5}).changed
    {'power': 0.5}
    """

    power: float = 1.0
    apply: str = "gradient"
    metric: str = "plain"
    blocks: str = "all"
    select: str = "all"
    evict: str = "policy"
    rho_rule: str = "fixed"
    before_clip: bool = False

    def __post_init__(self) -> None:
        for name, choice in CHOICES.items():
            value = getattr(self, name)
            if value not in choice.values or isinstance(value, bool) is not isinstance(choice.default, bool):
                expected = ", ".join(map(repr, choice.values))
                raise ValueError(f"Invalid {name}: {value!r}, expected one of {expected}")
        if self.select == "block" and self.blocks == "all":
            raise ValueError(
                'Invalid select: "block" with one block, expected blocks="kinds", "layers" or "tensors" with it'
            )

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Variant:
        """The variant of a trial's hyper-parameters; the others of them are left alone."""
        return cls(**{name: options[name] for name in CHOICES if name in options})

    @property
    def changed(self) -> dict[str, Any]:
        """The options that are not at their defaults."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        return {name: value for name, value in values.items() if value != CHOICES[name].default}

    @property
    def key(self) -> tuple[Any, ...]:
        """Models that are alike in this are worked on together."""
        return tuple(getattr(self, f.name) for f in fields(self))


def plain_options(hyper: Mapping[str, Any]) -> dict[str, Any]:
    """Hyper-parameters without the options of a variant: what the library's own class takes."""
    return {name: value for name, value in hyper.items() if name not in CHOICES}
