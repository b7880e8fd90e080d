from __future__ import annotations

import json

import pytest
from cli_helpers import process, same_numbers
from rich.console import Console

from critgrad.lab.screen import console as screen
from critgrad.lab.screen import live
from critgrad.lab.train.optimizers import OPTIMIZERS
from critgrad.paper import command_line

TINY = ("train", "digits-mlp@tiny", "--epochs", "2")


def test_a_run_is_written_to_the_ledger(cli):
    text = cli(*TINY, "-o", "Adam_C", "--lr", "0.01", "--topC", "3", "--decay", "0.8")
    assert "epoch 2/2" in text
    assert "accuracy: test" in text
    assert "data: synthetic" in text
    (row,) = cli.rows()
    assert row.trial.hyper == {"aggr": "mean", "lr": 0.01, "topC": 3, "decay": 0.8}
    assert row.trial.settings == {"epochs": 2}
    assert row.roles[0].track == "train"
    assert row.curves["ages"].shape == (2, 3)
    assert list((cli.folder / "runs.checkpoints").iterdir()) == []


@pytest.mark.parametrize("task", ["digits-mlp@tiny", "cifar10-convnet@tiny"])  # one with defaults, one without
@pytest.mark.parametrize("inspect", [(), ("--inspect",)], ids=["plain", "inspect"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer_trains_with_no_option_given(cli, name, inspect, task):
    text = cli("train", task, "--epochs", "1", "--set", "batch_size=80", "-o", name, *inspect)
    (row,) = cli.rows()
    assert row.trial.optimizer == name
    assert not row.summary["diverged"]
    assert row.trial.hyper["lr"] > 0
    assert ("slots, step" in text) == (OPTIMIZERS[name].has_memory and bool(inspect))


def test_a_second_call_says_so_and_trains_nothing(cli):
    first = cli(*TINY)
    again = cli(*TINY)
    assert "Already in runs.db" in again
    assert "epoch 1/2" not in again
    assert again.splitlines()[1:] == first.splitlines()[3:]
    assert len(cli.rows()) == 1


def test_whole_numbers_name_the_same_run_as_their_floats(cli):
    cli(*TINY, "-o", "SGD", "--lr", "1")
    assert "Already in" in cli(*TINY, "-o", "SGD", "--opt", "lr=1")
    assert "Already in" in cli(*TINY, "-o", "SGD", "--opt", "lr=1.0")


def test_options_become_the_optimizers_arguments(cli):
    cli(
        *TINY,
        "-o",
        "SGD_C",
        "--policy",
        "FIFO",
        "--aggr",
        "mid",
        "--opt",
        "max_age=9",
        "--set",
        "batch_size=8",
        "--seed",
        7,
    )
    (row,) = cli.rows()
    assert {"policy": "FIFO", "aggr": "mid", "max_age": 9}.items() <= row.trial.hyper.items()
    assert row.trial.settings == {"batch_size": 8, "epochs": 2}
    assert row.trial.seed == 7


def test_a_diverged_run_says_so_and_is_kept(cli):
    text = cli(*TINY, "-o", "SGD", "--lr", "1e30")
    assert "diverged" in text
    assert cli.rows()[0].summary["diverged"]


PAUSE = """
import signal
import critgrad.lab.train.loop as engine
save, count = engine._save, [0]
def paused(*args):
    save(*args)
    count[0] += 1
    if count[0] == 2:
        print("saved twice", flush=True)
        signal.pause()
engine._save = paused
"""


@pytest.mark.slow
def test_a_killed_run_goes_on_and_gives_the_numbers_of_one_left_alone(cli):
    words = ("train", "digits-mlp@tiny", "--epochs", "4", "-o", "SGDM_F")
    victim = process(*words, prelude=PAUSE)
    while victim.stdout.readline() != "saved twice\n":
        assert victim.poll() is None, victim.communicate()
    victim.kill()
    victim.communicate()
    assert cli.rows() == []
    assert len(list((cli.folder / "runs.checkpoints").iterdir())) == 1

    text = cli(*words, "--resume")
    assert "epoch 3/4" in text
    assert "epoch 2/4" not in text
    cli(*words, "--ledger", "alone.db")
    same_numbers(cli.rows()[0], cli.rows("alone.db")[0])
    assert list((cli.folder / "runs.checkpoints").iterdir()) == []


def test_without_resume_a_stopped_run_starts_anew_and_says_what_it_could_do(cli, monkeypatch):
    def stop(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(command_line, "_print_result", stop)  # after the last epoch
        patch.setattr("critgrad.lab.ledger.Ledger.add", stop)
        text = cli(*TINY, code=130)
    assert "the same command with --resume goes on from here" in text
    assert "It starts anew" in cli(*TINY)


def test_resume_without_a_checkpoint_starts_at_the_beginning(cli):
    text = cli(*TINY, "--resume")
    assert "no checkpoint of this run yet" in text
    assert "epoch 1/2" in text


def test_a_checkpoint_of_another_run_is_refused(cli, monkeypatch):
    from critgrad.lab.train.loop import train
    from critgrad.paper.commands import one_trial

    train(one_trial("digits-mlp@tiny", "SGD", {}, 0, {"epochs": 2}), checkpoint=cli.folder / "mine.pt", stop_after=1)
    assert "is of another trial" in cli.error(*TINY, "-o", "Adam", "--checkpoint", "mine.pt", "--resume")


def test_inspect_without_a_terminal_tells_the_memory_once_an_epoch(cli):
    lines = cli(*TINY, "-o", "SGD_F", "--topC", "4", "--inspect").splitlines()
    told = [line for line in lines if line.startswith("  4/4 slots")]
    assert len(told) == 2
    for word in ("accepted", "|g| ", "in the span", "|d|/|g|", "ages ["):
        assert word in told[-1]


def test_inspect_without_a_terminal_tells_of_the_last_step_of_each_epoch(cli, monkeypatch):
    """However short the epochs: the first look, at an empty memory, says 0 % of everything."""
    before_steps = []
    look = live.Inspector._look_ahead

    def noted(inspector, optimizer):
        inspector.ahead = []
        look(inspector, optimizer)
        before_steps.extend(memory.steps for memory in inspector.ahead)

    monkeypatch.setattr(live.Inspector, "_look_ahead", noted)
    text = cli(*TINY, "-o", "SGD_F", "--topC", "4", "--set", "batch_size=32", "--inspect")
    assert before_steps == [9, 19]
    told = [line for line in text.splitlines() if line.startswith("  4/4 slots")]
    assert len(told) == 2
    assert not any("in the span 0%" in line for line in told)


def test_inspect_of_a_base_has_no_memory_to_tell(cli):
    assert "slots" not in cli(*TINY, "-o", "SGD", "--inspect")


def test_inspect_in_a_terminal_draws_slots_ages_and_norms(cli, monkeypatch, tmp_path):
    with open(tmp_path / "screen", "w") as file:
        terminal = Console(file=file, force_terminal=True, width=100, height=40)
        monkeypatch.setattr(screen, "console", terminal)
        monkeypatch.setattr(live, "REFRESH_SECONDS", 0.0)
        cli(*TINY, "-o", "SGD_F", "--topC", "4", "--inspect")
    drawn = (tmp_path / "screen").read_text()
    assert "4/4 slots" in drawn
    assert "priority" in drawn
    assert "█" in drawn
    assert "epoch 2/2" in drawn


def test_looking_changes_no_number(cli, monkeypatch):
    monkeypatch.setattr(live, "REFRESH_SECONDS", 0.0)
    cli(*TINY, "-o", "Adam_F", "--inspect")
    cli(*TINY, "-o", "Adam_F", "--ledger", "plain.db")
    same_numbers(cli.rows()[0], cli.rows("plain.db")[0])


def test_the_share_in_the_span_is_told_of_a_gradient_that_is_not_in_the_memory_yet(monkeypatch):
    """After a step the gradient may be one of the slots, and lies in their span by construction."""
    import torch

    import critgrad

    monkeypatch.setattr(live, "REFRESH_SECONDS", 0.0)
    weight = torch.nn.Parameter(torch.zeros(3))
    optimizer = critgrad.SGD_F([weight], lr=0.1, topC=2)
    with live.Inspector() as inspector:
        for axis in range(3):
            weight.grad = torch.eye(3)[axis]
            optimizer.step()
            inspector.on_step(optimizer)
    assert critgrad.inspect(optimizer).memories[0].span_share > 0.99
    assert inspector.ahead[0].span_share < 1e-6
    assert "in the span 0% of |g|²" in live.header(*inspector._memories(optimizer)[0])


def test_provenance_tells_the_command_and_the_versions(cli):
    cli(*TINY)
    origin = cli.rows()[0].provenance
    assert {"torch", "numpy", "python", "critgrad", "threads", "command", "device"} <= origin.keys()
    json.dumps(origin)
