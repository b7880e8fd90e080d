"""Starts a few ranks as processes on this machine, lets them check a list of claims, and brings back what failed.

A start costs seconds, so one start checks many claims. ``python -m dist_launch MODULE FOLDER`` is one rank.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import time
import traceback
from datetime import timedelta
from pathlib import Path

HERE = Path(__file__).parent
SOURCE = HERE.parent.parent / "src"
PATIENCE = 45  # seconds that a rank waits for another


def start(module: str, world: int, folder: Path) -> list[subprocess.Popen]:
    folder.mkdir(parents=True, exist_ok=True)
    path = os.pathsep.join([str(SOURCE), str(HERE), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path, "WORLD_SIZE": str(world), "OMP_NUM_THREADS": "1"}
    processes = []
    for rank in range(world):
        command = [sys.executable, "-m", "dist_launch", module, str(folder)]
        log = (folder / f"log-{rank}").open("w")
        processes.append(
            subprocess.Popen(command, env={**environment, "RANK": str(rank)}, stdout=log, stderr=subprocess.STDOUT)
        )
    return processes


def wait(processes: list[subprocess.Popen], seconds: float = 240) -> list[int]:
    end = time.monotonic() + seconds
    try:
        return [process.wait(max(end - time.monotonic(), 0.1)) for process in processes]
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()


def launch(module: str, world: int, folder: Path) -> dict[str, str]:
    """Claims of ``module`` to what is wrong with them on some rank, or an empty string."""
    codes = wait(start(module, world, folder))
    failures: dict[str, str] = {}
    for rank in range(world):
        results = folder / f"results-{rank}.json"
        if codes[rank] != 0 or not results.exists():
            log = (folder / f"log-{rank}").read_text()[-3000:]
            raise RuntimeError(f"rank {rank} of {module} ended with {codes[rank]}:\n{log}")
        for claim, error in json.loads(results.read_text()).items():
            said = f"rank {rank}: {error}\n" if error else ""
            failures[claim] = failures.get(claim, "") + said
    return failures


def one_rank(module: str, folder: Path) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/rendezvous",
        rank=rank,
        world_size=world,
        timeout=timedelta(seconds=PATIENCE),
    )
    claims = importlib.import_module(module).CLAIMS
    results: dict[str, str] = {}
    for name, check in claims.items():
        began = time.perf_counter()
        try:
            check(folder)
            error = ""
        except Exception:
            error = traceback.format_exc()
        results[name] = error
        print(f"{'FAIL' if error else 'pass'} {name} {time.perf_counter() - began:.2f} s\n{error}", flush=True)
        (folder / f"results-{rank}.json").write_text(json.dumps(results))
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    one_rank(sys.argv[1], Path(sys.argv[2]))
