"""What a memory costs on many ranks, computed: ``PYTHONPATH=src python benchmarks/scaling.py [--write]``.

Nothing is allocated. The formulas are compared with real optimizers in tests/distributed/test_scaling.py.
``--write`` puts the tables into docs/scaling.md.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from critgrad.memory.formats import FORMATS, SCALE_BLOCK

PAGE = Path(__file__).parents[1] / "docs" / "scaling.md"
MODELS = {"125 M": 125e6, "1.3 B": 1.3e9, "7 B": 7e9, "70 B": 70e9}
TOPC = (5, 20)
RANKS = (1, 8, 64, 1024)
DTYPES = ("float32", "bfloat16", "int8", "float8")
GIB = 2**30


def value_bytes(dtype: str) -> float:
    """Bytes of one stored value, its share of a scale included."""
    format_ = FORMATS[dtype]
    return format_.dtype.itemsize + (4 / SCALE_BLOCK if format_.scaled else 0)


def slot_bytes(parameters: float, topC: int, dtype: str) -> float:
    return parameters * topC * value_bytes(dtype)


def sum_bytes(parameters: float, aggr: str) -> float:
    """The running sum is float32; a memory that only damps keeps none."""
    return 0.0 if aggr == "fisher" else 4.0 * parameters


def numbers_sent(topC: int, aggr: str, dtype: str = "float32", cosine: bool = False) -> int:
    """Float64 values in the all-reduce of one memory and step."""
    if aggr != "fisher":
        return 3 if cosine else 1
    return 2 + topC * (1 if dtype == "float32" else 2)


def gib(size: float) -> str:
    size /= GIB
    return f"{size:.2f}" if size < 10 else f"{size:.1f}" if size < 100 else f"{size:.0f}"


def memory_table(aggr: str) -> list[str]:
    lines = [
        "| parameters | topC | memory_dtype | " + " | ".join(f"{n} rank{'s' * (n > 1)}" for n in RANKS) + " |",
        "|---|---|---|" + "---|" * len(RANKS),
    ]
    for model, parameters in MODELS.items():
        for topC in TOPC:
            for dtype in DTYPES:
                whole = slot_bytes(parameters, topC, dtype) + sum_bytes(parameters, aggr)
                # 8-bit slots are for plain parameters: one process, or DDP.
                ranks = [n if n == 1 or not FORMATS[dtype].scaled else None for n in RANKS]
                cells = ["-" if n is None else gib(whole / n) for n in ranks]
                lines.append(f"| {model} | {topC} | {dtype} | " + " | ".join(cells) + " |")
    return lines


def offload_table() -> list[str]:
    lines = ["| parameters | topC | memory_dtype | on the device | in host memory |", "|---|---|---|---|---|"]
    for model, parameters in MODELS.items():
        for topC in TOPC:
            for dtype in DTYPES:
                cells = gib(sum_bytes(parameters, "mean")), gib(slot_bytes(parameters, topC, dtype))
                lines.append(f"| {model} | {topC} | {dtype} | {cells[0]} | {cells[1]} |")
    return lines


def communication_table() -> list[str]:
    lines = ["| aggr | topC | memory_dtype | numbers | bytes |", "|---|---|---|---|---|"]
    cases = [("mean, sum, mid, ...", None, "any", numbers_sent(5, "mean"))]
    cases += [("the same with CDS or CSS", None, "any", numbers_sent(5, "mean", cosine=True))]
    cases += [("fisher", C, dtype, numbers_sent(C, "fisher", dtype)) for C in TOPC for dtype in ("float32", "bfloat16")]
    for aggr, topC, dtype, count in cases:
        lines.append(f"| {aggr} | {topC or 'any'} | {dtype} | {count} | {8 * count} |")
    return lines


TABLES = {
    "adding": lambda: memory_table("mean"),
    "damping": lambda: memory_table("fisher"),
    "offload": offload_table,
    "communication": communication_table,
}


def marks(name: str) -> tuple[str, str]:
    return f"<!-- {name}:begin -->", f"<!-- {name}:end -->"


def filled(page: str) -> str:
    for name, table in TABLES.items():
        begin, end = marks(name)
        before, rest = page.split(begin)
        page = before + begin + "\n" + "\n".join(table()) + "\n" + end + rest.split(end)[1]
    return page


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help="put the tables into docs/scaling.md")
    arguments = parser.parse_args()
    for name, table in TABLES.items():
        print(f"\n{name}\n" + "\n".join(table()))
    if arguments.write:
        PAGE.write_text(filled(PAGE.read_text()))


if __name__ == "__main__":
    main()
