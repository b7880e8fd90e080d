"""The arms of a fair experiment: what is tuned, and what is derived from a tuned memory to tell its effects apart.

A tuned arm has an optimizer and axes to search in each family; all get the same number of trials. A derived arm has no
tuning of its own: ``derived.py`` computes it from a memory arm's selected point.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from critgrad.lab.spaces import Axis, Point

if TYPE_CHECKING:
    from .registration import Registration

# The paper's aggregation for each base.
AGGREGATION = {"SGD": "sum", "SGDM": "sum", "RMSprop": "mean", "Adam": "mean"}


@dataclass(frozen=True)
class ArmSearch:
    """A tuned arm in one family: the optimizer, what is fixed, and which axes (group, name) it searches beside lr."""

    optimizer: str
    fixed: Mapping[str, Any] = field(default_factory=dict)
    axes: tuple[tuple[str, str], ...] = ()
    optional: tuple[tuple[str, str], ...] = ()  # searched where the registration has them, else as fixed

    def space(self, registration: Registration, family: str) -> dict[str, Axis]:
        """Its axes, learning rate first."""
        drawn = [pair for pair in self.optional if pair[1] in registration.axes.get(pair[0], {})]
        own = {name: registration.axes[group][name] for group, name in (*self.axes, *drawn)}
        return {"lr": registration.lr[family], **own}

    def hyper(self, point: Point, seed: int) -> dict[str, Any]:
        """The optimizer's arguments at a point."""
        values = {**self.fixed, **point}
        if values.get("policy") == "random":
            values["seed"] = seed  # coins of its own for each run, or all seeds would store at the same steps
        return values


@dataclass(frozen=True)
class FairArm:
    """One arm. ``label`` names it in tables, with the family in the place of ``{}``; ``labels`` where that does not do."""

    name: str
    label: str
    summary: str
    search: Mapping[str, ArmSearch] = field(default_factory=dict)  # by family; empty for a derived arm
    needs: tuple[str, ...] = ()  # arms whose selected points a derived arm is computed from
    labels: Mapping[str, str] = field(default_factory=dict)  # by family

    @property
    def tuned(self) -> bool:
        """Whether it is searched for; else it is derived."""
        return bool(self.search)

    def label_in(self, family: str) -> str:
        """Its name in the tables of a family."""
        return self.labels.get(family, self.label.format(family))

    def in_family(self, family: str) -> bool:
        """Whether a family has it."""
        return family in self.search if self.tuned else True


_BASE = {
    "SGD": ArmSearch("SGD"),
    "SGDM": ArmSearch("SGDM", {"momentum": 0.9}),
    "RMSprop": ArmSearch("RMSprop"),
    "Adam": ArmSearch("Adam"),
}
# SGD with momentum is one and the same search for both SGD families: same points, same runs.
_NESTEROV = ArmSearch("Nesterov", {"momentum": 0.9})
_HEAVY_BALL = ArmSearch("SGDM", {}, (("momentum", "momentum"),))
_AGGMO = ArmSearch("AggMo")
_C_AXES = (("C", "topC"), ("C", "decay"))
_F_AXES = (("F", "topC"), ("F", "decay"), ("F", "rho"))
_AGGR = (("C", "aggr"),)
_DAMPED_NESTEROV = ArmSearch("Nesterov_F", {"momentum": 0.9}, _F_AXES)
_BY_TENSOR = ArmSearch("Nesterov_F", {"momentum": 0.9, "scope": "tensor"}, _F_AXES)


def _memory(role: str, axes: tuple[tuple[str, str], ...], **fixed: Any) -> dict[str, ArmSearch]:
    """The family's memory optimizer, with the base's own fixed values."""
    out = {}
    for family, base in _BASE.items():
        own = {"aggr": AGGREGATION[family]} if role == "C" else {}
        out[family] = ArmSearch(f"{family}_{role}", {**base.fixed, **own, **fixed}, axes, _AGGR if role == "C" else ())
    return out


_ARMS = (
    FairArm("base", "{}", "the base optimizer, learning rate tuned", _BASE),
    FairArm("C", "{}_C", "the paper's memory: its gradients are added", _memory("C", _C_AXES)),
    FairArm("F", "{}_F", "the memory damps the directions that it holds", _memory("F", _F_AXES)),
    FairArm(
        "rival",
        "{} momentum .9",
        "NAdam; Nesterov's momentum; RMSprop with momentum .9",
        {
            "SGD": _NESTEROV,
            "SGDM": _NESTEROV,
            "RMSprop": ArmSearch("RMSprop", {"momentum": 0.9}),
            "Adam": ArmSearch("NAdam"),
        },
        labels={"SGD": "Nesterov", "SGDM": "Nesterov", "Adam": "NAdam"},
    ),
    FairArm(
        "F-rival",
        "{}_F momentum .9",
        "damping on the rival instead of the base",
        {
            "SGD": _DAMPED_NESTEROV,
            "SGDM": _DAMPED_NESTEROV,
            "RMSprop": ArmSearch("RMSprop_F", {"momentum": 0.9}, _F_AXES),
            "Adam": ArmSearch("NAdam_F", {}, _F_AXES),
        },
        labels={"SGD": "Nesterov_F", "SGDM": "Nesterov_F", "Adam": "NAdam_F"},
    ),
    FairArm(
        "F-tensor",
        "{}_F momentum .9, by tensor",
        "damping on the rival, each tensor with a memory of its own",
        {
            "SGD": _BY_TENSOR,
            "SGDM": _BY_TENSOR,
            "RMSprop": ArmSearch("RMSprop_F", {"momentum": 0.9, "scope": "tensor"}, _F_AXES),
            "Adam": ArmSearch("NAdam_F", {"scope": "tensor"}, _F_AXES),
        },
        labels={"SGD": "Nesterov_F by tensor", "SGDM": "Nesterov_F by tensor", "Adam": "NAdam_F by tensor"},
    ),
    FairArm(
        "momentum",
        "{} tuned momentum",
        "momentum (Adam: beta1) tuned beside the learning rate",
        {
            "SGD": _HEAVY_BALL,
            "SGDM": _HEAVY_BALL,
            "RMSprop": ArmSearch("RMSprop", {}, (("momentum", "momentum"),)),
            "Adam": ArmSearch("Adam", {}, (("momentum", "beta1"),)),
        },
        labels={"SGDM": "SGD tuned momentum", "Adam": "Adam tuned beta1"},
    ),
    FairArm("AggMo", "AggMo", "aggregated momentum (0, .9, .99)", {"SGD": _AGGMO, "SGDM": _AGGMO}),
    FairArm("C-FIFO", "{}_C FIFO", "the same memory of the last gradients", _memory("C", _C_AXES[:1], policy="FIFO")),
    FairArm(
        "F-FIFO",
        "{}_F FIFO",
        "damping with the last gradients",
        _memory("F", (("F", "topC"), ("F", "rho")), policy="FIFO"),
    ),
    FairArm(
        "F-random", "{}_F random", "damping with gradients admitted by a coin", _memory("F", _F_AXES, policy="random")
    ),
    FairArm(
        "C-step", "{}, step of _C", "the base with the memory's step size: lr x S, or equal update RMS", needs=("C",)
    ),
    FairArm("C-momentum", "{}, delay of _C", "momentum with the memory's gain and measured mean age", needs=("C",)),
    FairArm("C-yoked", "{}_C yoked", "the memory with another seed's decisions replayed", needs=("C",)),
    FairArm("C-longer", "{}, time of _C", "the base trained as long as the memory takes", needs=("C", "base")),
    FairArm("F-step", "{}, step of _F", "the base at the damped step's update RMS", needs=("F",)),
    FairArm("F-yoked", "{}_F yoked", "damping with another seed's decisions replayed", needs=("F",)),
    FairArm("F-longer", "{}, time of _F", "the base trained as long as damping takes", needs=("F", "base")),
    FairArm(
        "F-rival-longer",
        "{} momentum .9, time of _F",
        "the rival trained as long as damping on it takes",
        needs=("F-rival", "rival"),
        labels={"SGD": "Nesterov, time of _F", "SGDM": "Nesterov, time of _F", "Adam": "NAdam, time of _F"},
    ),
)
ARMS: dict[str, FairArm] = {arm.name: arm for arm in _ARMS}


def base_search(family: str) -> ArmSearch:
    """The base optimizer of a family."""
    return _BASE[family]
