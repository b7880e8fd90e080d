"""What a search says so far: one line for each variant that was tried, losers too, and what confirmation makes of the best."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from critgrad.lab.ledger.committed import Standing, standing
from critgrad.lab.ledger.view import Reader, View
from critgrad.lab.stats import Interval, mean_interval, paired_difference

from .track import ArmState, SearchTrack


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

    @property
    def text(self) -> str:
        """In a line."""
        if self.test is None:
            return f"{self.family} {self.arm}: {self.done} of {self.seeds} confirming runs"
        minus = [f"minus {name} {i.mean:+.3f} [{i.low:+.3f}, {i.high:+.3f}]" for name, i in self.minus.items()]
        return "; ".join([f"{self.family} {self.arm}: test {self.test.mean:.4g} on {self.seeds} fresh seeds", *minus])


@dataclass(frozen=True)
class Standings:
    """All lines of a search."""

    name: str
    task: str
    standing: Standing
    lines: tuple[ArmState, ...]
    confirmed: tuple[Confirmed, ...]

    def winner(self, family: str) -> ArmState | None:
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
        tried = f"{len(variants)} variants of {len(variants[0].points) if variants else 0} points each"
        tried += f", {sum(line.runs for line in mine)} runs"
        best = self.winner(family)
        if best is None:
            left = sum(len(line.pending) for line in mine)
            return f"{family}: not finished, {left} runs are next ({tried})" if left else f"{family}: no variants"
        against = ", ".join(f"{round(difference, 9):+.3g} against {name}" for name, difference in best.minus.items())
        return f"{family}: best of {tried}: {best.name} ({against}; chosen on the seeds it is shown on)"


def standings(track: SearchTrack, ledger: Reader) -> Standings:
    """Read a ledger."""
    search, view = track.search, track.view(ledger)
    families = track.states(view)
    lines = tuple(state for states in families.values() for state in states)
    done = [states for states in families.values() if not any(state.pending for state in states)]
    confirmed = tuple(row for states in done for row in _confirmed(track, states, view))
    return Standings(search.name, search.task, standing(ledger, search), lines, confirmed)


def _confirmed(track: SearchTrack, states: Sequence[ArmState], view: View) -> list[Confirmed]:
    """The arms of a family that are to be confirmed, those without a run so far too; none before the first run."""
    search, seeds = track.search, len(track.search.confirm_seeds)
    there = [
        (state, [row for t in track.confirm_trials(state) if (row := view.get(t))]) for state in track.confirmed(states)
    ]
    if not any(rows for _, rows in there):
        return []
    values = {state.name: view.values(rows, "test") for state, rows in there if len(rows) == seeds}
    out = []
    for state, rows in there:
        mine = values.get(state.name)
        minus = {
            other: paired_difference(mine, values[other], higher_is_better=search.higher_is_better)
            for other in search.against
            if mine is not None and other in values and other != state.name
        }
        test = None if mine is None else mean_interval(mine)
        out.append(Confirmed(state.family, state.name, state.is_variant, len(rows), seeds, test, minus))
    return out
