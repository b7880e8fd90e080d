"""What the damping kernels compile to for an H100 or H200, without one: instructions of a value by kind, and registers.

    PYTHONPATH=src python benchmarks/kernel_code.py                       # the tunings in use
    PYTHONPATH=src python benchmarks/kernel_code.py --memory int8 --update 512,4 --dots 512,1,16,1,128

Triton brings the assembler and the disassembler. Counted are the instructions of the path that nearly all values take: the
update of a whole chunk, and the loop over whole tiles of the pass over the slots. ``convert`` counts integers made to floats,
an eighth of the rate of a multiplication; ``narrow`` loads and stores of less than 4 bytes; ``spill`` registers in memory.
The time is what 124.7 million values (RoBERTa-base) need if 4 instructions a cycle start on each of 132 processors.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from critgrad.engines.triton.launch import Dots, Tuning
from critgrad.engines.triton.measure_kernels import dots_kernel
from critgrad.engines.triton.update_kernels import update_kernel

TOOLS = Path(triton.__file__).parent / "backends/nvidia/bin"
MEMORIES = {  # bytes, type of a code, largest code
    "float32": (4, tl.float32, 0.0),
    "bfloat16": (2, tl.bfloat16, 0.0),
    "float16": (2, tl.float16, 0.0),
    "int8": (1, tl.int8, 127.0),
    "float8": (1, tl.int8, 448.0),
}
FAMILIES = {
    "adam": ("adam", 2),
    "nadam": ("nadam", 2),
    "rmsprop": ("rmsprop", 1),
    "sgdm": ("sgd", 1),
    "sgd": ("sgd", 0),
}
TYPES = {
    "chunks": "*i64", "tensors": "*i64", "grads": "*i64", "decisions": "*i64", "corrections": "*fp32",
    "weights": "*fp32", "out": "*fp32", "grams": "*fp64", "partials": "*fp64", "topC": "i32", "count": "i32",
}  # fmt: skip  # the rest are fp32, if they do not say otherwise
KINDS = {
    "float": ("FFMA", "FADD", "FMUL", "FMNMX", "FSETP", "FSEL"),
    "integer": ("IMAD", "IADD", "LOP3", "PRMT", "SHF", "LEA", "ISETP", "MOV", "SEL", "CS2R", "VIADD"),
    "special": ("MUFU",),
    "convert": ("I2F", "F2I", "I2I"),
    "shuffle": ("SHFL", "LDS", "STS", "BAR"),
    "load": ("LDG",),
    "store": ("STG",),
    "narrow": (".U8", ".U16", ".S8", ".S16"),
    "spill": ("LDL", "STL"),
}
VALUES, PER_SECOND = 124_697_433, 132 * 4 * 32 * 1.75e9

Instruction = tuple[str, str]


def compiled(kernel: Any, constants: dict[str, Any], warps: int, registers: int | None = None) -> Any:
    """``kernel`` for compute capability 9.0, as the launcher would have it: tables are aligned, numbers not special."""
    types = {p.name: p.annotation_type or TYPES.get(p.name, "fp32") for p in kernel.params}
    types.update(dict.fromkeys(constants, "constexpr"))
    source = ASTSource(
        fn=kernel,
        signature=types,
        constexprs={(kernel.arg_names.index(name),): value for name, value in constants.items()},
        attrs={(i,): [["tt.divisibility", 16]] for i, name in enumerate(kernel.arg_names) if types[name][0] == "*"},
    )
    options = {"num_warps": warps, "maxnreg": registers}
    return triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)


def _tool(name: str, cubin: bytes, *arguments: str) -> str:
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        return subprocess.run(
            [str(TOOLS / name), *arguments, file.name], capture_output=True, text=True, check=True
        ).stdout


def pieces(cubin: bytes) -> list[tuple[str, list[Instruction]]]:
    """The disassembled kernel from label to label: instructions with their arguments."""
    found: list[tuple[str, list[Instruction]]] = [("", [])]
    for line in _tool("nvdisasm", cubin, "-c").splitlines():
        if label := re.match(r"\s*(\.L_\S+):", line):
            found.append((label[1], []))
        elif code := re.search(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_.]*)(.*?);", line):
            found[-1][1].append((code[1], code[2]))
    return found


def wide_loads(code: Sequence[Instruction]) -> int:
    return sum(op.startswith("LDG") and op.endswith((".64", ".128")) for op, _ in code)


def main_path(cubin: bytes, loop: bool) -> list[Instruction]:
    """Of an update the piece with most wide loads, of the pass over the slots the loop with least narrow ones.

    Narrow ones are of the path with masks. In a pipelined loop loads go to shared memory, which has no narrow ones.
    """
    parts = pieces(cubin)
    if not loop:
        return max((code for _, code in parts), key=wide_loads)
    loops = [c for name, c in parts if name and any(op == "BRA" and f"({name})" in where for op, where in c)]
    loops = [code for code in loops if sum(op == "FFMA" for op, _ in code) > 10]
    return min(loops, key=lambda code: (sum("LDG" in op and "128" not in op for op, _ in code), -len(code)))


def line(name: str, kernel: Any, values: float, loop: bool) -> str:
    code = main_path(kernel.asm["cubin"], loop)
    used = re.search(r"REG:(\d+) STACK:(\d+)", _tool("cuobjdump", kernel.asm["cubin"], "-res-usage"))
    assert used is not None
    counts: Counter[str] = Counter()
    for op, _ in code:
        for kind, starts in KINDS.items():
            counts[kind] += any(s in op and op[:2] in ("LD", "ST") if s[0] == "." else op.startswith(s) for s in starts)
    figures = " ".join(f"{counts[kind] / values:8.2f}" for kind in KINDS)
    total = len([op for op, _ in code if op != "NOP"]) / values
    return f"{name:44} {used[1]:>4} {total:7.1f} {figures} {total * VALUES / PER_SECOND * 1000:7.3f}"


def update(memory: str, base: str, cut: tuple[int, int], topC: int, by_tensor: bool) -> str:
    _, code, largest = MEMORIES[memory]
    family, buffers = FAMILIES[base]
    constants = {
        "LR_TENSOR": False, "PICK": -1, "FAMILY": family, "BUFFERS": buffers, "DECOUPLED": False,
        "NESTEROV": False, "MAXIMIZE": False, "DAMPING": topC, "BY_TENSOR": by_tensor, "DTYPE": tl.float32, "CODE": code,
        "LARGEST": largest, "BLOCK": cut[0],
    }  # fmt: skip
    name = f"update {base} {memory} {cut[0]},{cut[1]}"
    return line(name, compiled(update_kernel, constants, cut[1]), cut[0] / (32 * cut[1]), loop=False)


def dots(memory: str, base: str, cut: Dots, topC: int, by_tensor: bool) -> str:
    _, code, largest = MEMORIES[memory]
    high = max(1 << (topC.bit_length() - 1), 2)
    constants = {
        "DTYPE": tl.float32, "CODE": code, "LARGEST": largest, "ROUNDED": memory != "float32",
        "FAMILY": FAMILIES[base][0], "COUNTS": base[:3] != "sgd", "BY_TENSOR": by_tensor,
        "WIDTH": triton.next_power_of_2(max(topC, 2)), "HIGH": high,
        "LOW": triton.next_power_of_2(max(topC - high, 2)), "SPLIT": topC > high,
        "SPAN": Tuning().own_span if by_tensor else cut.span, "BLOCK": cut.block, "STAGES": cut.stages, "EACH": cut.each,
    }  # fmt: skip
    kernel = compiled(dots_kernel, constants, cut.warps, cut.registers)
    name = f"dots {memory} {cut.block},{cut.warps},{cut.each},{cut.stages},{cut.registers or 0}"
    return line(name, kernel, cut.block / (32 * cut.warps), loop=True)


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(word) for word in text.split(","))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--memory", action="append", choices=MEMORIES)
    parser.add_argument("--base", action="append", choices=FAMILIES)
    parser.add_argument("--topC", type=int, default=10)
    parser.add_argument("--by-tensor", action="store_true", help='scope="tensor": a memory for each tensor')
    parser.add_argument("--update", action="append", type=_numbers, help="block,warps")
    parser.add_argument("--dots", action="append", type=_numbers, help="block,warps,each,stages,registers (0: any)")
    args = parser.parse_args()
    tuning, bases = Tuning(), args.base or ["adam"]
    print(f"{'':44} {'regs':>4} {'a value':>7} {' '.join(f'{kind:>8}' for kind in KINDS)} {'ms':>7}")
    for memory in args.memory or ["float32", "bfloat16", "int8"]:
        size = MEMORIES[memory][0]
        cuts = [Dots(b, w, e, stages=s, registers=r or None) for b, w, e, s, r in args.dots or ()]
        for cut in cuts or [tuning.dots_of(size)]:
            print(dots(memory, bases[0], cut, args.topC, args.by_tensor), flush=True)
        for base in bases:
            sizes = args.update or [tuning.update(True, size, *FAMILIES[base])]
            for two in sizes:
                print(update(memory, base, (two[0], two[1]), args.topC, args.by_tensor), flush=True)


if __name__ == "__main__":
    main()
