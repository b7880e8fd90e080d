"""Starts a few ranks as processes on this machine, lets them check a list of claims, and brings back what failed.

A start costs seconds, so one start checks many claims, and the ranks are forked from one process that has imported
torch: ``python -m dist_launch MODULE FOLDER RANKS``.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
import time
import traceback
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

HERE = Path(__file__).parent
SOURCE = HERE.parent.parent / "src"
PATIENCE = 45  # seconds that a rank waits for another


def run(module: str, world: int, folder: Path, seconds: float = 240) -> list[int]:
    """The exit codes of the ranks, as ``subprocess`` gives them; those that take longer are killed."""
    folder.mkdir(parents=True, exist_ok=True)
    path = os.pathsep.join([str(SOURCE), str(HERE), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "dist_launch", module, str(folder), str(world)]
    with (folder / "log").open("w") as log:
        parent = subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True)
    try:
        code = parent.wait(seconds)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(parent.pid, signal.SIGKILL)  # whatever is left of it
        parent.wait()
    if code != 0:
        raise RuntimeError(f"{module} could not be started:\n{(folder / 'log').read_text()[-3000:]}")
    return json.loads((folder / "codes.json").read_text())


def launch(module: str, world: int, folder: Path) -> dict[str, str]:
    """Claims of ``module`` to what is wrong with them on some rank, or an empty string."""
    codes = run(module, world, folder)
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


def one_rank(module: str, folder: Path, rank: int, world: int) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
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


def fork_ranks(module: str, folder: Path, world: int) -> None:
    """Import once, fork the ranks, wait for them and write their exit codes."""
    importlib.import_module(module)
    children = []
    for rank in range(world):
        child = os.fork()
        if child == 0:
            os.environ.update(RANK=str(rank), WORLD_SIZE=str(world))
            log = os.open(folder / f"log-{rank}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(log, 1)
            os.dup2(log, 2)
            one_rank(module, folder, rank, world)
            return
        children.append(child)
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    (folder / "codes.json").write_text(json.dumps(codes))


if __name__ == "__main__":
    fork_ranks(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))
