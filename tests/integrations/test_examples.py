"""Every example runs, at toy size, and says what it should.

One is started as a user starts it, those with several ranks by torchrun, which ends all of them when one fails; the others need
not pay for imports once more.
"""

import os
import runpy
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"


# torch's gloo threads can outlive their process by a moment, which then aborts after its last line (seen once).
# What such a process should have done is checked by its output and by the next run.
ABORT_AT_EXIT = "terminate called without an active exception"


def process(*command: str, may_abort_at_exit: bool = False, **variables: str) -> str:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", **variables}
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run([sys.executable, *command], env=environment, capture_output=True, text=True, timeout=150)
    aborted = may_abort_at_exit and ABORT_AT_EXIT in done.stderr
    assert done.returncode == 0 or aborted, done.stderr[-3000:]
    return done.stdout


def torchrun(ranks: int, *command: str) -> str:
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    return process(*launcher, *command, may_abort_at_exit=True)


@pytest.fixture
def run(monkeypatch, capfd):
    """Run a script in this process, on the CPU, as ``__main__``: returns what it prints."""

    def call(*command: str) -> str:
        before, flag = dict(os.environ), torch.backends.cuda.matmul.allow_tf32
        monkeypatch.setattr(sys, "argv", list(command))
        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
        capfd.readouterr()
        code = None
        try:
            with warnings.catch_warnings():
                runpy.run_path(command[0], run_name="__main__")
        except SystemExit as end:
            code = end.code
        finally:
            torch.backends.cuda.matmul.allow_tf32 = flag
            for name in os.environ.keys() - before.keys():
                del os.environ[name]
            os.environ.update(before)
        said = capfd.readouterr()
        assert not code, said.err
        return said.out

    return call


def test_plain_ends_with_a_lower_loss_and_a_full_memory(tmp_path):
    said = process(str(EXAMPLES / "plain.py"), "--steps", "40", "--checkpoint", str(tmp_path / "last.pt")).splitlines()
    losses = [float(line.split("loss ")[1].split(";")[0]) for line in said if "loss" in line]
    assert losses[-1] < losses[0]
    assert "5/5 slots" in said[-2]
    assert said[-1].startswith("engine: ")
    assert (tmp_path / "last.pt").exists()


def test_amp_runs_without_a_gpu_too(run):
    assert "5/5 slots" in run(str(EXAMPLES / "amp.py"), "--steps", "10")


def test_ddp_runs_on_two_ranks():
    said = torchrun(2, str(EXAMPLES / "ddp.py"), "--steps", "10")
    assert "step 10:" in said
    assert "5/5 slots" in said


def test_fsdp2_saves_under_torchrun_and_goes_on_from_its_checkpoint(tmp_path):
    folder = str(tmp_path / "run")
    first = torchrun(2, str(EXAMPLES / "fsdp2.py"), "--steps", "10", "--checkpoint", folder)
    assert "step 10:" in first
    second = torchrun(1, str(EXAMPLES / "fsdp2.py"), "--steps", "20", "--checkpoint", folder)
    assert "step 8:" not in second  # it went on from step 10
    assert "of 20" in second.splitlines()[-2]  # the memory has seen 20 gradients, 10 of them before


def test_hf_trainer_logs_loss_and_memory(tmp_path, run):
    pytest.importorskip("transformers", reason="transformers is not installed: pip install critgrad[transformers]")
    pytest.importorskip("accelerate", reason="the Trainer needs accelerate: pip install critgrad[transformers]")
    arguments = ("--steps", "5", "--hidden", "16", "--output", str(tmp_path))
    said = run(str(EXAMPLES / "hf_trainer.py"), *arguments)
    assert "'critical/live': 5.0" in said
    assert (tmp_path / "checkpoint-5" / "optimizer.pt").exists()


def test_lightning_module_logs_the_memory(tmp_path, run):
    pytest.importorskip("lightning", reason="lightning is not installed: pip install critgrad[lightning]")
    said = run(str(EXAMPLES / "lightning_module.py"), "--epochs", "1", "--output", str(tmp_path))
    assert "5/5 slots" in said
    (metrics,) = tmp_path.rglob("metrics.csv")
    assert "critical/live" in metrics.read_text().splitlines()[0]


def test_the_gpu_checks_run_on_a_cpu_as_far_as_they_can(run):
    said = run(str(ROOT / "tests" / "gpu" / "check_cuda.py"), "--device", "cpu", "-k", "scaler,resumed,host_memory")
    assert "FAIL" not in said
    assert said.count("PASS") == 8
