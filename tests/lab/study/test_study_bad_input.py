"""Everything wrong is one line on standard error that says what is allowed, exit status 2, and no file."""

from __future__ import annotations

from pathlib import Path

import pytest
from study_helpers import FILE, LOOP, PIECES, call, process, write

from critgrad.lab.study.file import read

# What is replaced in the file, by what, and what the line must say.
BAD = {
    "unknown key": ("epochs = 2", "epochs = 2\nepoch = 3", ["epoch", "expected one of", "did you mean epochs"]),
    "unknown key of an arm": ("[arms.adam]", "[arms.adam]\nlr = 3", ["arms.adam.lr", "optimizer, fixed, search"]),
    "another format": ("format = 1", "format = 2", ["format is 2", "expected 1"]),
    "no format": ("format = 1", "", ["format is missing", "expected 1"]),
    "wrong type": ("epochs = 2", 'epochs = "two"', ["epochs is 'two'", "a whole number >= 1"]),
    "a bool is no number": ("epochs = 2", "epochs = true", ["epochs is True", "a whole number"]),
    "few replicates": ("replicates = 2", "replicates = 1", ["replicates is 1", ">= 2"]),
    "no trials": ("trials = 2", "trials = 0", ["trials is 0", ">= 1"]),
    "no reports": ("report_seeds = 1", "report_seeds = 0", ["report_seeds is 0", ">= 1"]),
    "a large seed": ("seed = 7", "seed = 2147483648", ["seed is 2147483648", "2^31 - 1"]),
    "a negative margin": ("seed = 7", "seed = 7\nmargin = -1", ["margin is -1", ">= 0"]),
    "an infinite margin": ("seed = 7", "seed = 7\nmargin = inf", ["margin is inf", ">= 0"]),
    "unknown precision": ("seed = 7", 'seed = 7\nprecision = "low"', ["precision is 'low'", "highest, high, medium"]),
    "no direction": ('direction = "min"', "", ["direction is missing", "'min' or 'max'"]),
    "another direction": ('direction = "min"', 'direction = "up"', ["direction is 'up'", "'min' or 'max'"]),
    "no epochs": ("epochs = 2", "", ["epochs is missing"]),
    "no task": ('task = "task.py"', "", ["task is missing", "critgrad tasks"]),
    "a task that is not there": ('"task.py"', '"tusk.py"', ["tusk.py", "no file", "critgrad tasks"]),
    "an unknown built-in task": ('"task.py"', '"mnist"', ["'mnist'", "expected one of", "digits-mlp"]),
    "an unknown variant": ('"task.py"', '"digits-mlp@small"', ["'small'", "tiny"]),
    "settings of one's own task": ("seed = 7", "seed = 7\nsettings = { batch_size = 3 }", ["settings", "built-in"]),
    "the wrong direction": (
        'task = "task.py"',
        'task = "digits-mlp@tiny"',
        ["direction is 'min'", "'max'", "accuracy"],
    ),
    "unknown axis": (
        '"log 1e-3 1e-1" }',
        '"lag 1e-3 1e-1" }',
        ["arms.sgd.search.lr", "lag", "'log LOW HIGH'", "choice"],
    ),
    "an axis without HIGH": ('"log 1e-3 1e-1" }', '"log 1e-3" }', ["arms.sgd.search.lr", "expected LOW and HIGH"]),
    "an axis of words": ('"log 1e-3 1e-1" }', '"log a b" }', ["arms.sgd.search.lr", "'a'", "a number"]),
    "an axis that is no text": ('"log 1e-3 1e-1" }', "0.1 }", ["arms.sgd.search.lr is 0.1", "log 1e-4 1e-1"]),
    "LOW above HIGH": ('"log 1e-3 1e-1" }', '"log 1 0.1" }', ["arms.sgd.search.lr", "LOW < HIGH"]),
    "LOW is HIGH": ('"log 1e-3 1e-1" }', '"linear 1 1" }', ["arms.sgd.search.lr", "LOW < HIGH"]),
    "log of 0": ('"log 1e-3 1e-1" }', '"log 0 1" }', ["arms.sgd.search.lr", "above 0"]),
    "log-int of 0": ('"log 1e-3 1e-1" }', '"log-int 0 5" }', ["arms.sgd.search.lr", "above 0"]),
    "one-minus of 1": ('"one-minus 0.5 0.99"', '"one-minus 0.5 1"', ["arms.adam.search.betas.0", "below 1"]),
    "half an int": ('"log 1e-3 1e-1" }', '"int 1 2.5" }', ["arms.sgd.search.lr", "'2.5'", "a whole number"]),
    "one choice": ('"log 1e-3 1e-1" }', '"choice 1" }', ["arms.sgd.search.lr", "two or more"]),
    "a place that is not there": ("betas.0", "betas.2", ["arms.adam", "betas.2", "(0.9, 0.999)"]),
    "a place of a number": ("betas.0", "eps.0", ["arms.adam", "eps.0", "1e-08"]),
    "a name with spaces": ("betas.0", '"be tas"', ["arms.adam.search.be tas", "an option"]),
    "fixed and searched": ("momentum = 0.5", "lr = 0.5", ["arms.sgd.search.lr", "under fixed, too"]),
    "an infinite value": ("momentum = 0.5", "momentum = inf", ["arms.sgd.fixed.momentum is inf", "finite"]),
    "no module": ("torch.optim:Adam", "torch.opt:Adam", ["arms.adam.optimizer", "No module named 'torch.opt'"]),
    "no class": ("torch.optim:Adam", "torch.optim:Adma", ["arms.adam.optimizer", "torch.optim has no", "'Adma'"]),
    "no such name": ("torch.optim:Adam", "Adma", ["arms.adam.optimizer", "'Adma'", "did you mean Adam"]),
    "no such file": ("torch.optim:Adam", "mine.py:Adam", ["arms.adam.optimizer", "mine.py", "no file"]),
    "no optimizer": ('optimizer = "torch.optim:Adam"', "", ["arms.adam.optimizer is missing", "module:name"]),
    "an option it does not take": (
        "momentum = 0.5",
        "momentun = 0.5",
        ["arms.sgd", "SGD does not take momentun", "lr"],
    ),
    "a searched one": ("search = { lr", "search = { rate", ["arms.sgd", "SGD does not take rate"]),
    "an unknown arm": ('against = "sgd"', 'against = "sdg"', ["'sdg'", "sgd, adam"]),
    "a claim about no arm": ('arm = "adam"', 'arm = "adma"', ["'adma'", "sgd, adam"]),
    "a claim about itself": ('against = "sgd"', 'against = "adam"', ["'adam'", "other arms"]),
    "a claim without rivals": ('against = "sgd"', "against = []", ["claims[1].against is []", "a list of them"]),
    "two arms of one name": ("[arms.adam]", "[arms.sgd]", ["twice", "arms"]),
    "one arm": (FILE[FILE.index("[arms.adam]") :], "", ["arms", "two or more tables"]),
    "no TOML": ("epochs = 2", "epochs = ", ["not TOML", "line 6"]),
    "data in the study's file": (
        "direction =",
        'data = ["a.npz"]\ndirection =',
        ["unknown key data", "in the task's file"],
    ),
    "unknown schedule": ("[arms.sgd]", '[schedule]\nkind = "step"\n[arms.sgd]', ["schedule.kind is 'step'", "cosine"]),
    "many replicates": (
        "replicates = 2",
        "replicates = 1000000000000",
        ["replicates is 1000000000000", "1000 at most"],
    ),
    "many trials": ("trials = 2", "trials = 1000000000000", ["trials is 1000000000000", "1000 at most"]),
    "many reports": ("report_seeds = 1", "report_seeds = 1001", ["report_seeds is 1001", "1000 at most"]),
    "a margin that is no number": ("seed = 7", "seed = 7\nmargin = nan", ["margin is nan", ">= 0"]),
    "trials true": ("trials = 2", "trials = true", ["trials is True", "a whole number"]),
    "a title of lines": ('"A small one"', '"a\\nb"', ["title is 'a\\nb'", "on one line"]),
    "an arm of lines": ("[arms.adam]", '[arms."a\\nb"]', ["an arm is called 'a\\nb'", "on one line"]),
    "an arm without a name": ("[arms.adam]", '[arms.""]', ["an arm is called ''", "on one line"]),
    "a task that no file can be called": ('"task.py"', '"ta\\u0000sk.py"', ["task is ", "a Python file"]),
    "an optimizer that no file can be called": (
        "torch.optim:Adam",
        "m\\u0000.py:A",
        ["arms.adam.optimizer is ", "file.py"],
    ),
    "a task outside of the folder": ('"task.py"', '"../task.py"', ["no file ../task.py beside the study's"]),
    "an optimizer outside of the folder": ("torch.optim:Adam", "../mine.py:Adam", ["no file ../mine.py beside"]),
    "a task that is a folder": ('"task.py"', '".py"', ["there is no file .py beside the study's"]),
    "an empty table of places": ("momentum = 0.5", "betas = {}", ["arms.sgd.fixed.betas", "a place in one"]),
    "an empty table of axes": (
        "search = { lr",
        "search = { betas = {}, lr",
        ["arms.sgd.search.betas", "a place in one"],
    ),
    "axes in tables in tables": ("betas.0 = ", "betas.0.1 = ", ["arms.adam.search.betas.0 is {'1'", "expected a text"]),
    "one place twice": (
        "betas.0",
        '"betas.0" = "linear 0 1", betas.0',
        ["arms.adam.search.betas.0 stands there twice"],
    ),
    "a place with a zero before it": ("betas.0", "betas.00", ["arms.adam.search.betas.00", "a place in one (betas.0)"]),
    "one value twice": ('"log 1e-3 1e-1" }', '"choice 0.1 1e-1" }', ["arms.sgd.search.lr", "two or more different"]),
    "choices with commas": ('"log 1e-3 1e-1" }', '"choice 0.1, 0.2" }', ["'0.1,'", "with spaces between them"]),
    "a choice of nan": ('"log 1e-3 1e-1" }', '"choice nan 0.1" }', ["arms.sgd.search.lr", "'nan'", "finite"]),
    "a range of one value": ('"log 1e-3 1e-1" }', '"linear 100 100.01" }', ["arms.sgd.search.lr", "further apart"]),
    "an endless range": ('"log 1e-3 1e-1" }', '"linear -1e308 1e308" }', ["arms.sgd.search.lr", "further apart"]),
    "a claim made twice": (
        "[[claims]]",
        '[[claims]]\narm = "adam"\nagainst = ["sgd"]\n[[claims]]',
        ["'adam' against 'sgd'", "twice"],
    ),
    "a margin beyond all floats": ("seed = 7", f"seed = 7\nmargin = 1{'0' * 400}", ["margin is 1000", ">= 0"]),
    "a warm-up beyond all floats": ("[arms.sgd]", f"[schedule]\nwarmup = 1{'0' * 400}\n[arms.sgd]", ["0 to 1"]),
    "a range beyond all floats": (
        '"log 1e-3 1e-1" }',
        f'"int 1 {"9" * 400}" }}',
        ["arms.sgd.search.lr", "2^53 at most"],
    ),
    "a number of thousands of digits": ("seed = 7", f"seed = {'7' * 5000}", ["cannot be read", "digits"]),
    "lists in lists in lists": ("seed = 7", f"seed = {'[' * 900}{']' * 900}", ["cannot be read"]),
    "endless epochs": ("epochs = 2", f"epochs = 1{'0' * 30}", ["epochs is 1000", "10^9 at most"]),
    "a task of a very long name": ('"task.py"', f'"{"a" * 300}.py"', ["task: there is no file aaa"]),
    "an optimizer of a very long name": (
        "torch.optim:Adam",
        f"{'a' * 300}.py:A",
        ["arms.adam.optimizer: there is no file"],
    ),
    "a function without options": ("torch.optim:Adam", "math:sin", ["math:sin does not take", "which takes options"]),
    "a long warm-up": ("[arms.sgd]", "[schedule]\nwarmup = 5\n[arms.sgd]", ["schedule.warmup is 5", "0 to 1"]),
}


def one_line(code: int, out: str, err: str, words: list[str]) -> None:
    lines = err.splitlines()
    assert (code, len(lines)) == (2, 1), out + err
    assert lines[0].startswith("Error: study.toml: ")
    for word in words:
        assert word in lines[0]


def refused(path: Path, words: list[str]) -> None:
    before = sorted(path.parent.rglob("*"))
    for command in ("run", "check"):
        one_line(*call("study", command, path), words)
    assert sorted(path.parent.rglob("*")) == before


@pytest.mark.parametrize("name", BAD)
def test_a_bad_file_is_one_line(name: str, tmp_path: Path) -> None:
    old, new, words = BAD[name]
    assert old in FILE
    refused(write(tmp_path, file=FILE.replace(old, new, 1)), words)


@pytest.mark.parametrize(
    "task, words",
    [
        ("", ["task.py lacks build, batches, loss, evaluate", "or train"]),
        (PIECES.replace("def loss", "def lost"), ["task.py lacks loss"]),
        (PIECES + LOOP, ["task.py has both", "one of both forms"]),
        ("def build(:", ["task.py cannot be imported", "SyntaxError", "line 1"]),
        ("import nothing_like_it", ["cannot be imported: ModuleNotFoundError", "nothing_like_it", "task.py, line 1"]),
        (
            "class Own(BaseException): pass\nraise Own('one\\ntwo')",
            ["cannot be imported: Own: one two (task.py, line 2)"],
        ),
        (
            "class Mute(Exception):\n    def __str__(self): raise ValueError\nraise Mute",
            ["cannot be imported: Mute: (its text raises ValueError)"],
        ),
        ("raise SystemExit(3)", ["cannot be imported: SystemExit: 3"]),
        (PIECES + "data = ['numbers.csv']", ["data names numbers.csv", "no such file"]),
        (PIECES + "data = 'numbers.csv'", ["data is 'numbers.csv'", "data = ['numbers.csv']"]),
    ],
)
def test_a_bad_task_is_one_line(task: str, words: list[str], tmp_path: Path) -> None:
    refused(write(tmp_path, task), ["task: ", *words])


@pytest.mark.parametrize(
    "module, words",
    [
        ("import nothing_like_it", ["cannot be imported", "nothing_like_it"]),
        ("Adam = 3", ["has no class or function 'Adam'"]),
        (
            "import torch\nclass Adam(torch.optim.Adam):\n    def __init__(self, params, decay, lr=0.1, betas=(0.9, 0)): ...",
            ["needs decay", "under fixed or search"],
        ),
        (
            "import torch\nclass Adam(torch.optim.Adam):\n    def __init__(self, params, lr): ...",
            ["does not take betas"],
        ),
        (
            "import torch\nclass Adam(torch.optim.SGD):\n"
            "    def __init__(self, params, **more): super().__init__(params, **more)",
            ["there is no such place in betas"],
        ),
    ],
)
def test_an_optimizer_of_ones_own_that_cannot_be_used_is_one_line(
    module: str, words: list[str], tmp_path: Path
) -> None:
    path = write(tmp_path, file=FILE.replace("torch.optim:Adam", "mine.py:Adam"), mine=module)
    refused(path, ["arms.adam.optimizer: ", *words])


def test_an_optimizer_that_takes_anything_is_tried(tmp_path: Path) -> None:
    module = "import torch\nclass Adam(torch.optim.Adam):\n"
    module += "    def __init__(self, params, **more): super().__init__(params, **more)"
    file = FILE.replace("torch.optim:Adam", "mine.py:Adam").replace(
        'betas.0 = "one-minus 0.5 0.99"', 'beta = "linear 0 1"'
    )
    refused(write(tmp_path, file=file, mine=module), ["arms.adam.optimizer: ", "unexpected keyword argument 'beta'"])


def test_epochs_of_a_built_in_task_are_said_once(tmp_path: Path) -> None:
    file = FILE.replace('"task.py"', '"digits-mlp@tiny"').replace('"min"', '"max"')
    file = file.replace("seed = 7", "seed = 7\nsettings = { epochs = 3 }")
    refused(write(tmp_path, file=file), ["settings.epochs", "epochs stands above, too"])


def test_a_mark_at_the_beginning_of_a_file_is_no_mistake(tmp_path: Path) -> None:
    path = write(tmp_path)
    path.write_text(FILE.replace("\n", "\r\n"), encoding="utf-8-sig")
    assert read(path).title == "A small one"


def test_files_that_are_not_there_or_cannot_be_read(tmp_path: Path) -> None:
    for path, words in ((tmp_path / "study.toml", "no such file"), (tmp_path, "a folder")):
        code, _, err = call("study", "run", path)
        assert (code, len(err.splitlines())) == (2, 1)
        assert words in err
    (tmp_path / "study.toml").write_bytes(b"title = '\xff'")
    one_line(*call("study", "check", tmp_path / "study.toml"), ["cannot be read"])


def test_a_bad_file_is_one_line_of_a_real_process(tmp_path: Path) -> None:
    path = write(tmp_path, file=FILE.replace("lr =", "rate =", 1), task="import torch, os\nprint('hello')" + PIECES)
    found = process("study", "run", path)
    out, err = found.communicate(timeout=120)
    one_line(found.returncode, out, err, ["SGD does not take rate"])
    assert out == ""
    assert sorted(file.name for file in tmp_path.iterdir()) == ["study.toml", "task.py"]


def test_a_folder_for_json_must_be_there_before_anything_runs(tmp_path: Path) -> None:
    code, _, err = call("study", "run", write(tmp_path), "--json", tmp_path / "no" / "a.json")
    assert (code, len(err.splitlines())) == (2, 1)
    assert not (tmp_path / "study.db").exists()


@pytest.mark.parametrize("name", ["study.toml", "study.db", "task.py", "report.html", "another.py"])
def test_the_answer_is_not_written_over_a_file_of_the_study(name: str, tmp_path: Path) -> None:
    path = write(tmp_path)
    assert call("study", "run", path, "--executor", "inline")[0] == 0
    before = {file: file.read_bytes() for file in tmp_path.iterdir()}
    for command in ("run", "report"):
        code, _, err = call("study", command, path, "--json", tmp_path / name)
        assert (code, len(err.splitlines())) == (2, 1)
        assert f"{name} is a file of the study" in err
    assert {file: file.read_bytes() for file in tmp_path.iterdir()} == before


def test_a_page_that_cannot_be_written_beside_the_study_lies_beside_its_ledger(tmp_path: Path) -> None:
    path = write(tmp_path / "study")
    (tmp_path / "study" / "report.html").mkdir()
    (tmp_path / "runs").mkdir()
    words = ("study", "run", path, "--executor", "inline")
    code, _, err = call(*words)
    assert (code, len(err.splitlines())) == (2, 1)
    assert "report.html can be written neither beside study.toml nor beside its ledger" in err
    assert call(*words, "--ledger", tmp_path / "runs" / "study.db")[0] == 0
    assert (tmp_path / "runs" / "report.html").is_file()


BUILT_IN = FILE.replace('"task.py"', '"digits-mlp@tiny"').replace('direction = "min"\n', "")


def test_a_built_in_task_without_its_data_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CRITGRAD_DATA", str(tmp_path / "nothing"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "nothing"))
    monkeypatch.setenv("CRITGRAD_OFFLINE", "1")
    refused(
        write(tmp_path, file=BUILT_IN.replace("digits-mlp@tiny", "wikitext2-lstm")), ["task: ", "Missing data file"]
    )


@pytest.mark.parametrize("setting, word", [("dtype = 'float99'", "float99"), ("hidden = 1000000000000", "memory")])
def test_a_built_in_task_whose_settings_make_no_model_is_one_line(setting: str, word: str, tmp_path: Path) -> None:
    file = BUILT_IN.replace("seed = 7", f"seed = 7\nsettings = {{ {setting} }}")
    refused(write(tmp_path, file=file), ["task: digits-mlp@tiny", word])


@pytest.mark.parametrize("option", ["betas = [0.9, 0.99]", "lr = -1.0"])
def test_an_optimizer_of_the_labs_that_refuses_its_options_is_one_line(option: str, tmp_path: Path) -> None:
    file = FILE.replace("torch.optim:SGD", "AdEMAMix").replace("momentum = 0.5", option)
    file = file.replace('search = { lr = "log 1e-3 1e-1" }', "") if "lr" in option else file
    refused(write(tmp_path, file=file), ["arms.sgd.optimizer: AdEMAMix: "])


def test_a_report_of_a_task_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    path = write(tmp_path, file=BUILT_IN.replace("digits-mlp", "digit-mlp"))
    one_line(*call("study", "report", path), ["task: ", "digit-mlp"])


@pytest.mark.slow
def test_a_task_that_kills_its_worker_is_one_line_of_check(tmp_path: Path) -> None:
    path = write(tmp_path, PIECES.replace("    model = ", "    import os\n    os.abort()\n    model = "))
    one_line(*call("study", "check", path), ["arms.sgd fails at its first steps", "workers died"])


def test_a_report_of_an_arm_that_was_never_run_is_one_line(tmp_path: Path) -> None:
    path = write(tmp_path)
    assert call("study", "run", path, "--executor", "inline")[0] == 0
    path.write_text(FILE.replace("[[claims]]", '[arms.later]\noptimizer = "torch.optim:Adam"\n\n[[claims]]'))
    code, out, err = call("study", "report", path)
    one_line(code, out, err, ["study.toml", "study.db has no runs of arms.later"])


def test_a_file_is_no_folder_for_a_study(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    code, _, err = call("study", "new", tmp_path / "file")
    assert (code, len(err.splitlines())) == (2, 1)
    assert "is a file, expected a folder" in err


def test_what_is_there_is_not_written_over(tmp_path: Path) -> None:
    write(tmp_path, task="mine")
    code, _, err = call("study", "new", tmp_path)
    assert code == 2
    assert "is there already" in err
    assert (tmp_path / "task.py").read_text() == "mine"
