"""Markdown tables from the figures that ``step_time.py``, ``any_base.py`` and ``training_share.py`` wrote with ``--json``.

python benchmarks/render.py benchmarks/results/h200_roberta_adam.json
python benchmarks/render.py --write          # the tables between the markers in docs/performance.md, from all of them
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
PAGE = Path(__file__).parents[1] / "docs" / "performance.md"


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


def write() -> None:
    """Fill in what stands between ``<!-- NAME -->`` and ``<!-- end -->`` on the page."""
    text = PAGE.read_text()
    for path in sorted(RESULTS.glob("*.json")):
        begin, end = f"<!-- {path.stem} -->\n", "\n<!-- end -->"
        if begin not in text:
            raise SystemExit(f"{PAGE.name} has no place for {path.name}")
        before, rest = text.split(begin, 1)
        text = before + begin + table(path) + end + rest.split(end, 1)[1]
    PAGE.write_text(text)


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
