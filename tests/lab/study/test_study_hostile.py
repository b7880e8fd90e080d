"""What somebody's code does in one run costs that run and nothing else."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from study_helpers import FILE, LOOP, PIECES, made, run, write

from critgrad.lab import study
from critgrad.lab.ledger import Ledger
from critgrad.lab.run.coordinator import Event
from critgrad.lab.run.spec import STUDY_SCHEMA

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="forks, and looks for processes through /proc")

# An "optimizer" whose option says what happens when it is made.
HOSTILE = """
import gc, os, random, signal, sys, time
import numpy as np
import torch

def leave(name):
    # How many processes have been noted there, this one too.
    with open(os.path.join(os.path.dirname(__file__), name), "a+") as file:
        print(os.getpid(), file=file, flush=True)
        file.seek(0)
        return len(file.readlines())

def forks():
    if os.fork() == 0:
        leave("forked")
        return  # the child goes on as if it were the run

def forks_and_stays():
    if os.fork() == 0:
        leave("stays")
        time.sleep(600)

def prints():
    print("a line of somebody's")
    print("and another", file=sys.stderr)
    os.system("echo from a child")

def alarms():
    signal.signal(signal.SIGALRM, lambda *_: os.abort())
    signal.setitimer(signal.ITIMER_REAL, 0.5)

def closes():
    sys.stdout.close()

def raises():
    print("just before")
    raise ValueError("on purpose")

def changes():
    os.chdir("/")
    os.environ["CRITGRAD_COMPILE"] = "1"
    os.environ["HOME_OF_NOBODY"] = "here"
    sys.path.insert(0, "/nowhere")
    torch.set_default_dtype(torch.float64)
    torch.set_default_device("meta")
    torch.set_num_threads(3)
    torch.set_grad_enabled(False)
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = True
    torch.backends.fp32_precision = "tf32"
    torch.set_flush_denormal(True)
    torch.set_autocast_enabled("cpu", True)
    np.seterr(all="raise")
    sys.setrecursionlimit(200)
    gc.disable()
    os.umask(0o777)
    torch.backends.cuda.enable_math_sdp(False)
    torch.nn.modules.module.register_module_forward_hook(lambda module, given, found: found * 2)
    raise ValueError("after changes")

def reseeds():
    torch.manual_seed(0); np.random.seed(0); random.seed(0)

def looks():
    assert os.path.samefile(os.getcwd(), os.path.dirname(__file__))
    assert os.environ.get("CRITGRAD_COMPILE") != "1" and "HOME_OF_NOBODY" not in os.environ
    assert "/nowhere" not in sys.path
    assert torch.get_default_dtype() is torch.float32
    assert torch.get_default_device().type == "cpu"
    assert torch.get_num_threads() == 1
    assert torch.is_grad_enabled()
    assert not torch.are_deterministic_algorithms_enabled()
    assert not torch.backends.cudnn.benchmark
    assert not torch.is_autocast_enabled("cpu")
    assert torch.get_float32_matmul_precision() == "highest"
    assert torch.backends.cudnn.fp32_precision != "tf32"
    assert torch.tensor(1e-40).mul(1.0).item() > 0
    assert np.geterr()["over"] == "warn"
    assert sys.getrecursionlimit() > 200
    assert gc.isenabled()
    leave("written")
    assert os.stat("written").st_mode & 0o600
    assert torch.backends.cuda.math_sdp_enabled()
    assert not torch.nn.modules.module._global_forward_hooks
    assert not sys.stdout.closed
    assert signal.getsignal(signal.SIGALRM) is signal.SIG_DFL
    leave("pids")

def exits():
    sys.exit(5)

def interrupts():
    raise KeyboardInterrupt

def dies():
    if leave("dies") <= 3:  # in the first replicate
        os.kill(os.getpid(), signal.SIGKILL)

def hangs():
    if leave("hangs") == 1:
        time.sleep(600)

def odd():
    raise ValueError(chr(0xD800))

class Own(BaseException):
    def __str__(self):
        raise ValueError("no text")

def own():
    raise Own

def loads():
    loader = torch.utils.data.DataLoader(torch.arange(8), batch_size=2, num_workers=2)
    assert sorted(torch.cat(list(loader)).tolist()) == list(range(8))

def leaves():
    # Ends while a child of its own lives on.
    if leave("leaves") <= 3:
        if os.fork() == 0:
            leave("left")
            time.sleep(120)
        os.abort()

def good():
    pass

class Mine(torch.optim.SGD):
    def __init__(self, params, lr=0.05, kind=""):
        globals()[kind.rstrip("0123456789")]()
        super().__init__(params, lr=lr)
"""


def file_of(*kinds: str) -> str:
    head = FILE[: FILE.index("[arms.sgd]")]
    tables = [f'[arms.{kind}]\noptimizer = "mine.py:Mine"\nfixed = {{ kind = "{kind}" }}\n' for kind in kinds]
    return head + "\n".join(tables)


def hostile(folder: Path, *kinds: str, **options: object) -> tuple[study.Answer, list[Event]]:
    path = write(folder, LOOP, file_of(*kinds), mine=HOSTILE)
    events: list[Event] = []
    answer = study.run(path, workers=1, device="cpu", on_event=events.append, **options)  # type: ignore[arg-type]
    return answer, events


def untrained(answer: study.Answer) -> dict[str, str]:
    return {name: arm.replicates[0].untrained for name, arm in answer.arms.items()}


def test_one_runs_mischief_is_not_seen_by_the_next(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    between = [
        "forks",
        "forks_and_stays",
        "prints",
        "alarms",
        "closes",
        "changes",
        "reseeds",
        "loads",
        "odd",
        "own",
        "raises",
    ]
    kinds = ["good", "looks0"]
    for number, kind in enumerate(between, 1):
        kinds += [kind, f"looks{number}"]
    answer, events = hostile(tmp_path, *kinds, "exits", "interrupts", "good9")
    found = untrained(answer)
    assert {name: why for name, why in found.items() if why} == {
        "changes": "ValueError: after changes (mine.py, line 59)",
        "odd": "ValueError: ? (mine.py, line 104)",
        "own": "Own: (its text raises ValueError) (mine.py, line 111)",
        "raises": "ValueError: on purpose (mine.py, line 37)",
        "exits": "SystemExit: 5 (mine.py, line 90)",
        "interrupts": "KeyboardInterrupt:  (mine.py, line 93)",
    }
    # Whatever happened between them, the same seeds give the same numbers; reseeding in a run does not change others.
    assert answer.arms["good"].replicates[0].value == answer.arms["good9"].replicates[0].value
    assert answer.arms["looks11"].replicates[0].value == answer.arms["good"].replicates[0].value
    # All of it in one worker, which none of it has ended.
    assert len(set((tmp_path / "pids").read_text().split())) == 1
    # What is forked ends: the run that comes back in a child, and one that stays behind.
    for name in ("forked", "stays"):
        for pid in (tmp_path / name).read_text().split():
            assert not Path("/proc", pid).exists()
    out, err = capfd.readouterr()
    assert out + err == ""
    assert sum(event.kind == "done" for event in events) + sum(event.kind == "failed" for event in events) == 2 * 27 + 2
    with Ledger.open(tmp_path / "study.db") as book:
        failed = [row.error or "" for row in book.rows(status="failed", schema=STUDY_SCHEMA)]
    assert any("printed last:\njust before" in text for text in failed)


SETS = """
import os, sys, torch
torch.set_default_dtype(torch.float64)
torch.set_flush_denormal(True)
os.environ["OF_THE_TASK"] = "1"
sys.path.append(os.path.dirname(os.path.abspath(__file__)) + "/deep")
"""
SEES = """
import os, torch
os.environ["OF_THE_OPTIMIZERS"] = "1"

def sees():
    import found_in_time
    assert os.environ["OF_THE_TASK"] + os.environ["OF_THE_OPTIMIZERS"] == "11"
    assert torch.get_default_dtype() is torch.float64
    assert torch.tensor(1e-40, dtype=torch.float32).mul(1.0).item() == 0

class Mine(torch.optim.SGD):
    def __init__(self, params, lr):
        sees()
        super().__init__(params, lr=lr)

class Other(Mine):
    pass
"""


@pytest.mark.parametrize("executor", ["inline", "local"])
def test_what_a_file_sets_when_it_is_imported_holds_for_every_run_and_no_longer(executor: str, tmp_path: Path) -> None:
    file = FILE.replace("torch.optim:SGD", "mine.py:Mine").replace("torch.optim:Adam", "mine.py:Other")
    file = file.replace("fixed = { momentum = 0.5 }\n", "").replace(', betas.0 = "one-minus 0.5 0.99"', "")
    path = write(tmp_path, SETS + PIECES, file, mine=SEES)
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "found_in_time.py").touch()
    answer = run(path, executor=executor, workers=1)
    assert [r.untrained for arm in answer.arms.values() for r in arm.replicates] == [""] * 4
    assert torch.get_default_dtype() is torch.float32
    assert torch.tensor(1e-40).mul(1.0).item() > 0
    assert "OF_THE_TASK" not in os.environ


@pytest.mark.slow
def test_a_run_that_kills_its_worker_or_hangs_is_a_failed_run(tmp_path: Path) -> None:
    answer, _ = hostile(tmp_path, "good", "dies", "leaves", "hangs", "good2", trial_timeout=3.0)
    found = untrained(answer)
    assert "3 workers died while they ran this; the last with exit code -6" in found["leaves"]
    assert not any(Path(f"/proc/{pid}/exe").exists() for pid in (tmp_path / "left").read_text().split())
    assert "3 workers died while they ran this; the last with exit code -9" in found["dies"]
    assert "it ran for more than 3 s and was ended" in found["hangs"]
    assert found["good2"] == ""
    assert not Path("/proc", (tmp_path / "hangs").read_text().split()[0]).exists()
    assert [answer.arms[name].replicates[1].untrained for name in ("dies", "hangs")] == ["", ""]
    again, count = made(tmp_path / "study.toml")
    assert count == 0  # neither is tried again
    assert again.arms == answer.arms


@pytest.mark.slow
def test_what_a_worker_imports_does_not_count_as_the_time_of_a_run(tmp_path: Path) -> None:
    slow = "import time, torch\ntime.sleep(3)\nclass Mine(torch.optim.SGD):\n    pass\n"
    file = FILE.replace("torch.optim:Adam", "slow.py:Mine").replace(', betas.0 = "one-minus 0.5 0.99"', "")
    answer = run(write(tmp_path, file=file, slow=slow), executor="local", workers=1, trial_timeout=2.0)
    assert [r.untrained for arm in answer.arms.values() for r in arm.replicates] == [""] * 4


@pytest.mark.parametrize("line", ["sys.argv.append(pathlib.Path('x'))", "sys.argv = None", "sys.path = None"])
def test_what_a_run_does_to_the_command_line_costs_no_other(line: str, tmp_path: Path) -> None:
    odd = f"import pathlib, sys, torch\ndef Odd(params, lr):\n    {line}\n    return torch.optim.SGD(params, lr)\n"
    before = [*sys.path], [*sys.argv]
    file = FILE.replace("torch.optim:SGD", "odd.py:Odd").replace("fixed = { momentum = 0.5 }\n", "")
    answer = run(write(tmp_path, file=file, odd=odd))
    assert [r.untrained for r in answer.arms["adam"].replicates] == [""] * 2
    assert ([*sys.path], [*sys.argv]) == before


def test_an_alarm_of_the_callers_still_rings(tmp_path: Path) -> None:
    path = write(tmp_path)
    signal.setitimer(signal.ITIMER_REAL, 600)
    try:
        run(path)
        assert signal.getitimer(signal.ITIMER_REAL)[0] > 0
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def test_a_script_needs_no_main_guard(tmp_path: Path) -> None:
    """As the guide shows it: two lines at the top level of a file."""
    path = write(tmp_path, LOOP)
    script = tmp_path.with_name(tmp_path.name + "-script.py")
    script.write_text(
        "from critgrad.lab import study\n"
        f"answer = study.run({str(path)!r}, workers=1, device='cpu')\n"
        "print(answer.final, answer.claims[0].word)\n"
    )
    source = str(Path(__file__).parents[3] / "src")
    done = subprocess.run(
        [sys.executable, str(script)],
        env={**os.environ, "PYTHONPATH": source, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["True open"]


# What a file does when it is imported, and what runs see of it.
DRAWS = "import random, numpy, torch\nDRAWN = numpy.random.randint(10**9), random.random(), torch.rand(1).item()\n"
SEEN = """
def train(make_optimizer, seed, epochs, report):
    made = make_optimizer([torch.nn.Parameter(torch.zeros(1))])
    from deep import helper
    with open("seen.txt", "a") as file:
        print(made.file, DRAWN, helper.DRAWN, made.drawn, torch.get_default_dtype(), file=file)
    report(1.0)
"""
USES = """
import torch
from deep.helper import DRAWN
class Mine(torch.optim.SGD):
    file, drawn = __name__, DRAWN
"""
BARE = "import torch\nclass Mine(torch.optim.SGD):\n    file, drawn = __name__, None\n"


def seen_by_runs(folder: Path, *files: str) -> set[str]:
    """In a process that gets the arms in this order."""
    torch.rand(1), random.random(), np.random.rand()  # the caller has drawn, too
    tables = [f'[arms.{name}]\noptimizer = "{name}.py:Mine"\n' for name in files]
    path = write(
        folder, DRAWS + SEEN, FILE[: FILE.index("[arms.sgd]")] + "".join(tables), bare=BARE, one=USES, two=USES
    )
    (folder / "deep").mkdir()
    (folder / "deep" / "helper.py").write_text(DRAWS + "torch.set_default_dtype(torch.float64)\n")
    run(path)
    return set((folder / "seen.txt").read_text().splitlines())


def test_what_files_do_when_they_are_imported_is_the_same_whichever_run_imports_them_first(tmp_path: Path) -> None:
    seen = seen_by_runs(tmp_path / "a", "bare", "one", "two")
    assert len(seen) == 4  # only `bare` imports the helper in its runs, each of which has a seed
    assert all("float64" in line for line in seen)
    assert seen_by_runs(tmp_path / "b", "two", "one", "bare") == seen
