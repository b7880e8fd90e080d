"""Everything that can change a run's numbers is in its key, and nothing else."""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib import metadata
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest
from study_helpers import FILE, LOOP, PIECES, keys, made, run, write

from critgrad.lab.errors import LabError
from critgrad.lab.run.coordinator import Event
from critgrad.lab.study.optimizers import maker_of
from critgrad.lab.study.plan import StudyPlan
from critgrad.lab.study.runner import prepare
from critgrad.lab.tasks.models import lstm

MINE = "import torch\nclass Mine(torch.optim.SGD):\n    pass\n"
OWN = FILE.replace("torch.optim:Adam", "mine.py:Mine").replace(
    'betas.0 = "one-minus 0.5 0.99"', 'momentum = "linear 0 1"'
)


def keys_of(path: Path) -> dict[str, list[str]]:
    """By arm, of its runs whose points are known before anything runs."""
    plan = prepare(path, "cpu").plan
    return {arm: [trial.key for n in (1, 2) for _, trial in plan.searched(arm, n)] for arm in plan.study.arms}


def edit_task(folder: Path) -> None:
    (folder / "task.py").write_text(PIECES.replace("- 1)", "- 2)"))


def edit_helper(folder: Path) -> None:
    (folder / "deep" / "helper.py").write_text("x = 2\n")


def add_file(folder: Path) -> None:
    (folder / "later.py").write_text("")


def edit_optimizer(folder: Path) -> None:
    (folder / "mine.py").write_text(MINE + "# another\n")


def edit_extension(folder: Path) -> None:
    (folder / f"kernels{EXTENSION_SUFFIXES[0]}").write_bytes(b"another")


def edit_data(folder: Path) -> None:
    (folder / "numbers.csv").write_text("3\n")


def in_file(old: str, new: str) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        path = folder / "study.toml"
        assert old in path.read_text()
        path.write_text(path.read_text().replace(old, new, 1))

    return edit


def environment(name: str, value: str) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        os.environ[name] = value

    return edit


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("CRITGRAD_COMPILE", "CRITGRAD_ENGINE", "CRITGRAD_NATIVE", lstm.ASKED, "NVIDIA_TF32_OVERRIDE"):
        monkeypatch.setenv(name, "")  # so that it is put back
    write(tmp_path, PIECES + "data = ['numbers.csv']\n", OWN, mine=MINE)
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "helper.py").write_text("x = 1\n")
    (tmp_path / "numbers.csv").write_text("1 2\n")
    (tmp_path / f"kernels{EXTENSION_SUFFIXES[0]}").write_bytes(b"one")
    return tmp_path


CHANGES: dict[str, Callable[[Path], None]] = {
    "the task": edit_task,
    "a module that nobody has imported yet": edit_helper,
    "a new file": add_file,
    "the optimizer's file": edit_optimizer,
    "a compiled module": edit_extension,
    "data that the task names": edit_data,
    "epochs": in_file("epochs = 2", "epochs = 3"),
    "direction": in_file('"min"', '"max"'),
    "the seed": in_file("seed = 7", "seed = 8"),
    "precision": in_file("seed = 7", 'seed = 7\nprecision = "high"'),
    "a schedule": in_file("[arms.sgd]", '[schedule]\nkind = "cosine"\n[arms.sgd]'),
    "compilation": environment("CRITGRAD_COMPILE", "1"),
    "the engine of our own optimizers": environment("CRITGRAD_ENGINE", "torch"),
    "the native core": environment("CRITGRAD_NATIVE", "0"),
    "layers by kernels": environment(lstm.ASKED, "1"),
    "TF32": environment("NVIDIA_TF32_OVERRIDE", "0"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_what_changes_numbers_changes_every_key(name: str, folder: Path) -> None:
    before = keys_of(folder / "study.toml")
    CHANGES[name](folder)
    after = keys_of(folder / "study.toml")
    assert before.keys() == after.keys()
    for arm in before:
        assert not set(before[arm]) & set(after[arm])


@pytest.mark.parametrize(
    "change",
    [
        in_file('title = "A small one"', ""),
        in_file("replicates = 2", "replicates = 5"),
        in_file("report_seeds = 1", "report_seeds = 3"),
        in_file("seed = 7", "seed = 7\nmargin = 0.1"),
        in_file("1e-3 1e-1", "0.001 0.1"),
    ],
)
def test_what_does_not_change_numbers_changes_no_key(change: Callable[[Path], None], folder: Path) -> None:
    before = keys_of(folder / "study.toml")
    change(folder)
    (folder / "notes.txt").write_text("not Python")
    (folder / ".hidden").mkdir()
    (folder / ".hidden" / "x.py").write_text("")
    assert keys_of(folder / "study.toml") == before


def test_an_editors_lock_and_a_name_that_is_no_text_are_no_mistake(folder: Path) -> None:
    before = keys_of(folder / "study.toml")
    (folder / ".#task.py").symlink_to("somebody@host.1234")
    assert keys_of(folder / "study.toml") == before
    Path(os.fsdecode(os.fsencode(folder) + b"/\xe4.py")).touch()
    assert keys_of(folder / "study.toml") != before


def test_a_study_may_be_moved(folder: Path, tmp_path: Path) -> None:
    before = keys_of(folder / "study.toml")
    moved = tmp_path.with_name(tmp_path.name + "-moved")
    folder.rename(moved)
    assert keys_of(moved / "study.toml") == before


def test_an_arm_has_keys_of_its_own_options_alone(folder: Path) -> None:
    before = keys_of(folder / "study.toml")
    in_file("momentum = 0.5", "momentum = 0.6")(folder)
    after = keys_of(folder / "study.toml")
    assert after["adam"] == before["adam"]
    assert not set(after["sgd"]) & set(before["sgd"])


@pytest.mark.parametrize("named", ["version", "file", "edit"])
def test_another_version_of_the_optimizers_package_changes_the_key(
    named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "installed" / f"somebodys_{named}"
    package.mkdir(parents=True)
    monkeypatch.syspath_prepend(str(package.parent))
    path = write(tmp_path / "study", file=OWN.replace("mine.py:", f"somebodys_{named}:"))
    found = []
    for version in ("1.0", "1.1"):
        line = f"# {version}\n"
        if named != "file":  # a package that is developed is edited under one version
            line += f"__version__ = '{'1.0' if named == 'edit' else version}'\n"
        (package / "__init__.py").write_text(line + MINE)
        monkeypatch.delitem(__import__("sys").modules, f"somebodys_{named}", raising=False)
        __import__("importlib").invalidate_caches()
        found.append(keys_of(path))
    assert found[0]["sgd"] == found[1]["sgd"]
    assert not set(found[0]["adam"]) & set(found[1]["adam"])


def test_whatever_a_package_without_a_version_imports_changes_the_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "somebodys_parts"
    package.mkdir()
    monkeypatch.syspath_prepend(str(tmp_path))
    (package / "__init__.py").write_text("from .core import Mine\n")
    (package / "core.py").write_text("from . import formula\n" + MINE)
    path = write(tmp_path / "study", file=OWN.replace("mine.py:", "somebodys_parts:"))
    (package / "formula.py").touch()
    before = keys_of(path)
    (package / "formula.py").write_text("scale = 2\n")
    assert not set(before["adam"]) & set(keys_of(path)["adam"])


@pytest.mark.parametrize(
    "mine",
    [
        MINE,
        "import torch\ndef Mine(params, lr, momentum): return torch.optim.SGD(params, lr, momentum)\n",
        "import functools, torch\nMine = functools.partial(torch.optim.SGD, nesterov=True)\n",
    ],
    ids=["a class on top of torch's", "a function", "a part of torch's"],
)
def test_torchs_version_is_that_of_its_optimizers(mine: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "mine.py").write_text(mine)
    before = keys_of(folder / "study.toml")
    monkeypatch.setattr("importlib.metadata.version", lambda name: "99")
    after = keys_of(folder / "study.toml")
    for arm in before:
        assert not set(before[arm]) & set(after[arm])


@pytest.mark.parametrize("name", ["AdEMAMix", "Cautious", "GrokFast", "MARS"])
def test_torchs_version_is_that_of_the_labs_functions_that_make_its_optimizers(name: str, tmp_path: Path) -> None:
    assert f"torch {metadata.version('torch')}" in maker_of(name, tmp_path).packages.split(", ")


def test_another_kind_of_device_changes_the_key_and_another_of_the_same_kind_does_not(folder: Path) -> None:
    plan = prepare(folder / "study.toml", "cpu").plan
    found = {}
    for device in ("cpu", "cuda"):
        other = StudyPlan(plan.study, {**plan.around, "device": device})
        found[device] = other.searched("sgd", 1)[0][1].key
    assert found["cpu"] == plan.searched("sgd", 1)[0][1].key
    assert found["cuda"] != found["cpu"]


def test_a_built_in_task_with_an_installed_optimizer_has_nothing_to_do_with_files_beside_it(tmp_path: Path) -> None:
    file = OWN.replace('"task.py"', '"digits-mlp@tiny"').replace('"min"', '"max"')
    path = write(tmp_path, file=file, mine=MINE)
    before = keys_of(path)
    edit_optimizer(tmp_path)
    after = keys_of(path)
    assert after["sgd"] == before["sgd"]
    assert not set(after["adam"]) & set(before["adam"])
    in_file("seed = 7", "seed = 7\nsettings = { batch_size = 8 }")(tmp_path)
    assert not set(keys_of(path)["sgd"]) & set(before["sgd"])


@pytest.mark.parametrize("task", [PIECES, LOOP])
def test_after_an_edit_there_are_new_runs_and_after_it_is_taken_back_the_earlier_ones_count(
    task: str, tmp_path: Path
) -> None:
    helped = task.replace("import torch\n", "import torch\nfrom helper import OFFSET\n", 1)
    helped = helped.replace("+ 1}", "+ OFFSET}").replace("test=1 +", "test=OFFSET +")
    path = write(tmp_path, helped, helper="OFFSET = 1\n")
    first, count = made(path)
    (tmp_path / "helper.py").write_text("OFFSET = 2\n")  # in the same second, and of the same size
    edited, again = made(path)
    assert again == count
    for arm in first.arms:
        pairs = zip(first.arms[arm].replicates, edited.arms[arm].replicates)
        assert all(b.reports[0].test == pytest.approx(a.reports[0].test + 1) for a, b in pairs)
    (tmp_path / "helper.py").write_text("OFFSET = 1\n")
    back, none = made(path)
    assert none == 0
    assert back.arms == first.arms
    assert not list(tmp_path.rglob("*.pyc"))


def test_an_edit_is_seen_through_a_link_to_the_folder_too(tmp_path: Path) -> None:
    write(tmp_path / "real", LOOP)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    path = tmp_path / "link" / "study.toml"
    first, count = made(path)
    write(tmp_path / "real", LOOP.replace("test=1", "test=2"))
    edited, again = made(path)
    assert again == count
    for arm in first.arms:
        pairs = zip(first.arms[arm].replicates, edited.arms[arm].replicates)
        assert all(b.value == pytest.approx(a.value + 1) for a, b in pairs)


def test_an_edit_behind_a_linked_folder_makes_new_runs(tmp_path: Path) -> None:
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "helper.py").write_text("OFFSET = 1\n")
    (tmp_path / "lib" / "round").symlink_to(tmp_path / "lib")  # a circle
    path = write(tmp_path / "study", LOOP.replace("import torch", "import torch\nfrom lib.helper import OFFSET", 1))
    (tmp_path / "study" / "lib").symlink_to(tmp_path / "lib")
    count = made(path)[1]
    (tmp_path / "lib" / "helper.py").write_text("OFFSET = 2\n")
    assert made(path)[1] == count


@pytest.mark.parametrize("name", ["task.py", "numbers.csv"])
def test_an_edit_while_it_runs_ends_the_study_and_no_key_gets_numbers_of_other_files(name: str, tmp_path: Path) -> None:
    path = write(tmp_path, LOOP + "data = ['numbers.csv']\n")
    file = tmp_path / name
    (tmp_path / "numbers.csv").write_text("1")
    before = file.read_text()

    def edit(event: Event) -> None:
        if event.kind == "done":
            file.write_text(before.replace("1", "2"))

    with pytest.raises(LabError, match="have changed while it ran"):
        run(path, on_event=edit)
    assert len(keys(path)) == 1
    file.write_text(before)
    answer, count = made(path)
    assert count == 14 - 1
    assert all(run.test == pytest.approx(1 + run.valid) for r in answer.arms["sgd"].replicates for run in r.reports)


def test_two_arms_that_are_the_same_share_their_runs(tmp_path: Path) -> None:
    file = FILE[: FILE.index("[arms.adam]")] + FILE[FILE.index("[arms.sgd]") : FILE.index("[arms.adam]")].replace(
        "arms.sgd", "arms.twin"
    )
    path = write(tmp_path, file=file)
    answer, count = made(path)
    assert count == 6
    assert answer.claims[0].differences == (0.0, 0.0)
    assert run(path).final
