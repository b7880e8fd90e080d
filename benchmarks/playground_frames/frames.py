"""All runs of the playground, computed with the library and kept in one file that the page carries along.

``python -m playground_frames`` in this folder's parent computes them anew (a few minutes) and writes the file in the package.
"""

from __future__ import annotations

import argparse
import json
import struct
import sys
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from critgrad.lab.playground.page import DATA, MAGIC, read

from .codec import (
    LOG_HIGH,
    LOG_LOW,
    Codes,
    linear_codes,
    linear_values,
    log_codes,
    log_values,
    pack,
    polar_codes,
    polar_values,
    unpack,
)
from .optimizers import DECAYS, OPTIMIZERS, TOPCS, PlaygroundOptimizer
from .run import FRAMES, REACH, SurfaceRun, simulate
from .surfaces import SURFACES, Surface

GRID = 161  # points along each side of the contour map

BY_RUN = ("x", "y", "loss", "gradient_length", "gradient_angle", "direction_length", "direction_angle")
BY_SLOT = ("priority", "age")


@dataclass(frozen=True)
class FrameSetting:
    """One run: a surface, an optimizer, a learning rate and, with a memory, its size and decay."""

    surface: Surface
    optimizer: PlaygroundOptimizer
    lr: float
    topC: int  # 0 without a memory
    decay: float

    def simulate(self, frames: int = FRAMES) -> SurfaceRun:
        """The run itself, by the library."""
        return simulate(self.surface, self.optimizer, self.lr, self.topC, self.decay, frames)


def settings() -> Iterator[FrameSetting]:
    """Every run of the file, in its order: optimizer, surface, lr and, with a memory, topC and decay."""
    for optimizer in OPTIMIZERS:
        memories = [(0, 0.0)] if optimizer.memory is None else [(c, d) for c in TOPCS for d in DECAYS]
        for surface in SURFACES:
            for lr in surface.lrs[optimizer.family]:
                for topC, decay in memories:
                    yield FrameSetting(surface, optimizer, lr, topC, decay)


def header() -> dict[str, Any]:
    """What the page must know to find its way through the numbers: names, grids, scales."""
    runs = list(settings())
    count, slots = len(runs), sum(run.topC for run in runs)
    return {
        "frames": FRAMES,
        "grid": GRID,
        "reach": REACH,
        "log": [LOG_LOW, LOG_HIGH],
        "topC": TOPCS,
        "decay": DECAYS,
        "surfaces": [
            {
                "key": s.key,
                "title": s.title,
                "story": s.story,
                "center": s.center,
                "halfWidth": s.half_width,
                "start": s.start,
                "minima": s.minima,
                "lrs": s.lrs,
            }
            for s in SURFACES
        ],
        "optimizers": [
            {"name": o.name, "family": o.family, "note": o.note, "color": o.color, "memory": o.memory}
            for o in OPTIMIZERS
        ],
        "arrays": [["map", [len(SURFACES) * GRID, GRID]], ["length", [1, count]]]
        + [[name, [count, FRAMES]] for name in BY_RUN]
        + [[name, [slots, FRAMES]] for name in BY_SLOT],
    }


def encode(run: SurfaceRun, surface: Surface) -> dict[str, Codes]:
    """A run as codes, time last; the frames that a diverged run lacks repeat its last one."""
    reach = REACH * surface.half_width
    position = [
        linear_codes(run.position[:, i], surface.center[i] - reach, surface.center[i] + reach) for i in range(2)
    ]
    codes = dict(zip(BY_RUN, (*position, log_codes(run.loss), *polar_codes(run.gradient), *polar_codes(run.direction))))
    codes["priority"] = log_codes(run.priority.T)
    codes["age"] = run.age.T.astype(np.uint16)
    missing = FRAMES - len(run.loss)
    return {
        name: np.pad(code, [(0, 0)] * (code.ndim - 1) + [(0, missing)], mode="edge") if code.size else code
        for name, code in codes.items()
    }


def compute(progress: Callable[[int, int], None]) -> dict[str, Codes]:
    """All arrays of the file. ``progress`` hears of every run."""
    runs = list(settings())
    length = np.zeros((1, len(runs)), dtype=np.uint16)
    by_name: dict[str, list[Codes]] = {name: [] for name in (*BY_RUN, *BY_SLOT)}
    for i, setting in enumerate(runs):
        run = setting.simulate()
        length[0, i] = len(run.loss)
        for name, code in encode(run, setting.surface).items():
            by_name[name].append(code if name in BY_SLOT else code[None])
        progress(i + 1, len(runs))
    contours = np.concatenate([log_codes(surface.grid(GRID).numpy()) for surface in SURFACES])
    return {"map": contours, "length": length} | {
        name: np.concatenate([code for code in codes if code.size]) for name, codes in by_name.items()
    }


def write(path: Path, header: dict[str, Any], arrays: dict[str, Codes]) -> None:
    """Write the file; ``header["arrays"]`` lists names and shapes, in the order of the body."""
    for name, shape in header["arrays"]:
        if arrays[name].shape != tuple(shape):
            raise ValueError(f"Invalid array {name}: shape {arrays[name].shape}, expected {tuple(shape)}")
    text = json.dumps(header, separators=(",", ":")).encode()
    body = zlib.compress(b"".join(pack(arrays[name]) for name, _ in header["arrays"]), 9)
    path.write_bytes(MAGIC + struct.pack("<I", len(text)) + text + body)


def arrays_of(header: dict[str, Any], body: bytes) -> dict[str, Codes]:
    """The arrays of a file that was read."""
    data, at = zlib.decompress(body), 0
    arrays: dict[str, Codes] = {}
    for name, shape in header["arrays"]:
        size = 2 * int(np.prod(shape))
        arrays[name] = unpack(data[at : at + size], tuple(shape))
        at += size
    return arrays


class Frames:
    """The file, read back: ``Frames()[setting]`` is the ``SurfaceRun`` as the page sees it, rounded to the codes."""

    def __init__(self, path: Path = DATA) -> None:
        self.header, body = read(path)
        self.arrays = arrays_of(self.header, body)
        self._rows: dict[tuple[Any, ...], tuple[int, int]] = {}
        slot = 0
        for i, setting in enumerate(settings()):
            self._rows[self._key(setting)] = (i, slot)
            slot += setting.topC

    @staticmethod
    def _key(setting: FrameSetting) -> tuple[Any, ...]:
        return setting.surface.key, setting.optimizer.name, setting.lr, setting.topC, setting.decay

    def __getitem__(self, setting: FrameSetting) -> SurfaceRun:
        row, slot = self._rows[self._key(setting)]
        n = int(self.arrays["length"][0, row])
        code = {name: self.arrays[name][row, :n] for name in BY_RUN}
        slots = {name: self.arrays[name][slot : slot + setting.topC, :n].T for name in BY_SLOT}
        (cx, cy), reach = setting.surface.center, REACH * setting.surface.half_width
        position = [linear_values(code["x"], cx - reach, cx + reach), linear_values(code["y"], cy - reach, cy + reach)]
        return SurfaceRun(
            position=np.stack(position, axis=-1),
            loss=log_values(code["loss"]),
            gradient=polar_values(code["gradient_length"], code["gradient_angle"]),
            direction=polar_values(code["direction_length"], code["direction_angle"]),
            priority=log_values(slots["priority"]),
            age=slots["age"].astype(np.int64),
        )


def main(argv: Sequence[str] | None = None) -> int:
    """Compute the runs and write the file."""
    parser = argparse.ArgumentParser(prog="python -m playground_frames", description=__doc__)
    parser.add_argument("--out", type=Path, default=DATA, help="the file to write (default: the package's own)")
    args = parser.parse_args(argv)
    torch.set_num_threads(1)

    def progress(done: int, of: int) -> None:
        print(f"\r{done} of {of} runs", end="", file=sys.stderr, flush=True)

    write(args.out, header(), compute(progress))
    print(f"\n{args.out}: {args.out.stat().st_size / 1e6:.2f} MB", file=sys.stderr)
    return 0
