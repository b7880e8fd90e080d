"""``python -m critgrad.lab``: what a machine with torch and numpy alone can do."""

from __future__ import annotations

import pytest
from cli_helpers import process, same_numbers, small_registration

from critgrad import cli as bare
from critgrad.lab.ledger import Ledger

# As on a bare machine: whoever asks for one of these, torch too, is told that there is no such package.
BLOCK = """
import sys
BLOCKED = {"typer", "rich", "click", "plotly", "matplotlib", "scipy", "sklearn", "PIL", "transformers", "pandas", "dask",
           "distributed", "submitit", "sacrebleu", "pyarrow", "cvxpy", "clarabel", "tqdm", "yaml", "triton"}
assert not BLOCKED & set(sys.modules)
class Bare:
    def __init__(self, finder):
        self.finder = finder
    def find_spec(self, name, path=None, target=None):
        return None if name.split(".")[0] in BLOCKED else self.finder.find_spec(name, path, target)
sys.meta_path[:] = [Bare(finder) if hasattr(finder, "find_spec") else finder for finder in sys.meta_path]
"""


@pytest.fixture
def run(cli, capsys):
    def call(*words, code=0):
        capsys.readouterr()
        assert bare.main([str(word) for word in words]) == code
        return capsys.readouterr()

    return call


def test_train_is_the_same_run_as_the_commands(cli, run):
    out = run("train", "digits-mlp@tiny", "--optimizer", "SGD_C", "--set", "epochs=2", "--opt", "lr=1").out
    assert "epoch 2/2" in out
    assert (
        "Already in runs.db"
        in run(*("train", "digits-mlp@tiny", "--optimizer", "SGD_C", "--set", "epochs=2", "--opt", "lr=1.0")).out
    )
    cli("train", "digits-mlp@tiny", "-o", "SGD_C", "--epochs", 2, "--lr", 1, "--ledger", "other.db")
    same_numbers(cli.rows()[0], cli.rows("other.db")[0])


def test_sweep_analyze_merge_prepare(cli, run, monkeypatch):
    plan = small_registration(arms=("base", "C"), primary=())
    monkeypatch.setattr("critgrad.paper.protocol.tracks.find", lambda task: plan)
    assert "0 to do" in run("sweep", "digits-mlp@tiny", "--executor", "inline").out
    grid = ("sweep", "digits-mlp@tiny", "--track", "paper-grid", "--trials", 1, "--seeds", 1, "--set", "epochs=1")
    assert "2 done now" in run(*grid, "--families", "SGD", "--engine", "bank", "--executor", "inline").out
    look = ("analyze", "convex", "covtype-logreg@tiny", "--seeds", 1, "--set", "epochs=1", "--executor", "inline")
    first = run(*look).out
    assert "8 done now" in first
    assert run(*look).out in first
    assert run(*look[:2], *look[3:], look[2]).out in first  # options may come first
    with pytest.raises(SystemExit):
        run(*look, "another-task")
    run("analyze", "spectrum")
    with Ledger.open(cli.folder / "runs.db") as book:
        assert len(book.analyses("spectrum")) == 1
    assert "runs added" in run("merge", "all.db", "runs.db").out
    assert run("data", "prepare", "digits-mlp@tiny", "--out", "here").out.strip().endswith("digits@tiny.npz")


@pytest.mark.parametrize(
    "words, said",
    [
        ("train nope", "Invalid task: 'nope'"),
        ("train digits-mlp --opt lr", "Invalid --opt: 'lr', expected NAME=VALUE"),
        ("train digits-mlp --opt zap=1", "zap"),
        ("train digits-mlp --device cuda:77", "Invalid device: 'cuda:77'"),
        ("sweep digits-mlp --shard 2", "Invalid shard: '2'"),
        ("sweep digits-mlp --families Adan", "Invalid family: 'Adan'"),
        ("sweep digits-mlp --track paper-grid --trials 0", "Invalid trials: 0"),
        ("sweep cifar100-convnet --engine bank", "Invalid task for a bank: cifar100-convnet"),
        ("analyze staleness cifar100-convnet --engine bank", "Invalid task for a bank: cifar100-convnet"),
        ("analyze age digits-mlp", "Invalid analysis: 'age'"),
        ("merge all.db none.db", "There is no ledger at none.db"),
        ("data prepare nope", "Invalid name: 'nope'"),
    ],
)
def test_what_a_user_can_put_right_is_one_line(run, words, said):
    text = run(*words.split(), code=1).err
    assert text.startswith("Error: ")
    assert said in text
    assert text.count("\n") == 1


def test_an_unknown_optimizer_has_the_code_of_a_wrong_command_line(run):
    text = run("train", "digits-mlp", "--optimizer", "nadamf", code=2).err
    assert text.startswith("Error: Invalid optimizer: 'nadamf', expected one of SGD")
    assert "did you mean NAdam_F" in text
    assert text.count("\n") == 1


def test_an_interrupt_says_how_to_go_on(run, monkeypatch):
    def stop(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("critgrad.lab.train.loop.train", stop)
    assert "no epoch was finished" in run("train", "digits-mlp@tiny", code=130).err


@pytest.mark.slow
def test_the_run_path_needs_torch_numpy_and_the_standard_library_alone(cli):
    words = (
        ("train", "digits-mlp@tiny", "--set", "epochs=1", "--optimizer", "SGD_F", "--ledger", "one.db"),
        (
            *("sweep", "digits-mlp@tiny", "--track", "paper-grid", "--trials", 1, "--seeds", 1, "--set", "epochs=1"),
            *("--engine", "bank", "--executor", "inline", "--ledger", "bank.db"),
        ),
        ("analyze", "convex", "covtype-logreg@tiny", "--seeds", 1, "--set", "epochs=1", "--executor", "inline"),
        ("merge", "all.db", "one.db", "bank.db"),
        ("data", "prepare", "ptb@tiny", "--out", "here"),
    )
    # One process, one command after the other: starting Python costs more than the runs.
    calls = "\n".join(f"assert main({[str(word) for word in command]!r}) == 0" for command in words)
    left = "assert not BLOCKED & {name.split('.')[0] for name in sys.modules}"
    script = f"{BLOCK}\nfrom critgrad.cli import main\n{calls}\n{left}\nsys.exit(0)"
    child = process(prelude=script)
    out, err = child.communicate(timeout=300)
    assert child.returncode == 0, err
    assert "epoch 1/1" in out
    assert len(cli.rows("all.db")) == 9


@pytest.mark.slow
def test_the_module_runs_as_a_process(cli):
    child = process("train", "digits-mlp@tiny", "--set", "epochs=1", module=True)
    out, err = child.communicate(timeout=300)
    assert child.returncode == 0, err
    assert "accuracy: test" in out
    assert len(cli.rows()) == 1
