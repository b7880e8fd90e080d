"""What the statistics are worth, by simulation: ``python -m critgrad.lab.stats.simulate``.

The A/A test compares an optimizer with itself under other seeds: about 95 % must come out "open". Then an improvement
is planted and must be found. Data are normal, heavy-tailed, skewed, diverging and censored. What to expect, and what
the table shows:

* Two runs of one optimizer differ symmetrically whatever the shape of one run, so the sign-flip test keeps its level
  in every A/A row. The interval does too for normal data; heavy tails, divergence and censoring make it cautious
  (fewer false wins, less power), never bold.
* ``skew of one`` is no A/A test: two different optimizers with equal means, one with a long tail, the other without.
  There neither the interval nor the test keeps its level with few seeds. More seeds help slowly; the probability of
  improvement beside the mean shows it.
* Percentile bootstraps are rough with few seeds: five per task give the interquartile mean about 91 % instead of 95,
  twenty pairs the probability of improvement 87 to 95 (it moves in steps). They describe; no verdict rests on them.
* A run that diverges one time in ten hides an improvement of the others: the mean is then about divergence.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from .bootstrap import Floats, generator
from .improvement import probability_of_improvement
from .intervals import interval_rows
from .signflip import holm, sign_flip_rows
from .suite import suite_difference
from .survival import speedup
from .verdicts import ALPHA, FEWEST_SEEDS

ROWS = 4000  # simulated comparisons per setting
SEEDS = (5, 10, 20)
PLANTED = (1.0, 2.0)  # improvements, in standard deviations of a paired difference of finished runs
DIVERGENCE = 0.1
LIMIT = 30.0  # epochs; a run without the target by then is censored

# (rng, rows, n, effect) -> the differences (rows, n), positive where the arm is better, and their true mean.
Draw = Callable[[np.random.Generator, int, int, float], "tuple[Floats, float]"]


def _shifted(sample: Callable[[np.random.Generator, tuple[int, ...]], Floats], variance: float) -> Draw:
    """Arm and rival from one distribution; the variance is that of their difference."""

    def draw(rng: np.random.Generator, rows: int, n: int, effect: float) -> tuple[Floats, float]:
        arm, rival = sample(rng, (2, rows, n))
        shift = effect * np.sqrt(variance)
        return arm + shift - rival, shift

    return draw


def _skew_of_one(rng: np.random.Generator, rows: int, n: int, effect: float) -> tuple[Floats, float]:
    tail, plain = rng.exponential(size=(rows, n)), rng.normal(0.0, 0.3, size=(rows, n))
    shift = effect * np.sqrt(1.09)
    return 1 - tail + shift - plain, shift


def _diverging(rng: np.random.Generator, rows: int, n: int, effect: float) -> tuple[Floats, float]:
    # Accuracy in percent: finished runs around 60, diverged ones 0.
    shift = effect * np.sqrt(2)
    arm, rival = 60 + rng.normal(size=(2, rows, n)) + np.array([shift, 0.0])[:, None, None]
    fallen = rng.random(size=(2, rows, n)) < DIVERGENCE
    return np.where(fallen[0], 0.0, arm) - np.where(fallen[1], 0.0, rival), (1 - DIVERGENCE) * shift


def _times(rng: np.random.Generator, rows: int, n: int, effect: float) -> tuple[Floats, Floats]:
    # Epochs to the target: part of the luck belongs to the seed and is shared, part to the run. 0.25 * sqrt(2) is the
    # spread of the log ratio, and the effect is counted in it.
    seed = rng.normal(np.log(22.0), 0.25, size=(rows, n))
    arm, rival = np.exp(seed + rng.normal(0.0, 0.25, size=(2, rows, n)))
    return arm * np.exp(-effect * 0.25 * np.sqrt(2)), rival


def _restricted(rng: np.random.Generator, rows: int, n: int, effect: float) -> Floats:
    arm, rival = _times(rng, rows, n, effect)
    return np.minimum(rival, LIMIT) - np.minimum(arm, LIMIT)


def _censored(rng: np.random.Generator, rows: int, n: int, effect: float) -> tuple[Floats, float]:
    truth = float(_restricted(generator(1), 1_000, 400, effect).mean()) if effect else 0.0
    return _restricted(rng, rows, n, effect), truth


@dataclass(frozen=True)
class SimulatedSetting:
    """One kind of data, and whether arm and rival are alike in it but for the planted effect."""

    name: str
    draw: Draw
    alike: bool = True


SETTINGS: dict[str, SimulatedSetting] = {
    setting.name: setting
    for setting in (
        SimulatedSetting("normal", _shifted(lambda rng, size: rng.normal(size=size), 2)),
        SimulatedSetting("heavy tails", _shifted(lambda rng, size: rng.standard_t(3, size=size), 6)),
        SimulatedSetting("skewed", _shifted(lambda rng, size: rng.lognormal(size=size), 2 * (np.e - 1) * np.e)),
        SimulatedSetting("diverging", _diverging),
        SimulatedSetting("censored", _censored),
        SimulatedSetting("skew of one", _skew_of_one, alike=False),
    )
}


@dataclass(frozen=True)
class Rates:
    """Shares of simulated comparisons."""

    interval: float  # the t-interval excludes 0
    test: float  # the sign-flip p is below 0.05
    decided: float  # the rule of ``verdicts`` says "better" or "worse"
    won: float  # and that is "better"
    coverage: float  # the t-interval holds the true mean difference


def rates(setting: SimulatedSetting, n: int, effect: float = 0.0, rows: int = ROWS, seed: int = 0) -> Rates:
    """Simulate ``rows`` comparisons of ``n`` seeds each, every one a single primary.

    >>> found = rates(SETTINGS["normal"], 10, effect=2.0, rows=200)
    >>> found.won > 0.95
    True
    """
    differences, truth = setting.draw(generator(seed), rows, n, effect)
    _, low, high = interval_rows(differences)
    outside = (low > 0) | (high < 0)
    significant = sign_flip_rows(differences) < ALPHA
    decided = outside & significant if n >= FEWEST_SEEDS else outside
    return Rates(
        interval=float(outside.mean()),
        test=float(significant.mean()),
        decided=float(decided.mean()),
        won=float((decided & (low > 0)).mean()),
        coverage=float(((low <= truth) & (truth <= high)).mean()),
    )


def band(probability: float, rows: int, confidence: float = 0.99) -> tuple[float, float]:
    """The central binomial band of a share among ``rows`` when the true one is ``probability``.

    >>> band(0.05, 2000)
    (0.038, 0.063)
    """
    k = np.arange(rows + 1)
    log_choose = np.concatenate(([0.0], np.cumsum(np.log(rows - k[:-1]) - np.log(k[1:]))))
    below = np.cumsum(np.exp(log_choose + k * np.log(probability) + (rows - k) * np.log1p(-probability)))
    tail = (1 - confidence) / 2
    low, high = np.searchsorted(below, [tail, 1 - tail])
    return float(low / rows), float(high / rows)


def family_wise(setting: SimulatedSetting, n: int, primaries: int = 9, rows: int = ROWS, seed: int = 0) -> float:
    """The share of whole tables of A/A primaries with at least one that is decided after Holm's correction."""
    differences, _ = setting.draw(generator(seed), rows * primaries, n, 0.0)
    _, low, high = interval_rows(differences)
    ps = sign_flip_rows(differences).reshape(rows, primaries).tolist()
    passed = np.array([[p is not None and p < ALPHA for p in holm(row)] for row in ps])
    return float((passed & ((low > 0) | (high < 0)).reshape(rows, primaries)).any(-1).mean())


# The bootstrap intervals


def improvement_coverage(n: int, effect: float = 0.0, rows: int = ROWS, seed: int = 0, paired: bool = True) -> float:
    """How often the interval of the probability of improvement holds the true one (normal data)."""
    rng, truth, hits = generator(seed), NormalDist().cdf(effect), 0
    for _ in range(rows):
        arm, rival = rng.normal(size=(2, n))
        found = probability_of_improvement(arm + effect * np.sqrt(2), rival, paired=paired, draws=500)
        hits += found.low <= truth <= found.high
    return hits / rows


def suite_coverage(tasks: int = 9, n: int = 10, effect: float = 0.5, rows: int = ROWS, seed: int = 0) -> float:
    """How often the interval of the difference of two interquartile means holds the true one (normal data)."""
    rng, hits = generator(seed), 0
    names = [str(task) for task in range(tasks)]
    for _ in range(rows):
        rival = rng.normal(size=(tasks, n))
        arm = effect + 0.7 * rival + rng.normal(0.0, np.sqrt(0.51), size=(tasks, n))
        found = suite_difference(dict(zip(names, arm)), dict(zip(names, rival)), draws=300)
        hits += found.low <= effect <= found.high
    return hits / rows


@dataclass(frozen=True)
class SpeedupRates:
    """Shares of simulated speed-ups under censoring."""

    coverage: float  # the interval holds the true median ratio
    point: float  # the range that censoring leaves for the sample's median holds the sample's true median
    test: float  # the sign test says p < 0.05
    censored: float  # runs without the target


def speedup_rates(n: int, effect: float = 0.0, rows: int = ROWS, seed: int = 0) -> SpeedupRates:
    """Simulate paired times to target of which those beyond the limit are not seen."""
    arms, rivals = _times(generator(seed), rows, n, effect)
    truth = float(np.exp(effect * 0.25 * np.sqrt(2)))
    covered = inside = significant = censored = 0
    for arm, rival in zip(arms, rivals):
        seen = [[t if t <= LIMIT else None for t in side.tolist()] for side in (arm, rival)]
        found = speedup(seen[0], seen[1], LIMIT, draws=300)
        whole = float(np.exp(np.median(np.log(rival / arm))))
        covered += found.low <= truth <= found.high
        inside += found.ratio_low <= whole * (1 + 1e-12) and whole <= found.ratio_high * (1 + 1e-12)
        significant += found.p < ALPHA
        censored += found.censored_arm + found.censored_rival
    return SpeedupRates(covered / rows, inside / rows, significant / rows, censored / (2 * n * rows))


# The tables


def _lines(cells: Sequence[Sequence[str]]) -> str:
    widths = [max(len(row[i]) for row in cells) for i in range(len(cells[0]))]
    return "\n".join("  ".join(cell.ljust(w) for cell, w in zip(row, widths)).rstrip() for row in cells)


def _percent(value: float) -> str:
    return f"{100 * value:.1f}"


def verdict_table(rows: int = ROWS) -> str:
    """False verdicts, coverage and power of the rule, in percent."""
    head = ["data", "n", "a difference", "interval", "test", "coverage", *(f"power {e:g} sd" for e in PLANTED)]
    cells = [head]
    for setting in SETTINGS.values():
        for n in SEEDS:
            null = rates(setting, n, rows=rows)
            planted = [rates(setting, n, effect, rows, seed=1) for effect in PLANTED]
            shares = [null.decided, null.interval, null.test, planted[0].coverage, *(p.won for p in planted)]
            cells.append([setting.name, str(n), *map(_percent, shares)])
    return _lines(cells)


def bootstrap_table(rows: int = ROWS) -> str:
    """Coverage of the bootstrap intervals, and what else has a rate, in percent."""
    cells = [["what", "n", "found", "should be"]]
    for n in SEEDS:
        cells.append(
            ["probability of improvement, no effect", str(n), _percent(improvement_coverage(n, rows=rows)), "95"]
        )
        cells.append(["... 1 sd", str(n), _percent(improvement_coverage(n, 1.0, rows)), "95"])
        found = speedup_rates(n, rows=rows)
        some = f"{100 * found.censored:.0f} % censored"
        cells.append([f"median speed-up, no effect, {some}", str(n), _percent(found.coverage), "95"])
        cells.append(["... its sign test: false alarms", str(n), _percent(found.test), "at most 5"])
        cells.append(["... 1 sd", str(n), _percent(speedup_rates(n, 1.0, rows).coverage), "95"])
    for n in SEEDS[:2]:
        cells.append(["interquartile means, 9 tasks", str(n), _percent(suite_coverage(9, n, rows=rows)), "95"])
    wise = family_wise(SETTINGS["normal"], 10, rows=rows)
    cells.append(["a false verdict anywhere in 9 primaries", "10", _percent(wise), "at most 5"])
    return _lines(cells)


def main(argv: Sequence[str] | None = None) -> int:
    """Print both tables."""
    parser = argparse.ArgumentParser(prog="critgrad.lab.stats.simulate", description=__doc__.split("\n")[0])
    parser.add_argument("--rows", type=int, default=ROWS, help=f"comparisons per setting, >= 100 (default {ROWS})")
    args = parser.parse_args(argv)
    if args.rows < 100:
        parser.error(f"--rows {args.rows}: expected at least 100")
    low, high = band(ALPHA, args.rows)
    print(f"""\
{args.rows} simulated comparisons per line, half as many in the second table; shares in percent.
The 99 % band around 5 is {_percent(low)} to {_percent(high)}.
a difference: an optimizer against itself is called better or worse; interval, test: by one of its halves alone.
coverage: of the 95 % t-interval with 1 sd planted. power: a planted improvement is called better.

{verdict_table(args.rows)}

{bootstrap_table(args.rows // 2)}

skew of one: equal means, but only the arm has a long tail; no A/A test, and no rate is promised there.""")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
