"""``python -m critgrad.lab batch``: a file of commands, one pool of workers."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from cli_helpers import finished

from critgrad import cli as bare
from critgrad.lab.run import coordinator
from critgrad.lab.run.batch import BatchLine, Surroundings, read_lines
from critgrad.lab.run.executors import registry
from critgrad.lab.run.executors.base import InlineExecutor
from critgrad.lab.words import pairs
from critgrad.paper import command_line
from critgrad.paper.analyses import ANALYSES, Options
from critgrad.paper.commands import make_track

COMMANDS = ("sweep", "analyze")
SWEEP = "sweep digits-mlp@tiny --track paper-grid --trials 1 --seeds 1 --set epochs=1 --families SGD"
LOOK = "analyze convex covtype-logreg@tiny --seeds 1 --set epochs=1 --optimizer SGD"


@pytest.fixture
def opened(monkeypatch):
    """How executors were asked for, each with the variable that the lines set; the jobs are done in this process."""
    seen = []

    def open_executor(name, *, workers, device, options):
        seen.append((name, workers, os.environ.get("CRITGRAD_OF_A_LINE")))
        return InlineExecutor()

    for module in (registry, coordinator):
        monkeypatch.setattr(module, "open_executor", open_executor)
    return seen


@pytest.fixture
def batch(cli, capsys):
    def call(*lines: str, code: int = 0, **options: object) -> tuple[str, str]:
        (cli.folder / "plan.txt").write_text("\n".join(lines))
        words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
        capsys.readouterr()
        assert bare.main(["batch", str(cli.folder / "plan.txt"), "--device", "cpu", *words]) == code
        return tuple(capsys.readouterr())

    return call


def test_the_lines_are_run_in_turn_by_the_same_workers(cli, opened, batch):
    out, _ = batch("# first the grid", f"{SWEEP} --ledger a.db", "", f"{LOOK} --ledger b.db  # then this", workers=3)
    assert opened == [("local", 3, None)]
    assert out.index("Line 2: sweep") < out.index("2 done now") < out.index("Line 4: analyze") < out.index("1 done now")
    assert (len(cli.rows("a.db")), len(cli.rows("b.db"))) == (2, 1)
    batch(f"{SWEEP} --ledger a.db", f"{LOOK} --ledger b.db")
    assert len(opened) == 1  # nothing was left to run


def test_a_run_names_its_own_command_not_the_batch(cli, opened, batch):
    batch(f"{SWEEP} --ledger a.db", f"{LOOK} --workers 2 --ledger b.db", workers=3)
    swept, looked = ({tuple(row.provenance["command"][1:]) for row in cli.rows(name)} for name in ("a.db", "b.db"))
    assert swept == {(*f"{SWEEP} --ledger a.db --device cpu --workers 3".split(),)}
    assert looked == {(*f"{LOOK} --workers 2 --ledger b.db --device cpu".split(),)}


def test_a_line_may_ask_for_a_number_of_workers_of_its_own(opened, batch):
    batch(f"{SWEEP} --ledger a.db --workers 2", f"{LOOK} --ledger b.db", workers=3)
    assert [workers for _, workers, _ in opened] == [2, 3]


def test_what_is_missing_of_the_results_can_be_run_as_it_stands():
    lines = read_lines(Path(__file__).parents[3] / "results" / "missing.txt", COMMANDS)
    assert lines
    for line in lines:
        own = bare.parse(line.arguments)
        settings = pairs(own.set, "--set")
        if own.command == "analyze":
            assert ANALYSES[own.name].trials(own.task, Options(own.seeds, settings, lines=own.lines))
        else:
            assert make_track(own.task, own.track, seeds=own.seeds, settings=settings).total
    assert len({line.arguments[-1] for line in lines}) == len(lines)  # each has a ledger of its own


def test_another_environment_takes_other_workers_and_is_gone_afterwards(opened, batch):
    named = "CRITGRAD_OF_A_LINE=1"
    batch(f"{named} {SWEEP} --ledger a.db", f"{named} {LOOK} --ledger b.db", f"{LOOK} --ledger c.db")
    assert opened == [("local", None, "1"), ("local", None, None)]
    assert "CRITGRAD_OF_A_LINE" not in os.environ


def test_runs_that_are_timed_have_no_workers_beside_them(opened, batch):
    timed = "analyze runtime mnist-mlp@tiny --seeds 1 --set epoch_steps=5 --ledger b.db"
    batch(f"{SWEEP} --ledger a.db", timed, f"{LOOK} --ledger c.db", workers=3)
    assert [workers for _, workers, _ in opened] == [3, 1, 3]  # those of the first line were closed, and opened anew


def test_a_line_that_cannot_be_run_does_not_keep_the_others(cli, opened, batch):
    _, err = batch("sweep no-such-task --track paper-best", f"{SWEEP} --ledger a.db", code=1)
    assert err.startswith("Error: Invalid task: 'no-such-task'")
    assert len(cli.rows("a.db")) == 2


def test_an_interruption_ends_the_batch_and_is_its_exit_code(cli, opened, batch, monkeypatch):
    monkeypatch.setitem(command_line.RUNNERS, "analyze", lambda args, **of_batch: 130)
    lines = ("sweep no-such-task --track paper-best", f"{LOOK} --ledger b.db", f"{SWEEP} --ledger a.db")
    out, _ = batch(*lines, code=130)
    assert "Line 3" not in out
    assert not (cli.folder / "a.db").exists()


def test_a_mistake_in_any_line_is_told_before_the_first_is_run(cli, opened, batch):
    with pytest.raises(SystemExit):
        batch(f"{SWEEP} --ledger a.db", "sweep digits-mlp --no-such-option")
    _, err = batch(f"{SWEEP} --ledger a.db", "train digits-mlp", code=1)
    assert "Invalid command in line 2" in err
    assert "'train', expected one of sweep, analyze, ablate" in err
    assert not (cli.folder / "a.db").exists()


def test_what_the_time_does_not_allow_is_named(cli, opened, batch):
    out, _ = batch(f"{SWEEP} --ledger a.db", code=1, seconds=0)
    assert out == f"No time for line 1: {SWEEP} --ledger a.db\n"


def test_lines_are_read_as_a_shell_reads_them(tmp_path: Path):
    path = tmp_path / "plan.txt"
    path.write_text("# nothing\n\nA=1 B='x y' sweep digits-mlp --ledger 'my runs.db' # why\n")
    line = BatchLine(3, {"A": "1", "B": "x y"}, ("sweep", "digits-mlp", "--ledger", "my runs.db"))
    assert read_lines(path, COMMANDS) == [line]
    path.write_text(line.text)
    assert read_lines(path, COMMANDS)[0].arguments == line.arguments


def test_an_environment_is_put_back(monkeypatch):
    monkeypatch.setenv("CRITGRAD_ONE", "old")
    surroundings = Surroundings()
    assert surroundings.change({"CRITGRAD_ONE": "new", "CRITGRAD_TWO": "2"})
    assert not surroundings.change({"CRITGRAD_ONE": "new", "CRITGRAD_TWO": "2"})
    assert surroundings.change({"CRITGRAD_TWO": "2"})
    assert os.environ["CRITGRAD_ONE"] == "old"
    surroundings.restore()
    assert "CRITGRAD_TWO" not in os.environ


def test_it_works_with_processes(cli):
    (cli.folder / "plan.txt").write_text(f"{SWEEP} --ledger a.db\n{LOOK} --ledger b.db\n")
    out = finished("batch", "plan.txt", "--device", "cpu", "--workers", 1, module=True)
    assert "2 done now" in out
    assert (len(cli.rows("a.db")), len(cli.rows("b.db"))) == (2, 1)
