"""The runs of a study: which there are, which of them are known, which are to be made next.

A replicate of an arm is a search (``trials`` points on one seed) and then reports (the chosen point on other seeds). Every
point and every seed follows from the file alone, so that a study goes on where it was, and grows without moving.
"""

from __future__ import annotations

import math
import os
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import torch

from ..ledger import Planned, Role
from ..run.spec import StudyTrial
from ..train import compiling
from ..train.streams import stream_seed
from .answer import Run
from .axes import points
from .file import LARGEST_SEED, ArmFile, Schedule, StudyFile
from .forms import BuiltInTask, data_files
from .loading import hash_of, python_files
from .optimizers import Maker
from .task import StudyTask
from .work import SET

SEARCH, REPORT, INITIAL = "search", "report", "initial"
# Of the environment, what changes numbers; each is part of every run's key where it is set.
_FLAGS = (
    *("CRITGRAD_ENGINE", "CRITGRAD_NATIVE", "CRITGRAD_LSTM_KERNELS"),
    *("NVIDIA_TF32_OVERRIDE", "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE"),
)


def replicate_seed(seed: int, replicate: int, purpose: str, number: int = 0) -> int:
    """A seed of a replicate, 1 to 2^31 - 1.

    >>> replicate_seed(1, 1, "search") == replicate_seed(1, 2, "search")
    False
    """
    return 1 + stream_seed(seed, "replicate", replicate, purpose, number) % LARGEST_SEED


def surroundings(study: StudyFile, task: StudyTask, makers: Mapping[str, Maker], device: str) -> dict[str, Any]:
    """What the numbers of a study's runs depend on beside its file: hashes, versions, flags, kind of device."""
    flags = [f"{name}={os.environ[name]}" for name in _FLAGS if os.environ.get(name)]
    data = data_files(study.task, study.folder)
    return {
        "device": torch.device(device).type,
        "flags": [*flags, "compile"] if os.environ.get(compiling.ASKED) == "1" else flags,
        "code": hash_of(python_files(study.folder), study.folder) if _has_code(study, makers) else "",
        "data": hash_of(data, study.folder) if data else "",
        "packages": {name: maker.packages for name, maker in makers.items()},
        "local": [name for name, maker in makers.items() if maker.local],
        "whole_loop": task.whole_loop,
    }


def _has_code(study: StudyFile, makers: Mapping[str, Maker]) -> bool:
    return study.task_is_file or any(maker.local for maker in makers.values())


class StudyPlan:
    """A study with all that its keys need. ``session`` names this call to workers that stay."""

    def __init__(self, study: StudyFile, around: Mapping[str, Any], session: str = "") -> None:
        self.study, self.around, self.session = study, around, session
        self._searches: dict[tuple[str, int], tuple[tuple[Mapping[str, Any], StudyTrial], ...]] = {}

    @cached_property
    def _settings(self) -> dict[str, dict[str, Any]]:
        """Of each arm's runs: everything that can change their numbers, beside optimizer and seed."""
        study, around = self.study, self.around
        common: dict[str, Any] = {
            "epochs": study.epochs,
            "direction": study.direction,
            "device": around["device"],
            "precision": study.precision,
            **{f"{SET}{name}": value for name, value in study.settings.items()},
        }
        if around["flags"]:
            common["flags"] = around["flags"]
        if study.schedule != Schedule():
            common["schedule"] = f"{study.schedule.kind} {study.schedule.warmup!r}"
        out = {}
        for name in study.arms:
            own = {"packages": around["packages"][name]}
            # A built-in task with an installed optimizer has nothing to do with files that happen to lie there.
            if study.task_is_file or name in around["local"]:
                own["code"] = around["code"]
            if around["data"]:
                own["data"] = around["data"]
            out[name] = {**common, **own}
        return out

    def trial(self, arm: ArmFile, point: Mapping[str, Any], seed: int, **settings: Any) -> StudyTrial:
        """A run of an arm at a point."""
        study = self.study
        return StudyTrial(
            task=study.task,
            optimizer=arm.optimizer,
            hyper={**arm.fixed, **point},
            seed=seed,
            settings={**self._settings[arm.name], **settings},
            folder=str(study.folder),
            session=self.session,
        )

    def searched(self, arm: str, replicate: int) -> tuple[tuple[Mapping[str, Any], StudyTrial], ...]:
        """The points of a search and their runs; none for an arm that is not tuned."""
        study, file = self.study, self.study.arms[arm]
        if (arm, replicate) not in self._searches:
            seed = replicate_seed(study.seed, replicate, SEARCH)
            drawn = points(file.search, study.seed, replicate, study.trials) if file.search else []
            self._searches[arm, replicate] = tuple((point, self.trial(file, point, seed)) for point in drawn)
        return self._searches[arm, replicate]

    def reports(self, arm: str, replicate: int, point: Mapping[str, Any]) -> tuple[StudyTrial, ...]:
        """The runs of a chosen point."""
        study, file = self.study, self.study.arms[arm]
        seeds = (replicate_seed(study.seed, replicate, REPORT, k) for k in range(study.report_seeds))
        return tuple(self.trial(file, point, seed) for seed in seeds)

    def initial(self, replicate: int) -> StudyTrial | None:
        """The run that measures the value before training, where the lab does not train itself."""
        if not self.around["whole_loop"]:
            return None
        first = next(iter(self.study.arms.values()))
        searched = self.searched(first.name, replicate)
        point = searched[0][0] if searched else {}
        seed = replicate_seed(self.study.seed, replicate, REPORT)
        return self.trial(first, point, seed, epochs=1, still=True)

    def best(self, arm: str, replicate: int, runs: Mapping[str, Run]) -> tuple[Mapping[str, Any], Run | None] | None:
        """The chosen point and its trial. ``None``: the search is not whole. No trial: nothing was searched, or all failed."""
        searched = self.searched(arm, replicate)
        if any(trial.key not in runs for _, trial in searched):
            return None
        sign = 1.0 if self.study.direction == "min" else -1.0
        tried = [(point, runs[trial.key]) for point, trial in searched]
        finite = [(point, run) for point, run in tried if not run.failed and math.isfinite(run.valid)]
        if not finite:
            return {}, None
        return min(finite, key=lambda item: sign * item[1].valid)

    def wanted(self, replicate: int, runs: Mapping[str, Run]) -> Iterator[tuple[str, str, StudyTrial]]:
        """Arm, purpose and specification of each run of a replicate that is still to be made, as far as is known."""
        first = self.initial(replicate)
        if first is not None and first.key not in runs:
            yield next(iter(self.study.arms)), INITIAL, first
        for arm in self.study.arms:
            chosen = self.best(arm, replicate, runs)
            if chosen is None:
                for _, trial in self.searched(arm, replicate):
                    if trial.key not in runs:
                        yield arm, SEARCH, trial
            elif chosen[1] is not None or not self.study.arms[arm].search:
                for trial in self.reports(arm, replicate, chosen[0]):
                    if trial.key not in runs:
                        yield arm, REPORT, trial

    def remaining(self, replicate: int, runs: Mapping[str, Run]) -> Counter[str]:
        """How many runs of a replicate each arm still needs, those among them that are not known yet."""
        known = [*self.wanted(replicate, runs)]
        searching = {arm for arm, purpose, _ in known if purpose == SEARCH}
        return Counter([arm for arm, *_ in known] + [*searching] * self.study.report_seeds)


class Queue:
    """What is to be run next. Replicates are begun one after the other, the next when workers would have nothing to do.

    With ``seconds`` a replicate is begun only if, at the pace so far, it and all that are begun would be whole by then; the
    first always.
    """

    def __init__(self, plan: StudyPlan, runs: dict[str, Run], seconds: float | None = None) -> None:
        self.plan, self.runs, self.seconds = plan, runs, seconds
        self.begun: list[int] = []  # and not whole
        self.last = 0
        self.handed: set[str] = set()
        self.made = 0
        self.began = time.monotonic()

    def more(self) -> Sequence[Planned]:
        """Runs that can be made now and were not handed out before."""
        found = self._found()
        while not found and self.last < self.plan.study.replicates and self._may_begin():
            self.last += 1
            self.begun.append(self.last)
            found = self._found()
        return found

    def _found(self) -> list[Planned]:
        out, whole = [], []
        for number in self.begun:
            wanted = [*self.plan.wanted(number, self.runs)]
            if not wanted:
                whole.append(number)
            for arm, purpose, trial in wanted:
                if trial.key not in self.handed:
                    self.handed.add(trial.key)
                    out.append(Planned(trial, (Role("study", str(number), arm, purpose),)))
        self.begun = [number for number in self.begun if number not in whole]
        return out

    def _may_begin(self) -> bool:
        if self.seconds is None or not (self.begun or self.made):
            return True
        count = sum(self.plan.remaining(n, self.runs).total() for n in (*self.begun, self.last + 1))
        elapsed = time.monotonic() - self.began
        return bool(self.made) and elapsed + count * elapsed / self.made <= self.seconds

    def add(self, run: Run) -> None:
        """A run has been made."""
        self.runs[run.key] = run
        self.made += 1


def completed(study: StudyFile, task: StudyTask) -> StudyFile:
    """A study with what a built-in task knows by itself; contradictions are errors."""
    if not isinstance(task, BuiltInTask):
        return study
    if study.direction not in ("", task.direction):
        metric = f"{task.record.metric.name} of {study.task}"
        raise study.error(f"direction is {study.direction!r}, expected {task.direction!r}, that of the {metric}")
    return replace(study, direction=task.direction, epochs=study.epochs or task.record.epochs)
