"""What a search says so far: one line for each variant that was tried, losers too, and what confirmation makes of the best."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from critgrad.lab.ledger.committed import Standing, standing
from critgrad.lab.ledger.view import Reader, View
from critgrad.lab.spaces import edges
from critgrad.lab.stats import Interval, mean_interval, paired_difference
from critgrad.lab.words import listed

from .file import BASE
from .track import ArmState, SearchTrack


@dataclass(frozen=True)
class ArmLine:
    """One arm of one family. Values are validation values on the tuning seeds: they choose, they claim nothing."""

    family: str
    arm: str
    why: str
    optimizer: str
    is_variant: bool
    points: int
    runs: int
    pending: int
    diverged: int
    rank: int | None  # among the family's arms that have their choice
    point: Mapping[str, Any]  # the best one; empty until every rung is run
    edges: Mapping[str, str]
    valid: float | None
    loss: float | None  # at the same epochs: what decides between equals
    seeds: int
    minus: Mapping[str, float]  # by the arm it is held against: positive is better
    better: Mapping[str, int]  # on how many of the seeds

    @property
    def edges_text(self) -> str:
        """`` (lr at the high edge)`` for each value at an end of its range."""
        return "".join(f" ({name} at the {end} edge)" for name, end in self.edges.items())

    @property
    def against(self) -> list[str]:
        """The differences to the base and the rival, and on how many of the seeds it was better."""
        return [
            f"{self.minus[name]:+.3f} ({self.better[name]}/{self.seeds})" if name in self.minus else ""
            for name in (BASE, "rival")
        ]


@dataclass(frozen=True)
class Confirmed:
    """One arm on the confirming seeds, at the point that the tuning seeds chose."""

    family: str
    arm: str
    is_variant: bool
    done: int
    seeds: int
    test: Interval | None
    minus: Mapping[str, Interval]


@dataclass(frozen=True)
class Standings:
    """All lines of a search."""

    name: str
    task: str
    standing: Standing
    lines: tuple[ArmLine, ...]
    confirmed: tuple[Confirmed, ...]

    def winner(self, family: str) -> ArmLine | None:
        """The best variant of a family whose arms have all been run; ``None`` before."""
        mine = [line for line in self.lines if line.family == family]
        if any(line.pending for line in mine):
            return None
        variants = [line for line in mine if line.is_variant and line.rank is not None]
        return min(variants, key=lambda line: line.rank or 0, default=None)

    def verdict(self, family: str) -> str:
        """The winner in a sentence, with the number that was tried beside it."""
        mine = [line for line in self.lines if line.family == family]
        variants = [line for line in mine if line.is_variant]
        tried = f"{len(variants)} variants of {variants[0].points if variants else 0} points each"
        tried += f", {sum(line.runs for line in mine)} runs"
        best = self.winner(family)
        if best is None:
            left = sum(line.pending for line in mine)
            return f"{family}: not finished, {left} runs are next ({tried})" if left else f"{family}: no variants"
        against = ", ".join(f"{round(difference, 9):+.3g} against {name}" for name, difference in best.minus.items())
        return f"{family}: best of {tried}: {best.arm} ({against}; chosen on the seeds it is shown on)"


def standings(track: SearchTrack, ledger: Reader) -> Standings:
    """Read a ledger."""
    search, view = track.search, track.view(ledger)
    lines: list[ArmLine] = []
    confirmed: list[Confirmed] = []
    for states in track.states(view).values():
        place = {state.arm.name: i + 1 for i, state in enumerate(track.ranked(states))}
        known = {state.arm.name: state for state in states}
        for state in states:
            lines.append(_line(track, state, known, place.get(state.arm.name)))
        if not any(state.pending for state in states):
            confirmed += _confirmed(track, states, view)
    return Standings(search.name, search.task, standing(ledger, search), tuple(lines), tuple(confirmed))


def _line(track: SearchTrack, state: ArmState, known: Mapping[str, ArmState], rank: int | None) -> ArmLine:
    search = track.search
    point = {} if state.chosen is None else state.points[state.chosen]
    sign = 1.0 if search.higher_is_better else -1.0
    minus: dict[str, float] = {}
    better: dict[str, int] = {}
    for name in dict.fromkeys((BASE, *search.against)):
        other = known.get(name)
        if name != state.arm.name and other is not None and other.valid is not None and state.valid is not None:
            minus[name] = sign * (state.valid - other.valid)
            better[name] = sum(sign * (mine - its) > 0 for mine, its in zip(state.values, other.values))
    return ArmLine(
        family=state.family,
        arm=state.arm.name,
        why=state.arm.why,
        optimizer=state.arm.optimizer[state.family],
        is_variant=search.is_variant(state.arm),
        points=len(state.points),
        runs=state.runs,
        pending=len(state.pending),
        diverged=state.diverged,
        rank=rank,
        point=point,
        edges=edges(point, search.space(state.family, state.arm), state.points) if point else {},
        valid=state.valid,
        loss=state.loss,
        seeds=len(search.tuning_seeds),
        minus=minus,
        better=better,
    )


def _confirmed(track: SearchTrack, states: Sequence[ArmState], view: View) -> list[Confirmed]:
    """The arms of a family that are to be confirmed, those without a run so far too; none before the first run."""
    search = track.search
    rows = {s.arm.name: [view.get(trial) for trial in track.confirm_trials(s)] for s in track.confirmed(states)}
    values = {
        name: view.values([row for row in found if row is not None], "test")
        for name, found in rows.items()
        if found and all(row is not None for row in found)
    }
    done = {name: sum(row is not None for row in found) for name, found in rows.items()}
    if not any(done.values()):
        return []
    out = []
    for state in track.confirmed(states):
        name = state.arm.name
        minus = {
            other: paired_difference(values[name], values[other], higher_is_better=search.higher_is_better)
            for other in search.against
            if other != name and name in values and other in values
        }
        test = mean_interval(values[name]) if name in values else None
        is_variant, seeds = search.is_variant(state.arm), len(search.confirm_seeds)
        out.append(Confirmed(state.family, name, is_variant, done[name], seeds, test, minus))
    return out


# -- as text -----------------------------------------------------------------------------------------------------------

_DIFFERENCES = ("minus base", "minus rival")
HEADS = ("rank", "arm", "optimizer", "valid", "loss", *_DIFFERENCES, "best point", "runs", "diverged", "what")


def cells(line: ArmLine) -> tuple[str, ...]:
    """A line as text, by ``HEADS``."""
    return (
        "-" if line.rank is None else str(line.rank),
        line.arm,
        line.optimizer,
        "-" if line.valid is None else f"{line.valid:.4g}",
        "-" if line.loss is None else f"{line.loss:.4g}",
        *line.against,
        listed(dict(line.point)) + line.edges_text,
        f"{line.runs}" + (f" (+{line.pending} next)" if line.pending else ""),
        str(line.diverged) if line.diverged else "",
        line.why,
    )


def confirmed_text(found: Confirmed) -> str:
    """One confirmed arm in a line."""
    if found.test is None:
        return f"{found.family} {found.arm}: {found.done} of {found.seeds} confirming runs"
    against = "".join(f"; minus {name} {i.mean:+.3f} [{i.low:+.3f}, {i.high:+.3f}]" for name, i in found.minus.items())
    return f"{found.family} {found.arm}: test {found.test.mean:.4g} on {found.seeds} fresh seeds{against}"
