"""Markdown tables from the figures that ``step_time.py``, ``any_base.py`` and ``training_share.py`` wrote with ``--json``.

python benchmarks/render.py benchmarks/results/h200_roberta_adam.json
python benchmarks/render.py --write          # the tables between the markers in docs/performance.md and docs/cost.md
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
DOCS = Path(__file__).parents[1] / "docs"
PAGE, COST = DOCS / "performance.md", DOCS / "cost.md"


def step_table(report: dict[str, Any]) -> str:
    """One table per model: what was stepped, how long it took, against what."""
    out = [
        f"{report['machine']}; copy bandwidth {report['copy_bandwidth'] / 1e9:.0f} GB/s; base optimizer: {report['optimizer']}."
    ]
    for model, rows in report["models"].items():
        out.append(f"\n**{model}**, {rows[0]['values']:,} parameters in {rows[0]['tensors']} tensors:\n")
        out.append(
            "| path | topC | memory | aggr | ms, median (quartiles) | x torch's fused | of copy bandwidth | peak MB |"
        )
        out.append("|---|---|---|---|---|---|---|---|")
        for row in rows:
            found = row["result"]
            if "seconds" not in found:
                out.append(f"| {row['path']} | {row['topC']} | {row['memory']} | {row['aggr']} | {row['note']} | | | |")
                continue
            ms = {key: 1000 * value for key, value in found["seconds"].items()}
            out.append(
                f"| {row['path']} | {row['topC'] or '-'} | {row['memory'] or '-'} | {row['aggr']} | {ms['median']:.3f} "
                f"({ms['low']:.3f}-{ms['high']:.3f}) | {found['ratio']['median']:.2f} | {found['share_of_copy']:.0%} | "
                f"{found['peak_bytes'] / 1e6:.0f} |"
            )
    return "\n".join(out)


def share_table(report: dict[str, Any]) -> str:
    out = ["| optimizer | whole step, ms | optimizer, ms | share |", "|---|---|---|---|"]
    for name, found in report.items():
        out.append(f"| {name} | {found['whole_ms']:.2f} | {found['optimizer_ms']:.2f} | {found['share']:.1%} |")
    return "\n".join(out)


def floor_table(report: dict[str, Any]) -> str:
    """The bare loop beside the optimizer, as multiples of torch's fused step."""
    out = [
        f"{report['threads']} threads, torch {report['torch']}; multiples of torch's fused Adam, median (quartiles).\n",
        "| model | topC | aggr | bare loop of the same operations | plain path |",
        "|---|---|---|---|---|",
    ]
    for model, rows in report["models"].items():
        for bare, plain in zip(rows[::2], rows[1::2], strict=True):
            both = [f"{r['median']:.2f} ({r['low']:.2f}-{r['high']:.2f})" for r in (bare["ratio"], plain["ratio"])]
            out.append(f"| {model} | {bare['topC']} | {bare['aggr']} | {both[0]} | {both[1]} |")
    return "\n".join(out)


def any_base_table(report: dict[str, Any]) -> str:
    """What the memory adds to each base's step, beside what its bytes would take."""
    out = [f"{report['machine']}; copy bandwidth {report['copy_bandwidth'] / 1e9:.0f} GB/s; medians (quartiles), ms.\n"]
    relative = "fused_adam" in report["any_base"][0]
    last = " in steps of fused Adam |" if relative else ""
    out += ["| model | base | memory | engine | base alone | with it | added | bytes |" + last]
    out += ["|---|---|---|---|---|---|---|---|" + ("---|" if relative else "")]
    for row in report["any_base"]:
        numbers = [
            {key: 1000 * value for key, value in row[name].items()} for name in ("base", "with_memory", "difference")
        ]
        ms = [f"{n['median']:.3f} ({n['low']:.3f} to {n['high']:.3f})" for n in numbers]
        cells = [row["model"], row["base_name"], f"{row['aggr']} {row['topC']} {row['memory']}", row["engine"], *ms]
        cells.append(f"{1000 * row['floor']:.3f}")
        if relative:
            cells.append(f"{row['difference']['median'] / row['fused_adam']['median']:.2f}")
        out.append("| " + " | ".join(cells) + " |")
    return "\n".join(out)


def table(path: Path) -> str:
    report = json.loads(path.read_text())
    if "any_base" in report:
        return any_base_table(report)
    if "threads" in report:
        return floor_table(report)
    return step_table(report) if "models" in report else share_table(report)


def read(name: str) -> dict[str, Any]:
    report: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text())
    return report


def milliseconds(seconds: dict[str, float] | None) -> str:
    return "-" if seconds is None else f"{1000 * seconds['median']:.2f}"


def cost_on_gpu() -> str:
    """Each base alone, with an adding memory of 20 slots and with a damping one of 10: RoBERTa-base's shapes, ms."""
    found: dict[str, dict[tuple[str, str], dict[str, float]]] = {}
    names = {"sgd": "SGD", "sgdm": "SGD with momentum", "rmsprop": "RMSprop", "nadam": "NAdam"}
    for name, label in names.items():
        reports = [read(f"h200_roberta_{name}{of}") for of in ("", "_damping") if name != "nadam" or of]
        for row in (row for report in reports for row in report["models"]["roberta"]):
            kind = ("fisher" if row["aggr"] == "fisher" else "adding", row["memory"])
            key = ("alone", "") if row["path"] == "torch foreach" else kind if row["path"] == "fused" else None
            if key and "seconds" in row["result"]:
                found.setdefault(label, {}).setdefault(key, row["result"]["seconds"])
    report = read("h200_any_base")
    for row in report["any_base"]:
        cells = found.setdefault(row["base_name"], {})
        cells.setdefault(("alone", ""), row["base"])
        cells[("fisher" if row["aggr"] == "fisher" else "adding", row["memory"])] = row["with_memory"]
    keys = [("alone", ""), ("adding", "float32"), ("fisher", "float32"), ("fisher", "bfloat16")]
    out = [f"{report['machine']}; medians, ms.\n"]
    out += ["| base | alone | adding, `topC=20` | damping, `topC=10` | the same, bfloat16 |", "|---|--:|--:|--:|--:|"]
    for label, cells in found.items():
        out.append(f"| {label} | " + " | ".join(milliseconds(cells.get(key)) for key in keys) + " |")
    return "\n".join(out)


def cost_on_cpu() -> str:
    """Each base alone, with an adding memory of 5 slots and with a damping one of 10, ms and times the base."""
    report = read("cpu_any_base")
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for row in report["any_base"]:
        found.setdefault((row["model"], row["base_name"]), {})[row["aggr"]] = row
    out = [f"{report['machine']}; medians, ms.\n"]
    out += ["| model | base | alone | adding, `topC=5` | times | damping, `topC=10` | times |"]
    out += ["|---|---|--:|--:|--:|--:|--:|"]
    for (model, base), rows in found.items():
        cells = [model, base, milliseconds(rows["mean"]["base"])]
        for aggr in ("mean", "fisher"):
            times = rows[aggr]["with_memory"]["median"] / rows[aggr]["base"]["median"]
            cells += [milliseconds(rows[aggr]["with_memory"]), f"{times:.2f}"]
        out.append("| " + " | ".join(cells) + " |")
    return "\n".join(out)


def filled(page: Path, tables: dict[str, str]) -> str:
    """The page with what stands between ``<!-- NAME -->`` and ``<!-- end -->`` made anew."""
    text = page.read_text()
    for name, made in tables.items():
        begin, end = f"<!-- {name} -->\n", "\n<!-- end -->"
        if begin not in text:
            raise SystemExit(f"{page.name} has no place for {name}")
        before, rest = text.split(begin, 1)
        text = before + begin + made + end + rest.split(end, 1)[1]
    return text


def pages() -> dict[Path, str]:
    """Both pages as they should be."""
    notes = {path.stem: table(path) for path in sorted(RESULTS.glob("*.json"))}
    costs = {
        "cost_gpu": cost_on_gpu(),
        "cost_cpu": cost_on_cpu(),
        "cost_share": table(RESULTS / "h200_training_share.json"),
    }
    return {PAGE: filled(PAGE, notes), COST: filled(COST, costs)}


def write() -> None:
    """Fill them in."""
    for page, text in pages().items():
        page.write_text(text)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("files", nargs="*", type=Path)
    parser.add_argument("--write", action="store_true")
    args = parser.parse_args()
    for path in args.files:
        print(table(path), end="\n\n")
    if args.write:
        write()


if __name__ == "__main__":
    main()
