from __future__ import annotations

import pytest

from critgrad import cli as command_line
from critgrad.lab.errors import LabError, MissingFileError, MissingPackageError
from critgrad.lab.ledger import LedgerError
from critgrad.lab.train.optimizers import OPTIMIZERS


@pytest.mark.parametrize(
    "words, said",
    [
        ("train nope", "Invalid task: 'nope', expected one of digits-mlp"),
        ("train --set epochs", "Invalid --set: 'epochs', expected NAME=VALUE"),
        ("train --set colour=3", "Invalid setting of digits-mlp: 'colour'"),
        ("train --opt zap=1", "zap"),
        ("train --decay 1.5", "Invalid decay: 1.5"),
        ("train --opt lr=nan", "expected a finite number"),
        ("train --device gpu", "Invalid device: 'gpu'"),
        ("train --device cuda:99", "Invalid device: 'cuda:99'"),
        ("sweep nope", "Invalid task: 'nope'"),
        ("sweep digits-mlp --track best", "Invalid track: 'best', expected one of paper-best, paper-grid, fair"),
        ("sweep digits-mlp --track paper-best", "The paper lists no best hyper-parameters for 'digits-mlp'"),
        ("sweep ptb-lstm --track paper-best --trials 3", "Invalid --trials with --track paper-best"),
        ("sweep digits-mlp --shard 3/2", "Invalid shard: '3/2', expected i/n with 1 <= i <= n"),
        ("sweep digits-mlp --shard 0/2", "Invalid shard: '0/2'"),
        ("sweep digits-mlp --shard half", "Invalid shard: 'half'"),
        ("sweep digits-mlp --families SGD,Adan", "Invalid family: 'Adan', expected some of SGD, SGDM, RMSprop, Adam"),
        ("sweep digits-mlp --set epochs=3", "Invalid --set with --track fair"),
        ("sweep digits-mlp --engine tank", "Invalid engine: 'tank'"),
        ("sweep cifar100-convnet --engine bank", "Invalid task for a bank: cifar100-convnet"),
        ("sweep cifar100-convnet --track paper-grid --engine bank", "use --engine single"),
        ("analyze staleness cifar100-convnet --engine bank", "Invalid task for a bank: cifar100-convnet"),
        ("ablate cifar100-convnet --engine bank", "Invalid task for a bank: cifar100-convnet"),
        ("sweep digits-mlp --track paper-grid --executor cloud", "Invalid executor: 'cloud', expected one of local"),
        ("sweep digits-mlp --track paper-grid --write-defaults", "Invalid --write-defaults"),
        ("sweep multiwoz-roberta", "No registration for 'multiwoz-roberta'"),
        ("compare multiwoz-roberta", "No hyper-parameters for 'multiwoz-roberta'"),
        ("compare --families Adan", "Invalid family: 'Adan'"),
        ("status --ledger none.db", "There is no ledger at none.db"),
        ("best --ledger none.db", "There is no ledger at none.db"),
        ("export runs.csv --ledger none.db", "There is no ledger at none.db"),
        ("report --ledger none.db", "There is no ledger at none.db"),
        ("merge all.db none.db", "There is no ledger at none.db"),
        ("analyze decompose --ledger none.db", "There is no ledger at none.db"),
        ("analyze age", "Invalid analysis: 'age', expected one of staleness"),
        ("analyze staleness nope", "Invalid task: 'nope'"),
        ("analyze staleness digits-mlp -o SGD", "Invalid optimizer for staleness: 'SGD', expected one of SGD_C"),
        ("analyze damping digits-mlp -o SGD_C", "Invalid optimizer for damping: 'SGD_C', expected one of SGD_F"),
        ("analyze runtime digits-mlp --engine bank", "bank rows carry no times"),
        ("analyze runtime digits-mlp -o SGD_C", "Invalid optimizer for runtime: 'SGD_C'"),
        ("ablate digits-mlp -o Adam", "Invalid optimizer for ablation: 'Adam'"),
        ("data check nope", "Invalid name: 'nope', expected a task or one of the data sets"),
        ("data prepare mnist", "Missing data file: mnist/"),
        ("theory --decay 2", "decay"),
        ("train --set hidden=wide", "Invalid hidden of digits-mlp: 'wide', expected an int >= 1"),
    ],
)
def test_what_a_user_can_put_right_is_one_line(cli, words, said):
    assert said in cli.error(*words.split())


@pytest.mark.parametrize(
    "name, nearest",
    [
        ("aggmo", "did you mean AggMo"),
        ("Adagrad_C", "did you mean Adam_C"),
        ("adamf", "did you mean Adam_F"),
        ("zzz", ""),
    ],
)
@pytest.mark.parametrize("words", ["train", "train --inspect", "analyze staleness", "ablate digits-mlp"])
def test_an_unknown_optimizer_is_one_line_with_the_known_ones_and_the_code_of_a_wrong_command_line(
    cli, words, name, nearest
):
    said = cli.error(*words.split(), "-o", name, code=2)
    assert f"Invalid optimizer: {name!r}, expected one of {', '.join(OPTIMIZERS)}" in said
    assert nearest in said
    assert ("did you mean" in said) == bool(nearest)


def test_an_error_leaves_no_run_behind(cli):
    cli.error("train", "--opt", "zap=1")
    assert cli.rows(status=None) == []


@pytest.mark.parametrize(
    "content, said",
    [
        (b'sweep digits-mlp\nsweep --ledger "x.db\n', "Invalid line 2 of plan.txt: No closing quotation"),
        (b"\xff\xfe", "no text"),
    ],
)
def test_a_batch_that_cannot_be_read_is_one_line(cli, content, said):
    (cli.folder / "plan.txt").write_bytes(content)
    assert said in cli.error("batch", "plan.txt")


@pytest.mark.parametrize(
    "words, said",
    [
        ("--executor slurm", "The executor slurm cannot submit here: "),
        ("--executor dask --executor-opt address=nowhere", "Invalid address of the executor dask: 'nowhere'"),
    ],
)
def test_a_cluster_that_is_not_there_is_one_line(cli, words, said, monkeypatch):
    pytest.importorskip("submitit" if "slurm" in words else "distributed")
    monkeypatch.setenv("PATH", "")  # no srun
    assert said in cli.error(*f"sweep digits-mlp@tiny --track paper-grid --trials 1 --seeds 1 {words}".split())


@pytest.mark.parametrize("words", ["status", "train digits-mlp@tiny"])
def test_a_folder_instead_of_a_ledger_is_called_one(cli, words):
    (cli.folder / "runs").mkdir()
    assert "Ledger runs is a folder: give the file" in cli.error(*words.split(), "--ledger", "runs")


def test_not_a_ledger_is_one_line(cli):
    (cli.folder / "runs.db").write_text("hello, this is no database\n" * 100)
    assert "runs.db" in cli.error("status")


@pytest.fixture
def raising(monkeypatch, capsys):
    """A command that raises; its exit code and what it says."""

    def call(error):
        def fails(args):
            raise error

        monkeypatch.setattr(command_line, "_run", fails)
        return command_line.main(["tasks"]), capsys.readouterr().err

    return call


def test_brackets_of_an_error_survive(raising):
    code, said = raising(MissingPackageError("pip install 'critgrad[lab]' [bold]now[/bold]"))
    assert code == 1
    assert "pip install 'critgrad[lab]' [bold]now[/bold]" in said


@pytest.mark.parametrize("kind", [ZeroDivisionError, ValueError, TypeError, ImportError, KeyError])
def test_a_defect_keeps_its_traceback(raising, kind):
    with pytest.raises(kind, match="ours"):
        raising(kind("ours"))


@pytest.mark.parametrize(
    "error", [LabError("yours"), MissingFileError("yours"), LedgerError("yours"), PermissionError("yours")]
)
def test_what_a_user_did_wrong_is_one_line_whatever_its_kind(raising, error):
    assert raising(error) == (1, "Error: yours\n")


def test_an_interrupt_says_how_to_go_on(raising):
    code, said = raising(KeyboardInterrupt())
    assert code == 130
    assert "goes on from here" in said
