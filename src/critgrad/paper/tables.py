"""Results as tables for the terminal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from critgrad.lab.screen.console import coloured, say, show, table, width
from critgrad.lab.stats import Comparison, Interval, unreachable
from critgrad.lab.words import interval_text, listed

from .compare import CompareLine
from .protocol.paper_values import RUN_TIME_TOPC
from .protocol.records import Decomposition, Outcome
from .protocol.tracks import Found
from .search import Standings
from .search.standings import HEADS, cells, confirmed_text

COLOURS = {"win": "green", "loss": "red", "tie": "", "not tested": ""}


def difference_text(found: Comparison) -> str:
    """A paired difference; positive is better."""
    return interval_text(Interval(found.difference, found.low, found.high, found.n), "+")


def verdict_text(found: Comparison) -> str:
    """The verdict in its colour."""
    word = found.shown
    return coloured(word, COLOURS.get(word, "yellow"))


WIDE = 100  # columns; a narrower terminal gets the verdict table without what can be read elsewhere


def print_compare(lines: Sequence[CompareLine], metric: str) -> None:
    """The verdict table of ``critgrad compare``, one block per family."""
    wide = width() >= WIDE
    heads = {"optimizer": "left", "lr": "right", f"test {metric}": "right", "minus base": "right", "verdict": "left"}
    heads |= {"P(better)": "right", "to target": "right", "sooner": "right", "step": "right"}
    dropped = () if wide else ("lr", "P(better)")
    shown = [head for head in heads if head not in dropped]
    made = table(None, *shown, right=tuple(h for h in shown if heads[h] == "right"), whole=("optimizer",))
    for line in lines:
        if line.arm == "base" and made.rows:
            made.add_row()
        compared, reached = line.comparison, line.reach
        cells = {
            "optimizer": line.label + (f"\n  {line.diverged} diverged" if line.diverged else ""),
            "lr": show(float(str(line.hyper["lr"])), 3),
            f"test {metric}": interval_text(line.test),
            "minus base": difference_text(compared) if compared else "",
            "verdict": verdict_text(compared) if compared else "",
            "P(better)": f"{compared.poi:.2f}" if compared else "",
            "to target": "" if reached is None else show(reached.median, 3) if reached.median else "not reached",
            "sooner": line.speedup.text if line.speedup else "",
            "step": "" if line.step_ratio is None else f"{line.step_ratio:.2f}x",
        }
        made.add_row(*[cells[head] for head in shown])
    made.put()


def print_outcome(outcome: Outcome, families: Sequence[str] | None = None) -> None:
    """The tables of a fair sweep: arms, then the primary comparisons. ``families``: what was asked for; else all."""
    for warning in outcome.warnings:
        # Runs are counted over all families: beside "0 to do" of those asked for, that must be said.
        warning += " (all families)" if families and warning == outcome.to_go else ""
        say(warning, "yellow")
    made = table(
        f"{outcome.name}: {outcome.runs} runs",
        "arm",
        "chosen",
        f"test {outcome.registration.metric}",
        "diverged",
        "epochs to target",
        right=("diverged", "epochs to target"),
    )
    for row in outcome.arms:
        reached = row.reach.get("epochs")
        median = None if reached is None else reached.median
        made.add_row(
            row.label,
            listed(dict(row.hyper)) + "".join(f" ({name} at the {end} edge)" for name, end in row.edges.items()),
            interval_text(row.test),
            f"{row.diverged}/{len(row.seeds)}",
            show(median, 3) if median is not None else "not reached",
        )
    if outcome.arms:
        made.put()
    print_comparisons("Primary comparisons", outcome.primary)
    reasons: dict[tuple[str, str], list[str]] = {}
    for missing in outcome.missing:
        if not families or missing.family in families:
            reasons.setdefault((missing.family, missing.reason), []).append(missing.arm)
    for (family, reason), arms in reasons.items():
        say(f"missing: {family}: {reason}: {', '.join(arms)}")


def print_comparisons(title: str, rows: Sequence[Comparison]) -> None:
    """Comparisons with everything that their verdict rests on."""
    if not rows:
        return
    numbers = ("seeds", "difference", "p", "p (Holm)")
    made = table(f"\n{title}", "arm", "against", *numbers, "verdict", "", right=numbers)
    hopeless = _unreachable(rows)
    for row in rows:
        holm = "-" if row.p_holm is None else f"{row.p_holm:.3f}"
        notes = [row.note] if row.note else []
        notes += ["too few seeds for so many tests"] if any(row is other for other in hopeless) else []
        made.add_row(
            *(row.arm, row.rival, str(row.n), difference_text(row), f"{row.p:.3f}", holm),
            *(verdict_text(row), ", ".join(notes)),
        )
    made.put()


def _unreachable(rows: Sequence[Comparison]) -> list[Comparison]:
    """Primaries that no outcome could have made a win: asked of each memory apart, as Holm's correction is."""
    memories = dict.fromkeys(row.family.rpartition("_")[2] for row in rows)
    return [row for m in memories for row in unreachable([r for r in rows if r.family.rpartition("_")[2] == m])]


def print_paper(found: Sequence[Found], label: str) -> None:
    """A paper track beside the paper's own numbers."""
    say(f"{label}: for comparison with the paper's tables only", "yellow")
    made = table(
        None, "optimizer", "chosen", "of", "valid", "test", "std", "the paper's", right=("of", "valid", "test", "std")
    )
    for row in found:
        paper = "-" if row.paper is None else f"{row.paper.value:g} ± {row.paper.spread:g}"
        made.add_row(
            row.optimizer,
            listed(row.hyper),
            str(row.settings_tried),
            show(row.valid),
            show(row.test.mean),
            show(row.test_std, 2),
            paper,
        )
    made.put()


def print_decomposition(found: Sequence[Decomposition]) -> None:
    """What a memory's difference to its base is made of."""
    made = table(None, "arm", "effect", "from", "difference", right=("difference",))
    for part in found:
        for term in part.terms:
            made.add_row(
                f"{part.family}_{part.arm}",
                term.effect,
                f"{term.minuend} - {term.subtrahend}",
                interval_text(term.difference, "+"),
            )
        made.add_row(f"{part.family}_{part.arm}", coloured("total", "bold"), "", interval_text(part.total, "+"))
    made.put()


def print_standings(found: Standings, chosen: Sequence[str] | None) -> None:
    """A search: every variant, then what was confirmed."""
    say(f"{found.name} on {found.task}: {found.standing.text}")
    families = chosen or tuple(dict.fromkeys(line.family for line in found.lines))
    for family in families:
        mine = [line for line in found.lines if line.family == family]
        mine.sort(key=lambda line: (line.rank is None, line.rank or 0))
        made = table(family, *HEADS, right=("rank", "valid", "loss", "minus base", "minus rival", "runs", "diverged"))
        for line in mine:
            made.add_row(*cells(line))
        made.put()
    for family in families:
        say(found.verdict(family))
    for arm in found.confirmed:
        if arm.family in families:
            say(confirmed_text(arm))


# -- analyses ----------------------------------------------------------------------------------------------------------


def _staleness(data: dict[str, Any]) -> None:
    made = table(
        None, "topC", "decay", "mean age", "median", "largest", right=("topC", "mean age", "median", "largest")
    )
    for cell in data["cells"]:
        made.add_row(
            str(cell["topC"]),
            f"{cell['decay']:g}",
            f"{cell['mean']:.1f}",
            f"{round(cell['median'], 1):g}",
            str(cell["max"]),
        )
    made.put()


def _norms(data: dict[str, Any]) -> None:
    made = table(None, "topC", "stored / current norm (median)", "test", right=("topC", "test"))
    for line in data["lines"]:
        made.add_row(str(line["topC"]), show(line["ratio"], 3), show(line["test"]))
    made.put()


def _sensitivity(data: dict[str, Any]) -> None:
    decays = sorted({cell["decay"] for cell in data["cells"]})
    cells = {(cell["topC"], cell["decay"]): cell for cell in data["cells"]}
    made = table(f"{data['optimizer']} on {data['task']}: {data['metric']}", "topC", *[f"decay {d:g}" for d in decays])
    for topC in sorted({cell["topC"] for cell in data["cells"]}):
        values = [cells.get((topC, decay)) for decay in decays]
        made.add_row(str(topC), *["-" if cell is None else show(cell["test"]) for cell in values])
    made.put()


def _noise(data: dict[str, Any]) -> None:
    flips = sorted({point["flip_y"] for line in data["lines"] for point in line["points"]})
    made = table("accuracy with a share of labels flipped", "optimizer", *[f"{flip:g}" for flip in flips])
    for line in data["lines"]:
        points = {point["flip_y"]: point["test"] for point in line["points"]}
        made.add_row(line["optimizer"], *[show(points.get(flip), 3) for flip in flips])
    made.put()


def _runtime(data: dict[str, Any]) -> None:
    heads = ("topC", "step ms", "step, to Adam", "epoch s", "epoch, to Adam", "paper, to Adam")
    paper = dict(zip(RUN_TIME_TOPC, data["paper_minutes"] or ()))
    base = paper.get(0)
    made = table(f"{data['task']} on {data['device']}", *heads, right=heads)
    for point in data["points"]:
        there = paper.get(point["topC"])
        made.add_row(
            str(point["topC"]),
            show(point["step_ms"], 3),
            show(point["step_ratio"], 3),
            show(point["epoch_seconds"], 3),
            show(point["epoch_ratio"], 3),
            show(there / base if there and base else None, 3),
        )
    made.put()


def _convex(data: dict[str, Any]) -> None:
    made = table(f"{data['task']}: training loss", "optimizer", "first epoch", "last epoch", "diverged")
    for line in data["lines"]:
        made.add_row(line["optimizer"], show(line["mean"][0]), show(line["mean"][-1]), str(line["diverged"]))
    for line in data["lost"]:
        made.add_row(line["optimizer"], "-", "-", f"all {line['runs']}")
    made.put()


def _spectrum(data: dict[str, Any]) -> None:
    made = table("state in bytes per parameter", "optimizer", "bytes", right=("bytes",))
    for row in data["rows"]:
        made.add_row(row["label"], f"{row['bytes']:.2f}")
    made.put()


def _damping(data: dict[str, Any]) -> None:
    made = table(
        f"{data['task']}: over training", "optimizer", "in the span, first epoch", "last", "|d|/|g|, first", "last"
    )
    for line in data["lines"]:
        share, ratio = line["span_share"], line["damped_ratio"]
        made.add_row(line["optimizer"], f"{share[0]:.0%}", f"{share[-1]:.0%}", f"{ratio[0]:.2f}", f"{ratio[-1]:.2f}")
    made.put()


def _ablation(data: dict[str, Any]) -> None:
    for study, rows in data["studies"].items():
        made = table(
            f"{study} ({data['metric']} on {data['task']})", "optimizer", "variant", "test", "minus the default"
        )
        for row in rows:
            found = row["difference"]
            text = (
                ""
                if found is None
                else interval_text(Interval(found["mean"], found["low"], found["high"], row["runs"]), "+")
            )
            half = Interval(row["test"], row["low"], row["high"], row["runs"])
            made.add_row(
                row["optimizer"], row["variant"], interval_text(half), text or f"(default: {row['reference']})"
            )
        made.put()
        say("")


_PRINTERS: dict[str, Callable[[dict[str, Any]], None]] = {
    "staleness": _staleness,
    "gt-vs-gc": _norms,
    "sensitivity": _sensitivity,
    "noise": _noise,
    "runtime": _runtime,
    "convex": _convex,
    "spectrum": _spectrum,
    "damping": _damping,
    "ablation": _ablation,
}


def print_analysis(name: str, data: dict[str, Any]) -> None:
    """The numbers behind an analysis's figure."""
    _PRINTERS[name](data)
