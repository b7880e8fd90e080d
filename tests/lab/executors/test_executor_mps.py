"""The service that lets workers share a GPU, with a script in the place of NVIDIA's program."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from critgrad.lab.run.executors import mps, open_executor
from critgrad.lab.run.executors.local import LocalPool
from critgrad.lab.run.executors.mps import CONTROL, service_for
from critgrad.lab.run.results import Result
from critgrad.lab.run.spec import Trial
from critgrad.lab.run.worker import Job, perform

CLIENT = mps.CLIENT

# -d leaves a process behind that holds on to its output, as a service may; "quit" on stdin ends it.
SCRIPT = """#!/bin/sh
echo "$1" >> "$LOG"
if [ "$1" = "-d" ]; then
  [ -n "$BROKEN" ] && { echo "An instance of this daemon is already running"; exit 1; }
  sleep 600 &
  echo $! > "$CUDA_MPS_PIPE_DIRECTORY/pid"
  echo $! > "$LOG.pid"
  echo "$CUDA_MPS_LOG_DIRECTORY" > "$LOG.folder"
else
  read word
  echo "$word" >> "$LOG"
  kill $(cat "$CUDA_MPS_PIPE_DIRECTORY/pid")
fi
"""


@pytest.fixture
def log(tmp_path, monkeypatch):
    """A machine where the program is installed and works; what it was asked is in this file."""
    program = tmp_path / "bin" / CONTROL
    program.parent.mkdir()
    program.write_text(SCRIPT)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("LOG", str(tmp_path / "log"))
    monkeypatch.delenv("CUDA_MPS_PIPE_DIRECTORY", raising=False)
    monkeypatch.delenv("CRITGRAD_MPS", raising=False)
    monkeypatch.setattr(mps, "CLIENT", "pass")
    return tmp_path / "log"


def is_running(log: Path) -> bool:
    pid = int(Path(f"{log}.pid").read_text())
    try:
        status = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except FileNotFoundError:
        return False
    return status != "Z"  # nobody may have asked for its exit code yet


def ends(log: Path, seconds: float = 20) -> bool:
    """Whether it is gone, at once or nearly so: a signal has been sent, and a busy machine takes a moment to act on it."""
    until = time.monotonic() + seconds
    while is_running(log) and time.monotonic() < until:
        time.sleep(0.01)
    return not is_running(log)


def test_a_service_runs_until_it_is_stopped_and_leaves_nothing(log):
    service = service_for(2, "cuda")
    assert is_running(log)
    assert Path(service.environment["CUDA_MPS_PIPE_DIRECTORY"]).is_dir()
    assert Path(f"{log}.folder").read_text().strip() == service.environment["CUDA_MPS_LOG_DIRECTORY"]
    service.stop()
    service.stop()
    assert ends(log)
    assert log.read_text().split() == ["-d", "quit"]
    assert not service.folder.exists()


@pytest.mark.parametrize(
    "workers, device, variables",
    [
        (1, "cuda", {}),
        (4, "cpu", {}),
        (4, "cuda", {"CRITGRAD_MPS": "0"}),
        (4, "cuda:0", {"CUDA_MPS_PIPE_DIRECTORY": "/run/theirs"}),
        (4, "cuda", {"PATH": "/nowhere"}),
    ],
)
def test_no_service_is_started_where_none_is_wanted(workers, device, variables, log, monkeypatch):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert service_for(workers, device) is None
    assert not log.exists()


def test_without_a_service_the_sweep_goes_on_and_says_so(log, monkeypatch):
    monkeypatch.setenv("BROKEN", "1")
    with pytest.warns(RuntimeWarning, match=r"no MPS \(nvidia-cuda-mps-control: An instance .* 3 workers take turns"):
        assert service_for(3, "cuda") is None


def test_a_service_that_no_client_can_reach_is_stopped(log, monkeypatch):
    monkeypatch.setattr(mps, "CLIENT", "import sys; sys.exit('error 805')")
    with pytest.warns(RuntimeWarning, match="error 805"):
        assert service_for(2, "cuda") is None
    assert ends(log)


def test_the_clients_first_call_tells_whether_there_is_a_gpu():
    done = subprocess.run([sys.executable, "-c", CLIENT], capture_output=True, text=True, check=False)
    assert (done.returncode == 0) == torch.cuda.is_available(), done.stderr
    assert "Error" not in done.stderr or "libcuda" in done.stderr


def variable(name: str) -> str | None:
    return os.environ.get(name)


@pytest.mark.slow
def test_workers_are_clients_and_the_coordinator_is_not(log):
    with open_executor("local", workers=2, device="cuda") as pool:
        assert isinstance(pool, LocalPool)
        places = [pool.submit(variable, "CUDA_MPS_PIPE_DIRECTORY").result(60) for _ in range(3)]
        assert is_running(log)
    assert len(set(places)) == 1
    assert places[0] is not None
    assert "CUDA_MPS_PIPE_DIRECTORY" not in os.environ
    assert ends(log)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["cancelled", "raised"])
def test_the_service_ends_with_a_pool_that_is_stopped(how, log):
    pool = open_executor("local", workers=2, device="cuda")
    if how == "cancelled":
        pool.submit(variable, "x")
        pool.shutdown(wait=False, cancel_futures=True)
    else:
        with pytest.raises(KeyError), pool:
            raise KeyError("a failure of the coordinator")
    assert ends(log)


LEFT = """
from critgrad.lab.run.executors import mps
mps.CLIENT = "pass"
mps.service_for(2, "cuda")
raise SystemExit(3)
"""


@pytest.mark.slow
def test_the_service_ends_with_a_process_that_forgot_it(log):
    source = Path(__file__).parents[3] / "src"
    done = subprocess.run([sys.executable, "-c", LEFT], env={**os.environ, "PYTHONPATH": str(source)}, check=False)
    assert done.returncode == 3
    assert ends(log)


@pytest.mark.slow
def test_workers_are_kept_from_call_to_call():
    with LocalPool(2) as pool:
        found = [pool.submit(os.getpid) for _ in range(12)]
        assert len({future.result(60) for future in found}) <= 2
        assert {child.pid for child in multiprocessing.active_children()} >= {future.result() for future in found}


def threads(trials, device, folder):
    return [Result(summary={"threads": torch.get_num_threads(), "device": device}) for _ in trials]


def test_a_job_on_a_gpu_uses_one_thread_of_the_cpu():
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        (result,) = perform(Job((Trial("ptb-lstm@tiny", "Adam"),), "cuda", work=f"{__name__}:threads"))
        assert result.summary == {"threads": 1, "device": "cuda"}
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)
