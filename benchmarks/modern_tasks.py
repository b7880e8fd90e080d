"""What a run of the modern tasks costs on a device, alone and side by side, and where each arm's learning rate lies.

``PYTHONPATH=src python benchmarks/modern_tasks.py --device cuda --processes 8 --seconds 270 --out modern_tasks.jsonl``

First alone (a short run that warms up, then ``cifar10-resnet`` by AdamW and ``pycode-gpt`` by every arm), then ``--processes``
side by side over the learning rates: the middle ones first, so that a sweep which runs out of time is a coarser one. Every
finished run is a line of ``--out`` at once. On a machine without a GPU: ``--tiny --device cpu --processes 2``.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from critgrad.lab.errors import LabError
from critgrad.lab.run.executors.mps import service_for
from critgrad.lab.tasks.data import dataset, presence, tiny

STEPS = 700  # of pycode-gpt: how long AdEMAMix's schedules last
_BETAS = {"betas": [0.9, 0.95]}
_MIX = {"betas": [0.9, 0.95, 0.99], "alpha": 2.0, "t_alpha_beta3": STEPS}

# optimizer, options, the lowest learning rate of the sweep; each further one is twice as large
ARMS: dict[str, tuple[str, dict[str, Any], float]] = {
    "AdamW": ("AdamW", _BETAS, 3e-4),
    "Nesterov's AdamW": ("NesterovAdamW", _BETAS, 3e-4),
    "AdamW_F": ("AdamW_F", _BETAS, 3e-4),
    "AdamW_C": ("AdamW_C", {**_BETAS, "topC": 5, "decay": 0.7}, 7.5e-5),
    "Adam_CM": ("Adam_CM", {**_BETAS, "topC": 5, "decay": 0.7}, 7.5e-5),
    "Adam_CM, topC 0": ("Adam_CM", {**_BETAS, "topC": 0}, 7.5e-5),
    "AdEMAMix": ("AdEMAMix", _MIX, 3e-4),
    "MARS": ("MARS", {}, 3e-4),
    "Cautious": ("Cautious", _BETAS, 3e-4),
}
POINTS = 7
MIDDLE_FIRST = (3, 2, 4, 5, 1, 6, 0)
IMAGES = {"AdamW": 4e-4, "Nesterov's AdamW": 4e-4, "AdamW_F": 4e-4, "AdamW_C": 1e-4, "Adam_CM": 1e-4, "MARS": 4e-4}

Job = dict[str, Any]


def job(task: str, arm: str, lr: float, device: str, **settings: Any) -> Job:
    optimizer, options, _ = ARMS[arm]
    hyper = {**options, "lr": lr}
    return {"task": task, "arm": arm, "optimizer": optimizer, "hyper": hyper, "device": device, "settings": settings}


def ran(work: Job) -> Job:
    """A job with what came of it; what goes wrong is said, and does not end the others."""
    from critgrad.lab.run.spec import Trial
    from critgrad.lab.train.loop import train

    begin = time.perf_counter()
    try:
        result = train(
            Trial(work["task"], work["optimizer"], work["hyper"], seed=1, settings=work["settings"]),
            device=work["device"],
        )
    except Exception as error:
        return {**work, "error": f"{type(error).__name__}: {error}"}
    said = {
        name: result.summary.get(name) for name in ("valid", "test", "diverged", "train_seconds", "step_ms", "steps")
    }
    origin = {name: result.provenance.get(name) for name in ("graph", "graph_warning") if name in result.provenance}
    return {**work, **said, **origin, "seconds": time.perf_counter() - begin}


def sweep(task: str, device: str, lowest: dict[str, float], **settings: Any) -> Iterator[Job]:
    for point in MIDDLE_FIRST[:POINTS]:
        for arm, low in lowest.items():
            yield job(task, arm, low * 2**point, device, **settings)


def stand_in(folder: Path) -> None:
    """Synthetic images in the place of CIFAR-10's 60,000: for what a run takes, not for what it learns."""
    parts = tiny.images((3, 32, 32), 10, 255, tiny.CIFAR, size=125)
    dataset.write(dataset.build("cifar10", parts, "synthetic"), folder / "cifar10.npz", 1, compress=False)


def line(done: Job) -> str:
    where = f"{done['task']:<16} {done['arm']:<18} lr {done['hyper']['lr']:<9.3g}"
    if "error" in done:
        return f"{where} {done['error']}"
    step = "" if done["step_ms"] is None else f"  optimizer {done['step_ms']:.2f} ms"
    graph = "" if done.get("graph") is None else f"  graph {done['graph']} {done.get('graph_warning', '')}"
    return f"{where} valid {done['valid']:.4f}  test {done['test']:.4f}  {done['seconds']:.2f} s{step}{graph}"


def table(found: list[Job]) -> str:
    """Validation by arm and learning rate, the best of each arm marked."""
    rows = []
    for task in dict.fromkeys(done["task"] for done in found):
        rows += ["", f"{task}, validation by learning rate:"]
        for arm in ARMS:
            those = {
                d["hyper"]["lr"]: d["valid"] for d in found if (d["task"], d["arm"]) == (task, arm) and "valid" in d
            }
            if those:
                better = max if "resnet" in task else min
                best = better(those.values())
                cells = (f"{lr:.2g}: {'*' if those[lr] == best else ''}{those[lr]:.3f}" for lr in sorted(those))
                rows.append(f"  {arm:<18} " + "  ".join(cells))
    return "\n".join(rows)


def warmed_up(task: str, device: str) -> list[Job]:
    """What runs alone: a short run, then AdamW on images, every arm on text."""
    if "resnet" in task:
        return [job(task, "AdamW", 3.2e-3, device, epochs=1), job(task, "AdamW", 3.2e-3, device)]
    return [
        job(task, "AdamW", 1.2e-3, device, epochs=1),
        *(job(task, arm, 8 * low, device) for arm, (_, _, low) in ARMS.items()),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--processes", type=int, default=8)
    parser.add_argument(
        "--seconds", type=float, default=270, help="for all of it; what is not done by then is left out"
    )
    parser.add_argument("--task", action="append", choices=("pycode-gpt", "cifar10-resnet"), help="instead of both")
    parser.add_argument("--tiny", action="store_true", help="the synthetic twins")
    parser.add_argument("--out", type=Path, default=Path("modern_tasks.jsonl"))
    args = parser.parse_args()
    end = time.monotonic() + args.seconds
    twin = "@tiny" if args.tiny else ""
    tasks = [f"{name}{twin}" for name in args.task or ("cifar10-resnet", "pycode-gpt")]
    os.environ |= {"CRITGRAD_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    pretended = "cifar10-resnet" in tasks and presence("cifar10") == "no"
    if pretended:
        print("CIFAR-10 is not here: synthetic images of its size are timed", flush=True)
        folder = Path(tempfile.mkdtemp(prefix="critgrad-cifar10-"))
        os.environ["XDG_CACHE_HOME"] = str(folder)
        stand_in(folder / "critgrad")
    found: list[Job] = []
    out = open(args.out, "w")  # noqa: SIM115 (closed by the process's end: a run that is stopped keeps its lines)

    def keep(done: Job) -> None:
        found.append(done)
        out.write(json.dumps(done) + "\n")
        out.flush()
        print(line(done), flush=True)

    print("alone, the first of each task to warm up:", flush=True)
    spawn = multiprocessing.get_context("spawn")
    with spawn.Pool(1) as pool:  # gone before the others come: a context outside of MPS would be in their way
        for work in (work for task in tasks for work in warmed_up(task, args.device)):
            if time.monotonic() < end - 0.5 * args.seconds:
                keep(pool.apply(ran, (work,)))
    found.clear()
    service = service_for(args.processes, args.device)
    os.environ |= {} if service is None else service.environment
    print(f"{args.processes} side by side, {'with' if service else 'without'} MPS:", flush=True)
    with spawn.Pool(args.processes) as pool:
        try:
            for task in tasks:
                lowest = IMAGES if "resnet" in task else {arm: low for arm, (_, _, low) in ARMS.items()}
                jobs = list(sweep(task, args.device, lowest))
                if pretended and "resnet" in task:
                    jobs = [job(task, "AdamW", 3.2e-3, args.device)] * 2 * args.processes
                begin = time.monotonic()
                coming = pool.imap_unordered(ran, jobs)
                for _ in jobs:
                    keep(coming.next(timeout=max(0.1, end - time.monotonic())))
                seconds = time.monotonic() - begin
                print(f"{task}: {len(jobs)} runs in {seconds:.0f} s, {seconds / len(jobs):.2f} s each", flush=True)
        except multiprocessing.TimeoutError:
            print(f"out of time after {len(found)} runs", flush=True)
        pool.terminate()
        pool.join()
    if service is not None:
        service.stop()
    print(table(found))


if __name__ == "__main__":
    try:
        main()
    except LabError as error:
        sys.exit(str(error))
