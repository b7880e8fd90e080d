"""What one must know to follow ``Adam_C.step()``: the functions of critgrad that an ordinary step enters, in order.

    PYTHONPATH=src python benchmarks/walk.py                     # torch's operations, the native core, Triton's kernels
    PYTHONPATH=src python benchmarks/walk.py --engine native
    PYTHONPATH=src python benchmarks/walk.py --rooms             # no step: the lines of the core, room by room

Each engine steps in a fresh process (Triton's kernels in its interpreter, where they are Python functions). An ordinary step
is one of a full memory that replaces a slot. Functions that have a name are listed and counted (no lambda, no
comprehension); a change of file is a call that lies in another file than the call before it.

Lines are those of whole files, docstrings and all, however little of a file a step enters. Two sums:

- to follow a step: the files that an ordinary step enters, and for the native core its C;
- with making: also those that only an earlier step entered, where the memory is made and the engine chosen. Files of another
  engine, which was asked and declined, or made the first step, are listed and not counted: those that an ordinary step of
  that engine enters and some engine never does.

A file that is only imported, for a table in it, does not count.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tokenize
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

ENGINES: dict[str, dict[str, str]] = {
    "torch": {"CRITGRAD_ENGINE": "torch", "CRITGRAD_NATIVE": "0"},
    "native": {"CRITGRAD_ENGINE": "native"},
    "triton": {"CRITGRAD_ENGINE": "triton", "TRITON_INTERPRET": "1"},
}
Call = tuple[str, int, str]  # file, line, function
# The core: files of the package itself but these, and of these folders; a longer name before what it begins with.
NO_CORE = ("cli.py", "reference.py", "adam_cm.py")
ROOMS = ("memory", "engines/native", "engines/triton", "engines", "bases", "integrations", "")


def calls_of(step: Callable[[], object], root: Path) -> list[Call]:
    """The calls into files below ``root``, in order; what a module does when it is imported on the way is no call."""
    found: list[Call] = []
    importing = 0
    files: dict[CodeType, str] = {}

    def see(frame: FrameType, event: str, _: Any) -> None:
        nonlocal importing
        code = frame.f_code
        if event not in ("call", "return") or not code.co_filename.startswith(f"{root}{os.sep}"):
            return
        if code.co_name == "<module>":
            importing += 1 if event == "call" else -1
        elif event == "call" and not importing:
            if code not in files:
                files[code] = str(Path(code.co_filename).relative_to(root))
            found.append((files[code], code.co_firstlineno, getattr(code, "co_qualname", code.co_name)))

    sys.setprofile(see)
    try:
        step()
    finally:
        sys.setprofile(None)
    return found


def walk(engine: str) -> dict[str, Any]:
    """In a process of its own: the calls of one ordinary step, and the files of all steps up to it."""
    import torch

    import critgrad

    root = Path(critgrad.__file__).parent
    shapes = [(16, 16), (16,)] if engine == "triton" else [(16, 16), (16,), (512, 512)]  # the interpreter is slow
    params = [torch.nn.Parameter(torch.zeros(shape)) for shape in shapes]
    optimizer = critgrad.Adam_C(params, topC=3, decay=0)
    earlier: set[str] = set()
    calls: list[Call] = []
    torch.manual_seed(0)
    for _ in range(9):
        earlier |= {file for file, *_ in calls}
        for p in params:
            p.grad = torch.randn_like(p)
        calls = calls_of(optimizer.step, root)
    stepped_by = getattr(critgrad.inspect(optimizer), "engine", engine)
    sources = [str(path.relative_to(root)) for end in ("c", "h") for path in sorted(root.rglob(f"*.{end}"))]
    files = {*earlier, *sources, *(file for file, *_ in calls)}
    lines = {file: len((root / file).read_text().splitlines()) for file in files}
    return {"by": stepped_by, "calls": calls, "earlier": sorted(earlier), "sources": sources, "lines": lines}


def code_lines(path: Path) -> int:
    """Lines that are no blank, comment or docstring."""
    if path.suffix == ".c":
        return sum(bool(line.strip()) for line in re.sub(r"/\*.*?\*/", "", path.read_text(), flags=re.S).splitlines())
    layout = (tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENCODING)
    found: set[int] = set()
    before = tokenize.ENCODING
    with path.open("rb") as file:
        for token in tokenize.tokenize(file.readline):
            if token.type in (tokenize.COMMENT, tokenize.NL):
                continue
            if token.type not in (*layout, tokenize.ENDMARKER) and not (
                token.type == tokenize.STRING and before in layout
            ):
                found.update(range(token.start[0], token.end[0] + 1))
            before = token.type
    return len(found)


def show_rooms() -> None:
    """The core's files, lines, and lines of code in them."""
    root = Path(__file__).resolve().parents[1] / "src" / "critgrad"
    rooms: dict[str, list[Path]] = {room: [] for room in ROOMS}
    for path in sorted(path for end in ("py", "c") for path in root.rglob(f"*.{end}")):
        folder = str(path.parent.relative_to(root)).removeprefix(".")
        room = next(room for room in ROOMS if f"{folder}/".startswith(f"{room}/") or not room)
        if room or (not folder and path.name not in NO_CORE):
            rooms[room].append(path)
    rooms["all"] = [path for paths in rooms.values() for path in paths]
    print(f"{'':16}{'files':>6}{'lines':>8}{'of code':>8}")
    for room, paths in rooms.items():
        lines = sum(len(path.read_text().splitlines()) for path in paths)
        print(f"{room or 'the package':16}{len(paths):6}{lines:8,}{sum(map(code_lines, paths)):8,}")


def in_fresh_process(engine: str) -> dict[str, Any]:
    kept = {name: value for name, value in os.environ.items() if not any(name in one for one in ENGINES.values())}
    command = [sys.executable, "-W", "ignore", __file__, "--child", engine]
    done = subprocess.run(command, env={**kept, **ENGINES[engine]}, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def show(engine: str, found: dict[str, Any], foreign: set[str]) -> None:
    calls, lines = [tuple(call) for call in found["calls"]], found["lines"]
    step = dict.fromkeys(file for file, *_ in calls)
    named = [call for call in dict.fromkeys(calls) if "<" not in call[2].split(".")[-1]]
    changes = sum(one[0] != two[0] for one, two in pairwise(calls))
    print(f"\n{engine}" + ("" if found["by"] == engine else f" (but {found['by']} made the step)"))
    last = None
    for file, number, name in named:
        print(f"  {'' if file == last else file:32}{number:5}  {name}")
        last = file
    counted = dict.fromkeys(step, "step") | dict.fromkeys(found["sources"] if engine == "native" else (), "C")
    earlier = [file for file in found["earlier"] if file not in counted]
    counted |= dict.fromkeys((file for file in earlier if file not in foreign), "making")
    print()
    for file, why in counted.items():
        print(f"  {lines[file]:6,}  {file:32}{why}")
    for file in [file for file in earlier if file not in counted]:
        print(f"  {'-':>6}  {file:32}of another engine ({lines[file]:,})")
    to_follow = [file for file, why in counted.items() if why != "making"]
    print(
        f"  {sum(map(lines.get, to_follow)):6,}  lines in {len(to_follow)} files to follow a step: {len(named)} functions, "
        f"{changes} changes of file\n  {sum(map(lines.get, counted)):6,}  lines in {len(counted)} files with making"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--engine", action="append", choices=ENGINES, help="show this one (may be given more than once)"
    )
    parser.add_argument("--child", choices=ENGINES, help=argparse.SUPPRESS)
    parser.add_argument("--rooms", action="store_true", help="the core's lines by room instead")
    args = parser.parse_args()
    if args.rooms:
        show_rooms()
        return
    if args.child:
        print(json.dumps(walk(args.child)))
        return
    found = {engine: in_fresh_process(engine) for engine in ENGINES}
    steps = {engine: {file for file, *_ in one["calls"]} for engine, one in found.items()}
    by_all = set.intersection(*(steps[engine] | set(one["earlier"]) for engine, one in found.items()))
    for engine in args.engine or ENGINES:
        others = set[str]().union(*(files for other, files in steps.items() if other != engine))
        show(engine, found[engine], others - by_all)


if __name__ == "__main__":
    main()
