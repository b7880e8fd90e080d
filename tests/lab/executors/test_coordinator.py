"""What is planned is run once, whatever happens on the way."""

from __future__ import annotations

import os
import signal
import weakref
from pathlib import Path

import pytest
from sweep_helpers import lines, start, until
from toy_worker import ROLE, WORK, expected, plan

from critgrad.lab.ledger import Ledger, LedgerError, Planned, Role
from critgrad.lab.ledger.codec import pack_result
from critgrad.lab.ledger.merge import same_numbers
from critgrad.lab.run import coordinator, worker
from critgrad.lab.run.coordinator import Event, in_shard, run_jobs, status
from critgrad.lab.run.executors import KeptExecutor
from critgrad.lab.run.spec import Trial
from critgrad.lab.run.worker import Job, checkpoint_file, perform, result_file

OTHER = Role("fair", "SGD", "lr x S", "report")


@pytest.fixture
def ledger(tmp_path: Path):
    with Ledger.open(tmp_path / "runs.db", write=True, create=True) as ledger:
        yield ledger


def run(planned: list[Planned], ledger: Ledger, **options: object):
    return run_jobs(planned, ledger, **{"executor": "inline", "work": WORK, **options})


def test_each_trial_is_run_once_and_found_again(ledger: Ledger) -> None:
    events: list[Event] = []
    outcome = run([*plan(4), *plan(2)], ledger, on_event=events.append)
    assert (outcome.done, outcome.failed, outcome.skipped, outcome.remaining) == (4, 0, 0, 0)
    assert [event.kind for event in events] == ["begin", *["done"] * 4, "end"]
    assert events[-1].progress.eta == 0
    assert all(same_numbers(row, expected(row.trial)) for row in ledger.rows())
    again = run(plan(6), ledger)
    assert (again.done, again.skipped) == (2, 4)


def test_a_kept_executor_serves_several_calls_until_it_is_closed(ledger: Ledger) -> None:
    kept = KeptExecutor()
    how = {"executor": "local", "workers": 1, "kept": kept}
    pids = []
    for count in (2, 4):
        assert run(plan(count), ledger, **how).done == 2
        pids.append(kept.get("local", workers=1, device="cpu", options=None).submit(os.getpid).result(60))
    assert pids[0] == pids[1]
    assert run(plan(5), ledger, **{**how, "workers": 2}).done == 1  # another one is asked for
    kept.close()
    assert run(plan(6), ledger, **how).done == 1
    kept.close()


def test_a_kept_executor_that_was_shut_down_is_not_used_again(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = KeptExecutor()
    how = {"executor": "local", "workers": 1, "kept": kept}
    with monkeypatch.context() as broken:
        broken.setattr(coordinator._Run, "_write", lambda *_: (_ for _ in ()).throw(LedgerError("full")))
        with pytest.raises(LedgerError, match="full"):
            run(plan(2), ledger, **how)
    assert run(plan(2), ledger, **how).done == 2
    kept.close()


def test_a_trial_that_is_done_gets_its_new_roles_without_a_run(ledger: Ledger) -> None:
    run(plan(2), ledger)
    outcome = run([Planned(planned.trial, (OTHER,)) for planned in plan(2)], ledger)
    assert (outcome.done, outcome.skipped) == (0, 2)
    assert all(set(row.roles) == {ROLE, OTHER} for row in ledger.rows())


def test_one_that_raises_is_noted_and_the_others_go_on(ledger: Ledger) -> None:
    bad = plan(2, behave="raise")
    outcome = run([*bad, *plan(2)], ledger)
    assert (outcome.done, outcome.failed) == (2, 2)
    rows = ledger.rows(status="failed")
    assert all(row.error is not None and row.error.strip().endswith("ValueError: raised as asked") for row in rows)
    assert all("Traceback" in (row.error or "") for row in rows)
    # Not again by itself, but on demand.
    assert run(bad, ledger).failed == 0
    assert run(bad, ledger, retry_failed=True).failed == 2


def test_checkpoints_are_removed_only_after_the_ledger_has_the_result(ledger: Ledger, tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    left = plan(3)
    run(left[:1], ledger)
    checkpoint_file(folder, left[0].trial.key).write_text("[]")  # killed between the ledger and the checkpoint
    (folder / f".{left[1].trial.key}.pt.4711").write_text("half")
    (folder / "notes.txt").write_text("mine")
    seen = []

    def look(event: Event) -> None:
        if event.kind == "done" and event.trial is not None:
            seen.append(
                (checkpoint_file(folder, event.trial.key).exists(), event.trial.key in ledger.done([event.trial.key]))
            )

    run(left, ledger, checkpoints=folder, on_event=look)
    assert seen == [(False, True)] * 2
    assert [path.name for path in folder.iterdir()] == ["notes.txt"]


def test_a_checkpoint_is_kept_when_the_ledger_cannot_take_the_result(
    ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*arguments: object) -> None:
        raise LedgerError("Ledger runs.db: database or disk is full")

    (planned,) = plan(1)
    monkeypatch.setattr(ledger, "add", full)
    with pytest.raises(LedgerError, match="disk is full"):
        run([planned], ledger, checkpoints=tmp_path / "checkpoints")
    assert checkpoint_file(tmp_path / "checkpoints", planned.trial.key).exists()
    monkeypatch.undo()
    assert run([planned], ledger, checkpoints=tmp_path / "checkpoints").done == 1


def test_results_that_workers_have_left_behind_are_taken_not_run(
    ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "log"
    monkeypatch.setenv("TOY_LOG", str(log))
    folder = tmp_path / "checkpoints"
    trials = [planned.trial for planned in plan(3)]
    perform(Job((trials[0],), checkpoints=folder, work=WORK, keep=True))
    result_file(folder, trials[1].key).write_bytes(pack_result(expected(trials[1]))[:40])  # and one is torn
    assert run(plan(3), ledger, checkpoints=folder).done == 3
    started = [line[1] for line in lines(log)]
    assert sorted(started) == sorted(trial.key for trial in trials)
    assert all(same_numbers(row, expected(row.trial)) for row in ledger.rows())
    assert list(folder.iterdir()) == []


def test_banks_become_jobs_of_many_trials(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = []

    def remember(job: Job):
        sizes.append(len(job.trials))
        return perform(job)

    monkeypatch.setattr(coordinator, "perform", remember)
    trials = [Trial("toy", "SGD", {}, seed=seed, engine="bank", settings={"epochs": 1, "ms": 0.0}) for seed in range(5)]
    monkeypatch.setattr(
        "critgrad.lab.train.bank.bank_groups", lambda trials, largest: [trials[:largest], trials[largest:]]
    )
    assert run([Planned(trial, ()) for trial in trials], ledger, bank_size=3).done == 5
    assert sizes == [3, 2]


def test_shards_divide_the_trials(ledger: Ledger) -> None:
    keys = [planned.trial.key for planned in plan(200)]
    parts = [{key for key in keys if in_shard(key, index, 3)} for index in (1, 2, 3)]
    assert set.union(*parts) == set(keys)
    assert sum(map(len, parts)) == 200
    assert min(map(len, parts)) > 40
    for index, count in ((0, 3), (4, 3), (1, 0)):
        with pytest.raises(ValueError, match=f"shard: {index}/{count}"):
            in_shard(keys[0], index, count)


def test_a_reading_ledger_is_refused(ledger: Ledger, tmp_path: Path) -> None:
    with Ledger.open(tmp_path / "runs.db") as reader, pytest.raises(LedgerError, match="opened for reading"):
        run(plan(1), reader)


def test_status_of_a_ledger_at_rest(ledger: Ledger, tmp_path: Path) -> None:
    run([*plan(3), *plan(1, behave="raise")], ledger)
    ledger.close()
    with Ledger.open(tmp_path / "runs.db") as reader:
        now = status(reader)
    (line,) = now.lines
    assert (line.task, line.track, line.arm, line.done, line.running, line.failed) == ("toy", "fair", "base", 3, 0, 1)
    assert (now.running, now.stale, now.writer, now.progress) == ([], [], None, None)


@pytest.mark.slow
def test_status_tells_running_trials_from_those_of_a_killed_sweep(tmp_path: Path) -> None:
    path, log = tmp_path / "runs.db", tmp_path / "log"
    sweep = start("toy_sweep.py", path, tmp_path / "checkpoints", 4, 0, "--behave", "hang", log=log)
    until(lambda: sum(line[0] == "start" for line in lines(log)) == 2, "two trials to run")

    def now():
        with Ledger.open(path) as ledger:
            return status(ledger)

    until(lambda: len(now().running) == 2, "the sweep to write that down")
    seen = now()
    assert seen.writer is not None
    assert seen.writer.pid == sweep.pid
    assert [line.running for line in seen.lines] == [2]
    assert all(entry.worker.startswith("process ") and entry.roles == (ROLE,) for entry in seen.running)
    assert seen.progress is not None
    assert seen.progress.total == 4
    with pytest.raises(LedgerError, match=f"process {sweep.pid} "):
        Ledger.open(path, write=True)
    sweep.kill()
    sweep.communicate()
    seen = now()
    assert (seen.writer, seen.running, len(seen.stale), seen.lines) == (None, [], 2, [])


@pytest.mark.slow
def test_ctrl_c_waits_for_what_is_running_and_a_second_one_does_not(tmp_path: Path) -> None:
    path, log = tmp_path / "runs.db", tmp_path / "log"
    sweep = start("toy_sweep.py", path, tmp_path / "checkpoints", 200, 20, log=log)
    until(lambda: sum(line[0] == "done" for line in lines(log)) > 3, "some trials")
    sweep.send_signal(signal.SIGINT)
    output = sweep.communicate(timeout=60)[0]
    assert "the same command goes on from here" in output
    assert "Traceback" not in output
    done = [line[1] for line in lines(log) if line[0] == "done"]
    with Ledger.open(path) as ledger:
        assert sorted(ledger.keys()) == sorted(done)
    assert 3 < len(done) < 200

    log = tmp_path / "log2"
    sweep = start("toy_sweep.py", tmp_path / "b.db", tmp_path / "checkpoints", 4, 0, "--behave", "hang", log=log)
    until(lambda: any(line[0] == "start" for line in lines(log)), "a trial to hang")
    sweep.send_signal(signal.SIGINT)
    until(lambda: any(line[0] == "stopping" for line in lines(log)), "the first to be noticed")
    sweep.send_signal(signal.SIGINT)
    assert "0 done now" in sweep.communicate(timeout=60)[0]


@pytest.mark.slow
def test_a_trial_that_always_kills_its_worker_fails_alone(tmp_path: Path) -> None:
    with Ledger.open(tmp_path / "runs.db", write=True, create=True) as ledger:
        outcome = run_jobs([*plan(1, behave="die"), *plan(5)], ledger, workers=2, work=WORK)
        assert (outcome.done, outcome.failed) == (5, 1)
        (row,) = ledger.rows(status="failed")
    assert "3 workers died" in (row.error or "")


@pytest.mark.parametrize("name", ["CRITGRAD_GRAPH", "CRITGRAD_COMPILE"])
def test_an_eager_job_forbids_graphs_and_compilers_while_it_runs(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def look(trials: list[Trial], device: str, folder: Path | None) -> list[worker.Failure]:
        seen.append(os.environ.get(name))
        return [worker.Failure("looked")]

    monkeypatch.setattr(worker, "resolve", lambda function: look)
    monkeypatch.setenv(name, "1")
    for eager in (True, False):
        perform(Job((plan(1)[0].trial,), eager=eager))
    assert seen == ["0", "1"]
    assert os.environ[name] == "1"
    monkeypatch.delenv(name)
    perform(Job((plan(1)[0].trial,), eager=True))
    assert name not in os.environ


class Clock:
    """Time that passes only while a job is done, and by as much as it says."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now


@pytest.mark.parametrize("raises", [False, True])
def test_what_a_run_leaves_on_a_gpu_is_given_back_before_the_next(
    raises: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    left, seen = [], []

    class Model:
        def __init__(self) -> None:
            self.itself = self  # as models, optimizers and CUDA graphs do

    def use(trials: list[Trial], device: str, folder: Path | None) -> list[worker.Failure]:
        left.append(weakref.ref(Model()))
        if raises:
            raise ValueError("in the middle")
        return [worker.Failure("used")]

    monkeypatch.setattr(worker, "resolve", lambda function: use)
    monkeypatch.setattr(worker.torch.cuda, "empty_cache", lambda: seen.append([ref() for ref in left]))
    perform(Job(tuple(planned.trial for planned in plan(2)), device="cuda:0"))
    assert seen == [[None], [None, None]]
    perform(Job((plan(1)[0].trial,)))
    assert len(seen) == 2  # there is nothing to give back on a CPU


def test_a_gpu_that_fails_once_more_while_it_is_cleared_loses_no_result_of_the_job(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def use(trials: list[Trial], device: str, folder: Path | None) -> list[worker.Failure]:
        return [worker.Failure("used")]

    def failed() -> None:
        raise RuntimeError("CUDA error: device-side assert triggered")

    monkeypatch.setattr(worker, "resolve", lambda function: use)
    monkeypatch.setattr(worker.torch.cuda, "empty_cache", failed)
    outcomes = perform(Job(tuple(planned.trial for planned in plan(2)), device="cuda:0"))
    assert [outcome.error for outcome in outcomes] == ["used", "used"]


@pytest.mark.parametrize(
    "seconds, longest, done", [(None, 0.0, 5), (35.0, 0.0, 3), (5.0, 0.0, 1), (35.0, 30.0, 1), (35.0, 40.0, 0)]
)
def test_nothing_is_started_that_would_not_be_done_in_time(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch, seconds: float | None, longest: float, done: int
) -> None:
    clock = Clock()

    def ten_seconds(job: Job) -> list[object]:
        clock.now += 10.0
        return perform(job)

    monkeypatch.setattr(coordinator, "time", clock)
    monkeypatch.setattr(coordinator, "perform", ten_seconds)
    outcome = run(plan(5), ledger, seconds=seconds, longest=longest)
    assert (outcome.done, outcome.remaining) == (done, 5 - done)
    assert outcome.longest == max(longest, 10.0 if done else 0.0)
