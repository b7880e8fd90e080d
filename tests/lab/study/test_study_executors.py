"""The same study on Dask and SLURM, and on a machine with torch and numpy alone."""

from __future__ import annotations

from pathlib import Path

import pytest
from study_helpers import FILE, LOOP, PIECES, SOURCE, call, process, run, write

from critgrad.lab import study

# As on a bare machine: whoever asks for one of these, torch too, is told that there is no such package.
BLOCK = """
import sys
BLOCKED = {"rich", "plotly", "matplotlib", "scipy", "sklearn", "PIL", "transformers", "pandas", "dask", "distributed",
           "submitit", "pyarrow", "tqdm", "yaml", "triton"}
class Bare:
    def __init__(self, finder):
        self.finder = finder
    def find_spec(self, name, path=None, target=None):
        return None if name.split(".")[0] in BLOCKED else self.finder.find_spec(name, path, target)
sys.meta_path[:] = [Bare(finder) if hasattr(finder, "find_spec") else finder for finder in sys.meta_path]
"""


def values(answer: study.Answer) -> dict[str, list[float]]:
    return {name: [replicate.value for replicate in arm.replicates] for name, arm in answer.arms.items()}


@pytest.mark.slow
def test_dask_workers_give_what_one_process_gives_and_import_edited_files_anew(tmp_path: Path) -> None:
    distributed = pytest.importorskip("distributed", reason="needs dask[distributed]")
    path = write(tmp_path / "here", LOOP)
    expected = values(run(path))
    with distributed.LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address=None) as cluster:
        options = {"executor": "dask", "options": {"address": cluster.scheduler_address}}
        there = write(tmp_path / "there", LOOP)
        assert values(run(there, **options)) == expected
        write(tmp_path / "there", LOOP.replace("test=1", "test=2"))
        edited = values(run(there, **options))
    for arm in expected:
        assert edited[arm] == pytest.approx([value + 1 for value in expected[arm]])


@pytest.mark.slow
def test_slurm_jobs_give_what_one_process_gives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("submitit", reason="needs submitit")
    monkeypatch.setenv("PYTHONPATH", str(SOURCE))
    expected = values(run(write(tmp_path / "here")))
    words = ("cluster=local", f"folder={tmp_path / 'jobs'}", "poll=0.1", "per_job=4", "array=2")
    path = write(tmp_path / "there")
    options = [word for option in words for word in ("--executor-opt", option)]
    code, out, err = call("study", "run", path, "--executor", "slurm", *options, "--device", "cpu")
    assert code == 0, out + err
    assert values(study.report(path)) == expected


def test_an_unknown_executor_or_a_limit_that_it_cannot_keep_is_one_line(tmp_path: Path) -> None:
    path = write(tmp_path)
    for words, said in (
        (("--executor", "cloud"), "Invalid executor: 'cloud', expected one of local, inline, dask, slurm"),
        (("--minutes", 0), "Invalid minutes: 0.0"),
        (("--minutes", "nan"), "Invalid minutes: nan"),
        (("--trial-timeout", -3), "Invalid trial timeout: -3.0"),
        (("--workers", 0), "Invalid workers: 0"),
        (("--executor-opt", "a=b"), "Invalid option of the executor local: 'a'"),
        (("--device", "tpu"), "Invalid device: 'tpu'"),
        (("--executor", "inline", "--trial-timeout", 5), "Invalid --trial-timeout"),
    ):
        code, _, err = call("study", "run", path, *words)
        assert code == (1 if said in ("Invalid --trial-timeout", "Invalid device: 'tpu'") else 2)
        assert said == "Invalid --trial-timeout" or not (tmp_path / "study.db").exists()
        assert len(err.splitlines()) == 1
        assert said in err


def test_a_machine_with_torch_and_numpy_alone_runs_a_study(tmp_path: Path) -> None:
    path = write(tmp_path, PIECES, FILE)
    found = process("study", "run", path, "--executor", "inline", "--json", tmp_path / "answer.json", prelude=BLOCK)
    out, err = found.communicate(timeout=240)
    assert found.returncode == 0, err
    assert "adam against sgd is open" in out
    assert (tmp_path / "answer.json").exists()
    assert (tmp_path / "report.html").exists()
