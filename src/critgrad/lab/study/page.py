"""The page of a study: one HTML file with everything in it, which reads without JavaScript.

First one sentence per claim, then what they rest on: the replicate differences, the trials, the learning curves, the cost, what
was searched, and where everything comes from.
"""

from __future__ import annotations

import html
import math
import re
import statistics
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from critgrad._version import __version__

from ..replacing import replacing
from ..report.page import WEB as REPORT_WEB
from ..report.table import Cell, Table, number, prose, word
from ..screen.progress import duration
from ..stats import mean_interval
from ..words import counted, interval_text, listed
from . import figures
from .answer import Answer, Arm, Claim, Run
from .verdict import OFTEN, said_of

WEB = Path(__file__).with_name("web")
_SIGNS = {"better": "▲ better", "worse": "▼ worse", "same": "= same", "open": "? open"}
_MOST_FAILURES = 50  # lines that are shown


def write_page(answer: Answer, path: Path) -> None:
    """Write the page; a reader never sees half of it."""
    with replacing(path) as file:
        file.write(render(answer).encode(errors="replace"))  # a folder's name may be no text


def render(answer: Answer) -> str:
    """The page's text."""
    style = (REPORT_WEB / "style.css").read_text(encoding="utf-8") + (WEB / "style.css").read_text(encoding="utf-8")
    title = html.escape(answer.title)
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<link rel="icon" href="data:,">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
<header class="top">
<h1>{title}</h1>
<p class="lead">{html.escape(_lead(answer))}</p>
{"".join(_banners(answer))}
<ul class="claims">{"".join(_claim(claim, answer) for claim in answer.claims)}</ul>
</header>
<main>
{"".join(_sections(answer))}
</main>
<footer>critgrad {html.escape(__version__)}. {html.escape(_RULE)}</footer>
</body>
</html>
"""


_RULE = (
    "better, worse: the exact 95 % interval of the signed-rank test over the replicates leaves 0 outside, and p after Holm's "
    "correction over the study's claims is below .05. same: the interval lies inside the margin. open: everything else. "
    "One replicate is a whole search with its report runs: intervals hold the luck of the search as well as that of the seed."
)


def _lead(answer: Answer) -> str:
    runs = sum(1 for arm in answer.arms.values() for _ in _runs(arm))
    parts = [
        f"Task {answer.task}, {counted(answer.epochs, 'epoch')}",
        f"{'lower' if answer.direction == 'min' else 'higher'} is better",
        f"{counted(answer.planned, 'replicate')} of {counted(answer.trials, 'trial')} "
        f"and {counted(answer.report_seeds, 'report run')}",
        f"{counted(runs, 'run')} in all",
        f"margin {answer.margin:.3g}",
        f"value before training {answer.initial:.4g}",
    ]
    return "; ".join(parts) + "."


def _banners(answer: Answer) -> Iterator[str]:
    if not answer.final:
        done = min((len(arm.replicates) for arm in answer.arms.values()), default=0)
        yield f'<p class="banner">Not final: {done} of {answer.planned} replicates are whole. Words may still change.</p>'
    for note in answer.notes:
        yield f'<p class="warning">{html.escape(note)}</p>'


def _claim(claim: Claim, answer: Answer) -> str:
    said = html.escape(said_of(claim, answer))
    beside = ""
    if claim.replicates:
        numbers = f"p = {claim.p:.3g}, after correction {claim.p_holm:.3g}; mean of the differences {claim.mean:+.4g}"
        beside = f'<p class="beside">{html.escape(numbers)}</p>'
    said_of_arm = claim.remark.startswith(tuple(f"{name}:" for name in answer.arms))
    said_beside = claim.remark if said_of_arm else claim.remark[:1].upper() + claim.remark[1:]
    remark = f'<p class="remark">{_marked(said_beside)}.</p>' if claim.remark and claim.replicates else ""
    return (
        f'<li class="w-{claim.word}"><span class="badge {claim.word}">{_SIGNS[claim.word]}</span>'
        f'<p class="said">{said}</p>{remark}{beside}</li>'
    )


def _marked(text: str) -> str:
    """What stands between backticks is code."""
    return re.sub(r"`([^`]*)`", r"<code>\1</code>", html.escape(text))


def _sections(answer: Answer) -> Iterator[str]:
    if any(claim.differences for claim in answer.claims):
        yield _section("Differences", _figure(figures.differences(answer), _DIFFERENCES))
    yield _section("Values", _values(answer).html() + _replicates(answer).html())
    yield _section("Trials", _trials(answer))
    yield _section("Learning curves", _curves(answer))
    yield _section("Cost", _cost(answer).html())
    yield _section("What was searched", "".join(_searched(answer)))
    failed = list(_failures(answer))
    if failed:
        lines = "\n".join(failed[:_MOST_FAILURES])
        more = f"\n... and {len(failed) - _MOST_FAILURES} more" if len(failed) > _MOST_FAILURES else ""
        yield _section(
            "Failed runs", f"<p>{counted(len(failed), 'run')} failed.</p><pre>{html.escape(lines + more)}</pre>"
        )
    yield _section("Provenance", _provenance(answer.provenance))


_DIFFERENCES = (
    "A dot is a replicate, replicate 1 on top: the difference of the two test values; right of 0 the arm is better. Diamond "
    "and bar: Hodges and Lehmann's estimate with its exact 95 % interval. Shaded: the margin. An arrow at the edge: beyond the "
    "axis."
)
_TRIALS = (
    "Validation value of every trial, all arms on one scale. Full dots: the point that a replicate chose. Crosses: failed, or "
    "off the scale, which is not a failure."
)
_CURVES = "Validation value after each epoch: median and quartiles of the report runs."


def _section(title: str, inner: str) -> str:
    return f'<section id="{title.lower().replace(" ", "-")}"><h2>{html.escape(title)}</h2>{inner}</section>\n'


def _figure(svg: str, caption: str) -> str:
    return f'<figure><div class="wide">{svg}</div><figcaption>{html.escape(caption)}</figcaption></figure>'


def _values(answer: Answer) -> Table:
    heads = (
        ("arm", ""),
        ("optimizer", ""),
        ("fixed", "options that are not searched"),
        ("test value", "mean over replicates with its 95 % t-interval"),
        ("best", ""),
        ("worst", ""),
        ("untrained", "replicates that count as the value before training"),
    )
    cells = []
    for name, arm in answer.arms.items():
        values = [replicate.value for replicate in arm.replicates]
        known = [value for value in values if math.isfinite(value)]
        best, worst = (min, max) if answer.direction == "min" else (max, min)
        mean = interval_text(mean_interval(known)) if known else "-"
        cells.append(
            [
                word(name),
                prose(arm.optimizer),
                prose(listed(arm.fixed) or "-"),
                Cell(mean, statistics.fmean(known) if known else None),
                number(best(known) if known else None),
                number(worst(known) if known else None),
                number(sum(bool(replicate.untrained) for replicate in arm.replicates)),
            ]
        )
    return Table("values", heads, cells, sortable=False)


def _replicates(answer: Answer) -> Table:
    numbers = sorted({replicate.number for arm in answer.arms.values() for replicate in arm.replicates})
    heads = (("replicate", ""), *((name, "") for name in answer.arms))
    cells = []
    for each in numbers:
        found = [next((r for r in arm.replicates if r.number == each), None) for arm in answer.arms.values()]
        cells.append(
            [
                word(each),
                *(
                    Cell("-")
                    if one is None
                    else Cell(
                        f"{one.value:.5g}{' (untrained)' if one.untrained else ''}",
                        one.value,
                        title=f"{listed(one.chosen)} {one.untrained}".strip(),
                    )
                    for one in found
                ),
            ]
        )
    return Table("replicates", heads, cells, title="Test value of every replicate", folded=True, sortable=False)


def _trials(answer: Answer) -> str:
    cards = []
    for index, (name, svg) in enumerate(figures.trial_panels(answer)):
        label = f'<span class="key-dot"></span><span class="name">{html.escape(name)}</span>'
        cards.append(f'<figure><h5 class="{figures.look(index)}">{label}</h5>{svg}</figure>')
    size = {1: " one", 2: " two"}.get(len(cards), "")
    return f'<div class="panels{size}">{"".join(cards)}</div><p class="note">{html.escape(_TRIALS)}</p>'


def _curves(answer: Answer) -> str:
    if answer.epochs == 1:
        return '<p class="note">One epoch: there are no curves.</p>'
    line = 'viewBox="0 0 30 10" aria-hidden="true"><path class="line curve" d="M1 5L29 5"/></svg>'
    items = "".join(
        f'<li><svg class="{figures.look(index)}" {line}{html.escape(name)}</li>'
        for index, name in enumerate(answer.arms)
    )
    return f'<ul class="key">{items}</ul>{_figure(figures.curves(answer), _CURVES)}'


def _cost(answer: Answer) -> Table:
    heads = (
        ("arm", ""),
        ("ms per step", "of the optimizer alone, median over runs; a dash where the lab does not train"),
        ("seconds per run", "median"),
        ("peak memory", "on a GPU"),
        ("runs", ""),
        ("failed", ""),
        ("all runs", "hours, minutes, seconds together"),
    )
    cells = []
    for name, arm in answer.arms.items():
        runs = list(_runs(arm))
        seconds = [run.seconds for run in runs if math.isfinite(run.seconds)]
        peak = max((run.peak_bytes for run in runs), default=0)
        total = math.fsum(seconds)
        cells.append(
            [
                word(name),
                number(_median(run.step_ms for run in runs), 3),
                number(_median(seconds), 3),
                number(peak / 2**20, 4, " MiB") if peak else Cell("-"),
                number(len(runs), 9),
                number(sum(bool(run.failed) for run in runs)),
                Cell(duration(total), total),
            ]
        )
    return Table("cost", heads, cells, sortable=False)


def _median(values: Any) -> float | None:
    known = [value for value in values if math.isfinite(value)]
    return statistics.median(known) if known else None


def _searched(answer: Answer) -> Iterator[str]:
    note = "A dot is the value that a replicate chose; the outer tenths of each range are darker."
    yield f'<p class="note">{note}</p>'
    for index, (name, arm) in enumerate(answer.arms.items()):
        label = f'<span class="key-dot"></span><span class="name">{html.escape(name)}</span>'
        yield f'<h5 class="{figures.look(index)}">{label}</h5>'
        if not arm.search:
            yield "<p>Not tuned.</p>"
            continue
        strips = "".join(f"<div>{_strip_words(arm, o)}{figures.strip(arm, index, o)}</div>" for o in arm.search)
        yield f'<div class="searched">{strips}</div>'


def _strip_words(arm: Arm, option: str) -> str:
    near, all_of_them = arm.near_end.get(option, 0), len(arm.replicates)
    many = near > OFTEN * all_of_them
    said = f"; near an end in {near} of {all_of_them}" if near else ""
    css = ' class="many"' if many else ""
    return f"<p><b>{html.escape(option)}</b> {html.escape(arm.search[option])}<span{css}>{said}</span></p>"


def _failures(answer: Answer) -> Iterator[str]:
    for name, arm in answer.arms.items():
        for replicate in arm.replicates:
            for run in (*replicate.trials, *replicate.reports):
                if run.failed:
                    yield f"{name}, replicate {replicate.number}, {listed(run.point) or 'defaults'}: {run.failed}"


def _provenance(facts: Mapping[str, Any]) -> str:
    rows, texts = [], []
    for name, value in facts.items():
        if isinstance(value, str) and "\n" in value:
            texts.append(f"<h4>{html.escape(str(name))}</h4><pre>{html.escape(value.strip())}</pre>")
        else:
            rows.append(f"<dt>{html.escape(str(name))}</dt><dd>{html.escape(_said(value))}</dd>")
    return f'<dl class="facts-list">{"".join(rows)}</dl>{"".join(texts)}'


def _said(value: Any) -> str:
    """Whatever a fact is, on one line; what is empty is left out."""
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_said(item)}" for name, item in value.items() if item or item is False)
    return " ".join(map(str, value)) if isinstance(value, (list, tuple)) else "none" if value is None else str(value)


def _runs(arm: Arm) -> Iterator[Run]:
    for replicate in arm.replicates:
        yield from replicate.trials
        yield from replicate.reports
