"""A page for each analysis, with the tables of every task that has its runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from critgrad.lab.stats import Interval
from critgrad.lab.tasks import task_of
from critgrad.lab.words import counted

from ..protocol.paper_values import RUN_TIME_TOPC, RUN_TIMES
from .damped import damped_page
from .findings import Findings, Study
from .text import fixed, interval, page, short, table, values


def _outcome(cell: Mapping[str, Any]) -> str:
    found = Interval(cell["test"], cell["low"], cell["high"], cell["runs"])
    counts = [(cell["diverged"], "diverged"), (cell["at_worst"], "at the worst value")]
    lost = ", ".join(f"{count}/{cell['runs']} {what}" for count, what in counts if count)
    return interval(found) + (f" ({lost})" if lost else "")


def _seeds(counts: set[int]) -> str:
    return (
        " or ".join(map(str, sorted(counts)[:-1])) + (" or " if len(counts) > 1 else "") + counted(max(counts), "seed")
    )


FAR = 1.5  # times worse than a tuned base: what such runs differ in is the beginning of training


def _far_from_trained(findings: Findings, study: Study, values_found: Iterable[float]) -> str:
    """A sentence where even the best of a study's runs are far from what a tuned base reaches on the same task."""
    higher = study.data["higher_is_better"]
    best = max if higher else min
    arms = [arm for outcome in findings.judged if outcome.task == study.task for arm in outcome.arms]
    reached = best((arm.test.mean for arm in arms if arm.arm == "base"), default=None)
    found = best(values_found, default=None)
    if reached is None or found is None or (reached < FAR * found if higher else found < FAR * reached):
        return ""
    return (
        f"Far from trained: the best of these runs have {short(found, 4)}, the best tuned base of the fair experiment "
        f"{short(reached, 4)}. What differs here is the beginning of training.\n\n"
    )


def _sensitivity(findings: Findings) -> str:
    text = ""
    for study in findings.studies("sensitivity"):
        data = study.data
        decays = sorted({cell["decay"] for cell in data["cells"]})
        chosen = (data["chosen"]["topC"], data["chosen"]["decay"])
        cells = {(cell["topC"], cell["decay"]): _outcome(cell) for cell in data["cells"]}
        cells = {at: f"**{text}**" if at == chosen else text for at, text in cells.items()}
        sizes = sorted({cell["topC"] for cell in data["cells"]})
        text += f"\n## {study.title()}\n\n{data['optimizer']}, test {data['metric']}, "
        text += f"{_seeds({cell['runs'] for cell in data['cells']})}; runs that vary nothing have "
        text += f"{values(data['chosen'])}{' (bold)' if chosen in cells else ''}.\n\n"
        text += _far_from_trained(findings, study, [cell["test"] for cell in data["cells"]])
        if len(cells) > len(sizes) * len(decays) / 2:
            rows = [[str(topC), *[cells.get((topC, decay), "missing") for decay in decays]] for topC in sizes]
            text += table(("topC", *[f"decay {decay:g}" for decay in decays]), rows, [f"decay {d:g}" for d in decays])
            continue
        listed = sorted(cells.items(), key=lambda item: (item[0][0] != chosen[0], item[0]))  # one line, then the other
        rows = [[str(topC), f"{decay:g}", cell] for (topC, decay), cell in listed]
        text += table(("topC", "decay", f"test {data['metric']}"), rows, ("topC", "decay"))
    return f"# Sensitivity to topC and decay\n{text}" if text else ""


def _ablation(findings: Findings) -> str:
    text = ""
    for study in findings.studies("ablation"):
        rows = []
        for name, variants in study.data["studies"].items():
            for row in variants:
                d = row["difference"]
                minus = interval(Interval(d["mean"], d["low"], d["high"], row["runs"]), "+") if d else "the default"
                rows.append([name, row["optimizer"], row["variant"], _outcome(row), minus])
        every = [row for variants in study.data["studies"].values() for row in variants]
        text += f"\n## {study.title()}\n\n{_seeds({row['runs'] for row in every})}; differences are paired by seed, "
        text += "positive where the variant is better.\n\n" + _far_from_trained(
            findings, study, [r["test"] for r in every]
        )
        head = ("what is varied", "optimizer", "variant", f"test {study.data['metric']}", "minus the default")
        text += table(head, rows, head[3:])
    return page("ablations", tables=text) if text else ""


def _norms(findings: Findings) -> str:
    rows = []
    for study in findings.studies("gt-vs-gc"):
        for line in study.data["lines"]:
            first, last = (line["gc"][at] / line["gt"][at] if line["gt"][at] else float("nan") for at in (0, -1))
            found = [short(line["ratio"]), short(first), short(last), short(line["test"], 4)]
            rows.append([study.title(), str(line["topC"]), str(line["runs"]), *found])
    if not rows:
        return ""
    head = ("task", "topC", "seeds", "ratio, median", "first epoch", "last epoch", "test")
    return page("norms", table=table(head, rows, head[1:]), clipped=_clipped_away(findings))


def _clipped_away(findings: Findings) -> str:
    """The tasks where every gradient looked at had the length to which it is clipped: no norm says anything."""
    tasks = []
    for study in findings.studies("gt-vs-gc"):
        clip = study.settings.get("clip", task_of(study.task).clip)
        norms = [norm for line in study.data["lines"] for name in ("gt", "gc") for norm in line[name]]
        if clip is not None and norms and all(abs(norm - clip) <= 1e-3 * clip for norm in norms):
            tasks.append(f"{study.task} (at {clip:g})")
    return ", ".join(tasks)


def _runtime(findings: Findings) -> str:
    studies = findings.studies("runtime")
    if not studies:
        return ""
    rows: list[list[str]] = []
    devices = sorted({str(study.data["device"]) for study in studies})
    for task in dict.fromkeys([*RUN_TIMES, *(study.task for study in studies)]):
        known = [study for study in studies if study.task == task]
        for study in known:
            points = {point["topC"]: point for point in study.data["points"]}
            seeds = _seeds({point["runs"] for point in points.values()})
            times = [_seconds(points.get(topC)) for topC in RUN_TIME_TOPC]
            rows.append([study.title(without="epochs"), f"here, s ({seeds})", *times])
        if not known:
            rows.append([task, "here", *["not run" for _ in RUN_TIME_TOPC]])
        if theirs := RUN_TIMES.get(task):
            rows.append([task, "paper, min", *[_minutes(value, theirs[0]) for value in theirs]])
    head = ("task", "epoch", *[f"topC {topC}" for topC in RUN_TIME_TOPC])
    return page("run-times", devices=", ".join(devices), table=table(head, rows, head[2:]))


def _seconds(point: Mapping[str, Any] | None) -> str:
    if point is None:
        return "missing"
    ratio = "" if not point["topC"] or point["epoch_ratio"] is None else f" ({fixed(point['epoch_ratio'], 2)})"
    return short(point["epoch_seconds"]) + ratio


def _minutes(value: float | None, base: float | None) -> str:
    if value is None:
        return "NA"
    return f"{value:g}" + (f" ({fixed(value / base, 2)})" if base and value != base else "")


def _noise(findings: Findings) -> str:
    text = ""
    for data in findings.analysis("noise"):
        every = [point for line in data["lines"] for point in line["points"]]
        flips = sorted({point["flip_y"] for point in every})
        rows = []
        for line in data["lines"]:
            points = {point["flip_y"]: point for point in line["points"]}
            rows.append([line["optimizer"], *[_percent(points.get(flip)) for flip in flips]])
        runs = sorted({point["runs"] for point in every})
        head = ("optimizer", *[f"{flip:g}" for flip in flips])
        made = table(head, rows, head[1:])
        text += page("label-noise", task=data["task"], seeds=" or ".join(map(str, runs)), table=made) + "\n"
    return text


def _percent(point: Mapping[str, Any] | None) -> str:
    if point is None:
        return "-"
    return f"{fixed(point['test'], 0)} ({fixed((point['high'] - point['low']) / 2, 0)})"


# Each only where there are runs.
PAGES: Mapping[str, Callable[[Findings], str]] = {
    "sensitivity": _sensitivity,
    "ablations": _ablation,
    "norms": _norms,
    "inside-damping": damped_page,
    "run-times": _runtime,
    "label-noise": _noise,
}
