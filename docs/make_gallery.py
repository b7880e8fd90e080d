"""Makes docs/gallery.md and docs/gallery/*.svg: ``python docs/make_gallery.py --ledger gallery.db``.

Every entry of ``SHOTS`` is one ``critgrad analyze`` (or ``ablate``) command with small settings, so that the whole gallery
takes minutes on two cores. What the ledger has is not run again, so a stopped run goes on with the same command. MNIST is
looked for as by every command of the lab (``CRITGRAD_DATA``, the cache, a download). ``--no-run`` shows what the ledger has
and leaves the commands of the rest.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from critgrad.lab.commands import checkpoint_folder
from critgrad.lab.ledger import Ledger, Row
from critgrad.lab.run.coordinator import Event, run_jobs
from critgrad.paper.analyses import ANALYSES, Options

DOCS = Path(__file__).parent
PAGE = DOCS / "gallery.md"
FIGURES = DOCS / "gallery"

Table = tuple[Sequence[str], Sequence[Sequence[Any]]]


@dataclass(frozen=True)
class Shot:
    """One analysis on one task, as small as the gallery needs it."""

    analysis: str
    task: str
    seeds: int
    settings: tuple[tuple[str, Any], ...] = ()

    @property
    def options(self) -> Options:
        """For the analysis."""
        return Options(self.seeds, dict(self.settings))

    @property
    def command(self) -> str:
        """What a reader types."""
        verb = "ablate" if self.analysis == "ablation" else f"analyze {self.analysis}"
        settings = "".join(f" --set {name}={value}" for name, value in self.settings)
        return f"critgrad {verb} {self.task} --seeds {self.seeds}{settings} --ledger gallery.db"


SHORT = (("epochs", 3),)
SHOTS = (
    Shot("staleness", "digits-mlp", 3),
    Shot("staleness", "mnist-mlp", 2, SHORT),
    Shot("staleness", "mnist-logreg", 2, SHORT),
    Shot("gt-vs-gc", "digits-mlp", 3),
    Shot("gt-vs-gc", "mnist-mlp", 2, SHORT),
    Shot("sensitivity", "digits-mlp", 3),
    Shot("ablation", "digits-mlp", 3),
    Shot("damping", "digits-mlp", 3),
    Shot("damping", "mnist-mlp", 2, SHORT),
    Shot("convex", "mnist-logreg", 2),
    Shot("noise", "noise-logreg", 3),
    Shot("runtime", "mnist-mlp", 3),
    Shot("spectrum", "digits-mlp", 1),
)

WORDS = {
    "staleness": (
        "Staleness",
        "How old are the stored gradients? Ages in steps at the end of every epoch, over all epochs and seeds. `topC` is the "
        "least that a full memory can have; what lies beyond it is what `decay` adds. "
        "[The bound](theory.md#staleness), and when there is none.",
    ),
    "gt-vs-gc": (
        "Stored and current norms",
        "The mean norm of the stored gradients (`gc`) against the norm of the current one (`gt`), per epoch. A ratio of 1 "
        "means that the memory holds gradients like any other.",
    ),
    "sensitivity": (
        "Sensitivity to topC and decay",
        "The test metric over a grid of both, everything else as chosen for the task (here: the lab's starting values where "
        "no fair sweep has chosen). One learning rate for all cells, so a cell that wants another one looks worse than it is.",
    ),
    "ablation": (
        "Ablations",
        "Selection, replacement and aggregation, one at a time. The differences are paired with the default variant on the "
        "same seeds; with few seeds the intervals are wide. Descriptive: nothing is corrected for the number of comparisons.",
    ),
    "damping": (
        "What damping does",
        "The share of `|g|^2` that lies in the span of the memory, and the length of the damped direction, `|d| / |g|`, over "
        "training. [Adding and damping](damping.md).",
    ),
    "convex": (
        "A convex task",
        "Training loss of logistic regression. The optimizers run at the lab's starting values where no fair sweep has chosen, "
        "so this shows that they converge, not which is best.",
    ),
    "noise": (
        "Label noise",
        "Accuracy with a share of the labels redrawn, at the appendix's fixed settings (lr 1e-3 for all). At so small a "
        "learning rate a larger step looks like robustness: compare the optimizers at 0 first.",
    ),
    "runtime": (
        "Time against topC",
        "Median time of `optimizer.step()` and of an epoch. The paper's own times grow with `topC`; here an adding memory "
        "costs the same at any size ([why](performance.md#how-it-is-done)).",
    ),
    "spectrum": (
        "State per parameter",
        "Bytes of optimizer state per parameter, measured. The parameter itself (4 bytes) is not counted.",
    ),
}


# -- numbers under the figures -----------------------------------------------------------------------------------------


def _show(value: Any, digits: int = 4) -> str:
    if value is None:
        return "-"
    return f"{value:.{digits}g}" if isinstance(value, float) else str(value)


def _staleness(data: Mapping[str, Any]) -> Table:
    rows = [(c["topC"], c["decay"], round(c["mean"], 1), round(c["median"]), c["max"]) for c in data["cells"]]
    return ("topC", "decay", "mean age", "median", "largest"), rows


def _norms(data: Mapping[str, Any]) -> Table:
    return ("topC", "gc / gt, median"), [(line["topC"], round(line["ratio"], 2)) for line in data["lines"]]


def _sensitivity(data: Mapping[str, Any]) -> Table:
    decays = sorted({cell["decay"] for cell in data["cells"]})
    cells = {(cell["topC"], cell["decay"]): cell["test"] for cell in data["cells"]}
    rows = [(topC, *[cells.get((topC, d)) for d in decays]) for topC in sorted({c["topC"] for c in data["cells"]})]
    return (f"topC ({data['optimizer']}, {data['metric']})", *[f"decay {d:g}" for d in decays]), rows


def _ablation(data: Mapping[str, Any]) -> Table:
    rows = []
    for study, found in data["studies"].items():
        for row in found:
            diff = row["difference"]
            text = f"{diff['mean']:+.2f} ({diff['low']:+.2f} to {diff['high']:+.2f})" if diff else "default"
            rows.append((study, row["optimizer"], row["variant"], row["test"], text))
    return ("study", "optimizer", "variant", f"test {data['metric']}", "minus the default (95 %)"), rows


def _damping(data: Mapping[str, Any]) -> Table:
    def ends(values: Sequence[float]) -> str:
        return f"{values[0]:.2f} to {values[-1]:.2f}"

    rows = [(line["optimizer"], ends(line["span_share"]), ends(line["damped_ratio"])) for line in data["lines"]]
    return ("optimizer", "share in the span, first to last epoch", "length of d over g, first to last"), rows


def _convex(data: Mapping[str, Any]) -> Table:
    rows = [(line["optimizer"], line["mean"][0], line["mean"][-1], line["diverged"]) for line in data["lines"]]
    return ("optimizer", "training loss, first epoch", "last epoch", "diverged"), rows


def _noise(data: Mapping[str, Any]) -> Table:
    flips = sorted({point["flip_y"] for line in data["lines"] for point in line["points"]})
    rows = [(line["optimizer"], *[point["test"] for point in line["points"]]) for line in data["lines"]]
    return ("optimizer", *[f"{flip:g}" for flip in flips]), rows


def _runtime(data: Mapping[str, Any]) -> Table:
    rows = [(p["topC"], p["step_ms"], p["epoch_seconds"], p["epoch_ratio"]) for p in data["points"]]
    return ("topC", "step, ms", "epoch, s", "epoch, to topC 0"), rows


def _spectrum(data: Mapping[str, Any]) -> Table:
    return ("optimizer", "bytes per parameter"), [(row["label"], round(row["bytes"], 2)) for row in data["rows"]]


TABLES: dict[str, Callable[[Mapping[str, Any]], Table]] = {
    "staleness": _staleness,
    "gt-vs-gc": _norms,
    "sensitivity": _sensitivity,
    "ablation": _ablation,
    "damping": _damping,
    "convex": _convex,
    "noise": _noise,
    "runtime": _runtime,
    "spectrum": _spectrum,
}


def markdown_table(table: Table) -> str:
    """Heads and rows as Markdown."""
    heads, rows = table
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    return "\n".join(lines + ["| " + " | ".join(_show(cell) for cell in row) + " |" for row in rows])


# -- running, drawing, writing -----------------------------------------------------------------------------------------


def run(ledger: Path, shots: Sequence[Shot], workers: int | None) -> None:
    """Run what is missing."""
    with Ledger.open(ledger, write=True, create=True) as book:
        for shot in shots:
            analysis = ANALYSES[shot.analysis]
            if analysis.measure is not None:
                book.put_analysis(shot.analysis, shot.task, "", analysis.measure(shot.task), {}, [])
                continue
            planned = analysis.plan(book, shot.task, shot.options)
            print(shot.command, f"({len(planned)} runs to do)", flush=True)
            outcome = run_jobs(
                planned, book, workers=workers, checkpoints=checkpoint_folder(ledger), on_event=_failures
            )
            if outcome.interrupted or outcome.failed:
                raise SystemExit(outcome.text)


def collect(ledger: Path, shots: Sequence[Shot]) -> dict[Shot, dict[str, Any]]:
    """The numbers of every shot; none for one that the ledger does not have as a whole."""
    found: dict[Shot, dict[str, Any]] = {}
    with Ledger.open(ledger) as book:
        for shot in shots:
            analysis = ANALYSES[shot.analysis]
            if analysis.measure is not None:
                kept = book.analyses(shot.analysis, shot.task)
                found[shot] = dict(kept[-1].data) if kept else {}
                continue
            keys = {item.trial.key for item in analysis.trials(shot.task, shot.options)}
            rows = [row for row in analysis.rows(book, shot.task) if row.key in keys]
            whole = len(rows) == len(keys)
            found[shot] = {**analysis.collect(shot.task, rows), "machine": machine(rows[0])} if whole else {}
    return found


def _failures(event: Event) -> None:
    if event.kind == "failed":
        print(f"failed: {event.trial}: {event.text}", flush=True)


def machine(row: Row) -> str:
    """Where a run was made."""
    known = row.provenance
    return f"{known['accelerator'] or known['cpu']}, {known['threads']} thread(s) per run, torch {known['torch']}"


def draw(ledger: Path, shots: Sequence[Shot]) -> dict[Shot, list[Path]]:
    """Export the report's figures, and keep those of the shots under docs/gallery."""
    from critgrad.paper.report import write_report

    FIGURES.mkdir(exist_ok=True)
    for old in FIGURES.glob("*.svg"):
        old.unlink()
    kept: dict[Shot, list[Path]] = {shot: [] for shot in shots}
    with tempfile.TemporaryDirectory() as folder:
        written = write_report(ledger, Path(folder) / "report.html", formats=("svg",), title="critgrad gallery")
        for path in (path for path in map(Path, written) if path.suffix == ".svg"):
            owner = next((shot for shot in shots if _belongs(path.stem, shot)), None)
            if owner is not None:
                kept[owner].append(Path(shutil.copy(path, FIGURES / path.name)))
    return kept


def _belongs(stem: str, shot: Shot) -> bool:
    name = f"{shot.analysis}-{shot.task}"
    return stem == name or stem.startswith(name + "-")


def alt(shot: Shot, path: Path) -> str:
    """What a figure shows, for who does not see it."""
    rest = path.stem.removeprefix(f"{shot.analysis}-{shot.task}").strip("-").replace("-", " ")
    which = f"topC {rest}" if shot.analysis == "staleness" else rest
    return f"{WORDS[shot.analysis][0]}: {shot.task}" + (f", {which}" if which else "")


def page(found: Mapping[Shot, Mapping[str, Any]], figures: Mapping[Shot, Sequence[Path]]) -> str:
    """The whole page."""
    machines = sorted({data["machine"] for data in found.values() if "machine" in data})
    parts = [HEAD.format(machines="; ".join(machines) or "nothing yet")]
    last = None
    for shot, data in found.items():
        title, words = WORDS[shot.analysis]
        if shot.analysis != last:
            parts.append(f"## {title}\n\n{words}")
            last = shot.analysis
        parts.append(f"### {title}: {shot.task}\n\n```sh\n{shot.command}\n```")
        if not data:
            parts.append("(Not run here yet.)")
            continue
        images = [f'<img src="gallery/{path.name}" alt="{alt(shot, path)}">' for path in figures.get(shot, ())]
        if images:
            parts.append('<div class="figures">\n' + "\n".join(images) + "\n</div>")
        table = markdown_table(TABLES[shot.analysis](data))
        parts.append(table if table.count("\n") < 14 else _folded(table))
    return "\n\n".join(parts) + "\n"


def _folded(table: str) -> str:
    return f"<details markdown><summary>The numbers</summary>\n\n{table}\n\n</details>"


HEAD = """\
# Gallery

<!-- written by `python docs/make_gallery.py`; change it there -->

In short: the paper's analyses on digits and MNIST, with few seeds and short runs. They are pictures of how the memory
behaves, not evidence for or against it: how old its gradients are, how long beside the current one, what `topC` and `decay`
do, what damping takes away, what a step costs. At `decay` .7 most gradients are accepted and the memory is nearly a moving
window; towards 1 it grows old. What counts as evidence is in [the protocol](protocol.md).

Each command runs what its ledger lacks and prints the numbers below; then one command draws all figures:

```sh
critgrad report --ledger gallery.db --out gallery.html --format svg
```

`python docs/make_gallery.py --ledger gallery.db` does all of it and writes this page. Without `--set epochs=3` and with
`--seeds 5` the MNIST analyses have the paper's size. Not here: `critgrad analyze decompose digits-mlp`, which reads a finished
[fair sweep](lab.md#sweep-tune-fairly).

Made on: {machines}."""


def main() -> None:
    """Run, draw, write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--ledger", type=Path, default=Path("gallery.db"))
    parser.add_argument("--workers", type=int, help="processes (default: one per core)")
    parser.add_argument("--no-run", action="store_true", help="show what the ledger has")
    parser.add_argument("--only", action="append", help="names of analyses; the page then has these alone")
    args = parser.parse_args()
    shots = [shot for shot in SHOTS if not args.only or shot.analysis in args.only]
    if not args.no_run:
        run(args.ledger, shots, args.workers)
    found = collect(args.ledger, shots)
    figures = draw(args.ledger, [shot for shot in shots if found[shot]])
    PAGE.write_text(page(found, figures), encoding="utf-8")
    print(f"{PAGE}, {sum(map(len, figures.values()))} figures in {FIGURES}")


if __name__ == "__main__":
    main()
