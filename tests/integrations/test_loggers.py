import sys

import pytest
import torch
from torch import nn

import critgrad
from critgrad.integrations import find_memory, log_memory, loggers, scalars


def optimizer(steps: int = 3):
    weight = nn.Parameter(torch.tensor([3.0, 4.0]))
    opt = critgrad.SGD_C([weight], lr=0.1)
    for _ in range(steps):
        opt.zero_grad()
        (weight @ weight / 2).backward()
        opt.step()
    return opt


def test_importing_the_integrations_imports_no_framework_and_no_logger():
    import subprocess

    names = ["wandb", "trackio", "tensorboard", "tensorboardX", "transformers", "lightning", "accelerate"]
    code = f"import sys, critgrad.integrations; print([n for n in {names!r} if n in sys.modules])"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout.strip() == "[]"


def test_a_plain_function_gets_the_numbers_of_inspect():
    opt = optimizer()
    seen = []
    said = log_memory(opt, 3, lambda values, step: seen.append((values, step)))
    assert seen == [(critgrad.inspect(opt).scalars(), 3)]
    assert said["critical/live"] == 3
    assert said["critical/gradient_norm"] == pytest.approx(float(opt.param_groups[0]["params"][0].grad.norm()))


def test_the_memory_is_found_inside_of_wrappers():
    opt = optimizer()

    class Wrapper:
        def __init__(self, inner):
            self.optimizer = inner

    assert find_memory(Wrapper(Wrapper(opt))) is opt
    assert find_memory(Wrapper(None)) is None
    around_itself = Wrapper(None)
    around_itself.optimizer = around_itself
    assert find_memory(around_itself) is None
    wrapped = critgrad.CriticalGradients(torch.optim.Adam([nn.Parameter(torch.ones(2))]))
    assert find_memory(wrapped) is wrapped


def test_an_optimizer_that_is_built_on_a_memory_logs_what_inspect_says():
    weight = nn.Parameter(torch.ones(3))
    opt = critgrad.Adam_CM([weight])
    weight.grad = torch.ones(3)
    opt.step()
    assert find_memory(opt) is opt
    assert scalars(opt) == critgrad.inspect(opt).scalars() != {}


def test_an_optimizer_without_a_memory_logs_nothing():
    assert scalars(torch.optim.SGD([nn.Parameter(torch.ones(2))], lr=0.1)) == {}


def test_tensorboard_reads_back_what_was_logged(tmp_path):
    pytest.importorskip("tensorboard", reason="tensorboard is not installed: pip install critgrad[tensorboard]")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    write = loggers.to_tensorboard(tmp_path)
    said = log_memory(optimizer(), 3, write)
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    assert set(events.Tags()["scalars"]) == set(said)
    (event,) = events.Scalars("critical/sum_norm")
    assert event.step == 3
    assert event.value == pytest.approx(said["critical/sum_norm"])


def test_tensorboardx_takes_the_same_calls(tmp_path):
    tensorboardx = pytest.importorskip("tensorboardX", reason="tensorboardX is not installed")
    with tensorboardx.SummaryWriter(str(tmp_path)) as writer:
        said = log_memory(optimizer(), 3, loggers.to_tensorboard(writer))
    assert said
    assert any(tmp_path.iterdir())


def test_wandb_logs_offline(tmp_path, monkeypatch):
    wandb = pytest.importorskip("wandb", reason="wandb is not installed: pip install critgrad[wandb]")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    run = wandb.init(project="critgrad-test", dir=str(tmp_path))
    said = log_memory(optimizer(), 3, loggers.to_wandb(run), loggers.to_wandb())
    run.finish()
    wandb.teardown()  # its other process writes the file, and may not have done so before it ends
    (written,) = tmp_path.rglob("*.wandb")
    record = written.read_bytes()
    assert all(name.encode() in record for name in said)


def test_trackio_logs_locally(tmp_path, monkeypatch):
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path))
    trackio = pytest.importorskip("trackio", reason="trackio is not installed: pip install critgrad[trackio]")
    trackio.init(project="critgrad-test")
    said = log_memory(optimizer(), 3, loggers.to_trackio())
    trackio.finish()
    assert said
    assert any(path.suffix == ".db" for path in tmp_path.rglob("*"))
