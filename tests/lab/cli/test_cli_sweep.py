from __future__ import annotations

import itertools
from types import SimpleNamespace

import pytest
from cli_helpers import same_numbers, small_registration

from critgrad.lab.ledger import Ledger
from critgrad.lab.report import table as report_table
from critgrad.lab.run import coordinator
from critgrad.lab.stats import Interval, Pair, judge
from critgrad.lab.words import interval_text
from critgrad.paper import commands, tables
from critgrad.paper.protocol import derived
from critgrad.paper.protocol import tables as tables_of
from critgrad.paper.protocol.registration import Timing

INLINE = ("--executor", "inline")


def test_paper_best_prints_its_choices_and_runs_nothing_twice(cli):
    words = ("sweep", "ptb-lstm@tiny", "--track", "paper-best", "--seeds", 1, "--families", "SGD", "--set", "epochs=1")
    text = cli(*words, *INLINE)
    assert "2 done now, 0 done before, 0 failed, 0 to do" in text
    assert "for comparison with the paper's tables only" in text
    assert [line.split()[0] for line in text.splitlines()[-2:]] == ["SGD", "SGD_C"]
    assert "0 done now, 2 done before" in cli(*words, *INLINE)
    assert {role.track for row in cli.rows() for role in row.roles} == {"paper-best"}


def test_paper_grid_keeps_the_first_settings_of_each(cli):
    words = ("--track", "paper-grid", "--trials", 1, "--seeds", 1, "--set", "epochs=1")
    text = cli("sweep", "digits-mlp@tiny", *words, *INLINE)
    assert "about 8 runs in all" in text
    assert "8 done now" in text
    assert "the paper's grid: the first 1 settings of each optimizer, or all where it has fewer" in text


def test_the_whole_grid_says_how_uneven_it_is():
    label = commands.make_track("digits-mlp@tiny", "paper-grid").label
    assert "9 settings of each _C optimizer for 1 of its base" in label


@pytest.fixture
def small(monkeypatch):
    plan = small_registration()
    monkeypatch.setattr("critgrad.paper.protocol.tracks.find", lambda task: plan)
    return plan


def test_fair_goes_through_to_its_tables(cli, small):
    text = cli("sweep", "digits-mlp@tiny", *INLINE)
    assert "0 to do" in text
    assert "Primary comparisons" in text
    assert "not testable" in text
    assert "not registered" in text
    assert "the data is synthetic" in text
    for arm in ("SGD_C", "SGD_F", "Nesterov", "SGD, step of _C"):
        assert arm in text
    with Ledger.open(cli.folder / "runs.db") as book:
        assert tables_of(book, small).complete
    assert "0 done now" in cli("sweep", "digits-mlp@tiny", *INLINE)


def test_fair_options_make_another_experiment(small):
    made = commands.make_track("digits-mlp@tiny", "fair", trials=1, seeds=4, registration=small)
    assert made.registration.trials == 1
    assert made.registration.report_seeds == (0, 1, 2, 3)
    assert made.registration.hash != small.hash
    fewer = commands.make_track("digits-mlp@tiny", "fair", seeds=1, registration=small)
    assert fewer.registration.report_seeds == (0,)


def test_the_progress_of_a_sweep_never_goes_back_and_says_what_widening_may_add(cli):
    plan = small_registration(widenings=2)
    track = commands.make_track("digits-mlp@tiny", "fair", registration=plan)
    events = []
    with Ledger.open(cli.folder / "runs.db", write=True, create=True) as book:
        outcome = commands.sweep(track, book, executor="inline", on_event=events.append)
    kinds = [event.kind for event in events]
    assert kinds.count("begin") == kinds.count("end") == 1
    assert kinds[-1] == "end"
    seen = [event.progress for event in events]
    assert [p.done for p in seen] == sorted(p.done for p in seen)
    assert [p.total for p in seen[:-1]] == sorted(p.total for p in seen[:-1])
    assert all(p.done <= p.total <= p.most for p in seen[:-1])
    assert seen[0].total == track.total
    assert seen[0].most == track.most > track.total
    assert seen[-1].done == seen[-1].total == outcome.done
    assert outcome.done <= track.most
    assert any(p.eta_most is not None and p.eta_most > p.eta for p in seen)


def test_shards_of_the_first_stage_make_up_the_whole(cli, small):
    words = ("sweep", "digits-mlp@tiny", *INLINE)
    for index in (1, 2):
        text = cli(*words, "--shard", f"{index}/2", "--ledger", f"{index}.db")
        assert f"This was shard {index}/2" in text
    one, two = ({row.key for row in cli.rows(f"{index}.db")} for index in (1, 2))
    assert one
    assert two
    assert not one & two
    cli("merge", "runs.db", "1.db", "2.db")
    cli(*words)
    cli(*words, "--ledger", "alone.db")
    merged, alone = ({row.key: row for row in cli.rows(name)} for name in ("runs.db", "alone.db"))
    assert merged.keys() == alone.keys()
    for key, row in merged.items():
        same_numbers(row, alone[key])


@pytest.mark.slow
def test_a_sweep_can_be_run_by_worker_processes(cli):
    text = cli("sweep", "digits-mlp@tiny", "--track", "paper-grid", "--trials", 1, "--seeds", 1, "--workers", 2)
    assert "8 done now" in text


def test_a_bank_sweep_has_rows_of_the_bank(cli):
    words = ("--track", "paper-grid", "--trials", 2, "--seeds", 2, "--set", "epochs=1", "--engine", "bank")
    assert "32 done now" in cli("sweep", "digits-mlp@tiny", *words, *INLINE, "--bank-size", 10)
    assert all("step_ms" not in row.summary for row in cli.rows())


def test_what_fails_is_told_and_can_be_tried_again(cli, monkeypatch):
    def fails(*_, **__):
        raise RuntimeError("no luck")

    monkeypatch.setattr("critgrad.lab.train.loop.train", fails)
    words = ("sweep", "ptb-lstm@tiny", "--track", "paper-best", "--seeds", 1, "--families", "SGD")
    text = cli(*words, *INLINE, code=1)
    assert "failed: ptb-lstm@tiny SGD seed 0" in text
    assert "no luck" in text
    assert "0 done now, 0 done before, 2 failed, 0 to do" in text
    again = cli(*words, *INLINE, code=1)
    assert "failed: ptb-lstm@tiny" not in again
    assert "2 runs have failed" in again
    assert "failed: ptb-lstm@tiny" in cli(*words, *INLINE, "--retry", code=1)


def test_a_finished_family_does_not_read_as_unfinished(cli, monkeypatch):
    plan = small_registration(families=("SGD", "Adam"), arms=("base",), primary=())
    monkeypatch.setattr("critgrad.paper.protocol.tracks.find", lambda task: plan)
    text = cli("sweep", "digits-mlp@tiny", *INLINE, "--families", "SGD")
    assert "0 to do" in text
    assert "not finished: 2 runs to go (all families)" in text
    assert "not finished" not in cli("sweep", "digits-mlp@tiny", *INLINE)


def test_a_time_limit_starts_no_new_round(cli, small, monkeypatch):
    clock = itertools.chain(
        [0.0, 1.0, 1.0], itertools.repeat(100.0)
    )  # began, asked twice before the first round, after it
    monkeypatch.setattr(commands, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    with Ledger.open(cli.folder / "runs.db", write=True, create=True) as book:
        track = commands.make_track("digits-mlp@tiny", "fair", registration=small)
        outcome = commands.sweep(track, book, seconds=50.0, executor="inline")
        assert outcome.done > 0
        assert outcome.remaining > 0
        assert not tables_of(book, small).complete


def test_no_time_starts_nothing_and_the_same_command_without_the_limit_goes_on(cli):
    words = ("sweep", "snli-conv@tiny", "--track", "paper-best", "--seeds", 1, "--families", "SGD", *INLINE)
    assert "0 done now, 0 done before, 0 failed, 2 to do" in cli(*words, "--seconds", 0)
    assert "2 done now" in cli(*words)


def test_timed_runs_have_the_machine_for_themselves(cli, monkeypatch):
    plan = small_registration(timing=Timing((200, 201), 2), arms=("base", "C", "F", "rival", "momentum", "C-longer"))
    rounds = []

    def run_jobs(planned, book, workers=None, eager=False, **jobs):
        timed = [any(role.purpose == commands.TIMING for role in item.roles) for item in planned]
        rounds.append((set(timed), workers, eager))
        return coordinator.run_jobs(planned, book, workers=1, eager=eager, **jobs)

    monkeypatch.setattr(commands, "run_jobs", run_jobs)
    with Ledger.open(cli.folder / "runs.db", write=True, create=True) as book:
        commands.sweep(commands.make_track(plan.task, "fair", registration=plan), book, executor="inline", workers=8)
    alone, together = ({True}, 1, True), ({False}, 8, False)
    assert alone in rounds
    assert all(row in (alone, together) for row in rounds)


def test_timed_runs_can_be_left_to_a_later_sweep(cli, monkeypatch):
    # Measured, a tiny run with a memory may be no slower than its base, and then nothing waits for the times.
    slower = {"SGD": 1.0, "SGD_C": 2.0}
    monkeypatch.setattr(derived, "epoch_seconds", lambda rows: slower[rows[0].trial.optimizer])
    plan = small_registration(timing=Timing((200,), 2), arms=("base", "C", "F", "rival", "momentum", "C-longer"))
    track = commands.make_track(plan.task, "fair", registration=plan)
    with Ledger.open(cli.folder / "runs.db", write=True, create=True) as book:
        first = commands.sweep(track, book, untimed=True, executor="inline")
        assert not [row for row in book.rows() if any(role.purpose == commands.TIMING for role in row.roles)]
        assert {commands.TIMING} == {role.purpose for item in track.plan(book) for role in item.roles}
        assert first.remaining == len(track.plan(book)) > 0
        second = commands.sweep(track, book, executor="inline")
        assert second.done > first.remaining, "those that waited for the times"
        assert second.remaining == 0


def test_tables_of_a_sweep_that_has_just_begun(cli, small, capsys):
    with Ledger.open(cli.folder / "runs.db", write=True, create=True) as book:
        tables.print_outcome(tables_of(book, small))
    text = capsys.readouterr().out
    assert "missing: SGD: not tuned yet: base, C, F" in text


def test_defaults_are_written_from_a_finished_sweep_alone(cli, small, monkeypatch):
    monkeypatch.setattr("critgrad.paper.protocol.defaults.FOLDER", cli.folder / "defaults")
    text = cli("sweep", "digits-mlp@tiny", *INLINE, "--write-defaults")
    assert "defaults: " in text
    assert (cli.folder / "defaults" / "digits-mlp@tiny.json").exists()


@pytest.mark.parametrize("noise", [0.0, 1e-13])
def test_an_interval_is_written_in_one_way_and_none_is_made_of_two_seeds(noise):
    found = Interval(98.3333, 98.3333 - noise, 98.3333 + noise, 3)
    assert interval_text(found) == report_table.interval(found).text == "98.3333 ± 0"
    two = Interval(77.0, -190.0, 344.0, 2)
    assert interval_text(two, "+") == report_table.interval(two, signed=True).text == "+77"


def test_half_ages_are_not_rounded(capsys):
    ages = {"topC": 5, "decay": 0.7, "runs": 3, "mean": 6.04, "max": 20, "edges": [1, 2], "share": [1.0]}
    cells = [{**ages, "median": 5.5}, {**ages, "median": 6.0}]
    tables.print_analysis("staleness", {"task": "digits-mlp", "cells": cells})
    assert [line.split()[4] for line in capsys.readouterr().out.splitlines()[2:]] == ["5.5", "6"]


def primaries(memory, families, seeds):
    values = [1.0 + 0.01 * k for k in range(seeds)]
    return [Pair("t", f"{f}_{memory}", f"{f}_{memory}", f, values, [0.0] * seeds, primary=True) for f in families]


def test_too_few_seeds_are_asked_about_for_each_memory_apart(capsys):
    """Two primaries of one memory can pass with 7 seeds; four could not: eight together would hide that."""
    two, four = ("SGD", "Adam"), ("SGD", "SGDM", "RMSprop", "Adam")
    tables.print_comparisons("x", [*judge(primaries("C", two, 7)), *judge(primaries("F", two, 7))])
    assert "too few seeds" not in capsys.readouterr().out
    tables.print_comparisons("x", [*judge(primaries("C", two, 7)), *judge(primaries("F", four, 7))])
    lines = [line for line in capsys.readouterr().out.splitlines() if "too few seeds" in line]
    assert len(lines) == 4
    assert all("_F" in line for line in lines)
