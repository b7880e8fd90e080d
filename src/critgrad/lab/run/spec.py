"""What a trial is: a specification in plain values, and the hash of it that names the trial everywhere.

Same key, same run: resuming, caching, merging and "run nothing twice" all follow from that.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar

from ..errors import LabError, require_known

# Raised when the same specification would give other numbers than before: old rows then no longer answer for new trials.
SCHEMA = 1
STUDY_SCHEMA = 1001  # of a study's runs: never among those of the lab's own experiments

ENGINES = ("single", "bank")
PROBES = ("memory", "damping", "update", "decisions")
KEYED = ("task", "optimizer", "hyper", "seed", "settings", "engine", "probe", "registration")  # what a key is made of


@dataclass(frozen=True)
class Trial:
    """One training run.

    Args:
        task: a task's name, with its variants: ``"ptb-lstm@b420"``, ``"mnist-mlp@tiny"``.
        optimizer: a name of the registry ``critgrad.lab.train.optimizers``.
        hyper: arguments of that optimizer that differ from the registry's. A memory's ``donor_seed`` replays the
            decisions that the same trial with that seed took (the *yoked* control).
        seed: of initialisation, data order and dropout, each a stream of its own.
        settings: of the task, where they differ from its record (``epochs``, ``batch_size``, a model's option).
        engine: ``"single"``, or ``"bank"`` (many models at once; never timed, never compared with ``single``).
        probe: what is recorded beside the curves: ``"memory"`` (ages, norms), ``"damping"`` (Gram matrix), ``"update"``
            (size of the parameters' changes), ``"decisions"`` (the slot that each step wrote).
        registration: the hash of the committed file that announced the experiment; ``None`` outside the fair track.

    >>> Trial("digits-mlp", "Adam", {"lr": 0.01}, seed=3).key == Trial("digits-mlp", "Adam", {"lr": 1e-2}, seed=3).key
    True
    """

    schema: ClassVar[int] = SCHEMA

    task: str
    optimizer: str
    hyper: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 0
    settings: Mapping[str, Any] = field(default_factory=dict)
    engine: str = "single"
    probe: tuple[str, ...] = ()
    registration: str | None = None

    def __post_init__(self) -> None:
        require_known(self.engine, ENGINES, "engine")
        for name in self.probe:
            require_known(name, PROBES, "probe", "some")
        if isinstance(self.seed, bool) or not isinstance(self.seed, int) or self.seed < 0:
            raise LabError(f"Invalid seed: {self.seed!r}, expected an int >= 0")
        object.__setattr__(self, "hyper", _plain(self.hyper, "hyper"))
        object.__setattr__(self, "settings", _plain(self.settings, "settings"))
        object.__setattr__(self, "probe", tuple(sorted(set(self.probe))))

    def to_dict(self) -> dict[str, Any]:
        """As plain values, for JSON."""
        values = {name: getattr(self, name) for name in ("schema", *KEYED)}
        return {**values, "hyper": dict(self.hyper), "settings": dict(self.settings), "probe": list(self.probe)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Trial:
        """The inverse of ``to_dict``."""
        kind = {SCHEMA: Trial, STUDY_SCHEMA: StudyTrial}.get(values.get("schema", -1))
        if kind is None:
            raise LabError(f"Invalid schema of a trial: {values.get('schema')!r}, expected {SCHEMA} or {STUDY_SCHEMA}")
        return kind(**{name: values[name] for name in KEYED})

    @cached_property
    def key(self) -> str:
        """The trial's name: 32 hexadecimal digits."""
        return content_hash(self.to_dict())

    def replace(self, **changes: Any) -> Trial:
        """The same trial with some fields changed."""
        return replace(self, **changes)


@dataclass(frozen=True)
class StudyTrial(Trial):
    """One run of a study: somebody's task, somebody's optimizer.

    ``task`` and ``optimizer`` are as in the study's file, ``hyper`` has all values of the optimizer that the file sets or
    searches, ``settings`` everything else that can change its numbers: epochs, hashes of files, versions, kind of device.
    ``folder`` is where the files lie, ``session`` names the call that wants the run: workers that stay import files anew for
    each. Neither is part of the key: a study may be moved, and gone on with.
    """

    schema: ClassVar[int] = STUDY_SCHEMA

    folder: str = field(default="", compare=False)
    session: str = field(default="", compare=False)


def content_hash(value: Any) -> str:
    """A hash of plain values that does not depend on the order of keys."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _plain(values: Mapping[str, Any], what: str) -> dict[str, Any]:
    """Values in the one form that is hashed: whole floats stay floats, tuples become lists."""
    return {name: _plain_value(values[name], f"{what}[{name!r}]") for name in sorted(values)}


def _plain_value(value: Any, where: str) -> Any:
    if value is None or isinstance(value, (bool, str, int)):
        return value
    if isinstance(value, float):
        if not math.isfinite(value):
            raise LabError(f"Invalid {where}: {value!r}, expected a finite number")
        return value
    if isinstance(value, (list, tuple)):
        return [_plain_value(item, where) for item in value]
    raise TypeError(f"Invalid {where}: {value!r}, expected a number, a string, a bool, None or a list of them")
