from __future__ import annotations

import io

import torch
from rich.console import Console

import critgrad
from critgrad.lab.run.coordinator import Event
from critgrad.lab.run.spec import Trial
from critgrad.lab.run.status import Progress, Rounds
from critgrad.lab.screen import live, progress
from critgrad.lab.screen.console import LOG_WIDTH, LabConsole, coloured, table

TRIAL = Trial("digits-mlp", "SGD", {"lr": 0.1}, 3)


def event(kind, done=0, failed=0, text="", eta=75.0):
    counts = Progress(total=10, done=done, failed=failed, running=2, seconds=61.0, eta=eta)
    return Event(kind, counts, TRIAL, None, text)


def told(events, **options):
    """What the display writes."""
    file = io.StringIO()
    with progress.shown("a sweep", Console(file=file, width=100, **options)) as on_event:
        for one in events:
            on_event(one)
    return file.getvalue()


def test_without_a_terminal_there_are_plain_lines():
    text = told([event("begin", eta=None), event("started"), event("done", 1), event("done", 2), event("end", 10)])
    assert text == "a sweep: 0/10, 2 running, 1:01, -:-- to go\na sweep: 10/10, 2 running, 1:01, 1:15 to go\n"


def test_plain_lines_come_now_and_then(monkeypatch):
    monkeypatch.setattr(progress, "PLAIN_SECONDS", 0.0)
    assert len(told([event("done", done) for done in range(5)]).splitlines()) == 5


def test_a_failure_is_told_at_once_and_literally():
    text = told([event("begin"), event("failed", failed=1, text="ValueError: pip install 'critgrad[lab]'")])
    assert "failed: digits-mlp SGD seed 3: ValueError: pip install 'critgrad[lab]'" in text
    text = told([event("begin"), event("failed", failed=1, text="ValueError: 'critgrad[lab]'")], force_terminal=True)
    assert "'critgrad[lab]'" in text


def test_a_title_is_told_literally():
    file = io.StringIO()
    with progress.shown("a [/b] sweep", Console(file=file, width=100, force_terminal=True)) as on_event:
        on_event(event("begin"))
    assert "a [/b] sweep" in file.getvalue()


def test_cells_of_a_table_are_told_literally(capsys):
    made = table(None, "arm", "optimizer")
    made.add_row("a [/b]", coloured("[red] :smile:", "bold"))
    made.put()
    assert "a [/b]  [red] :smile:" in capsys.readouterr().out


def test_stopping_says_how_to_stop_at_once():
    text = "waiting for 2 trials that are running; Ctrl-C again stops at once"
    assert text in told([event("begin"), event("stopping", text=text)])
    assert text in told([event("begin"), event("stopping", text=text)], force_terminal=True)


def test_a_terminal_gets_a_bar_with_an_eta():
    text = told([event("begin"), event("done", 4)], force_terminal=True)
    assert "4/10" in text
    assert "ETA 1:15" in text
    assert "━" in text


def test_what_may_come_is_told_beside_what_is_expected():
    counts = Progress(total=10, done=5, running=2, seconds=50.0, eta=50.0, most=20, eta_most=150.0)
    text = told([Event("begin", counts, TRIAL, None, "")])
    assert text == "a sweep: 5/10 (up to 20), 2 running, 0:50, 0:50 to 2:30 to go\n"


def test_where_nobody_knows_how_many_will_come_nothing_is_promised():
    rounds = Rounds()  # of some families, or of a shard
    shown = rounds.over_all(Progress(total=48, done=47, running=1, seconds=357.0, eta=8.0))
    text = told([Event("begin", shown, TRIAL, None, "")])
    assert text == "a sweep: 47/48 so far, 1 running, 5:57, at least 0:08 to go\n"
    assert "so far" in told([Event("begin", shown, TRIAL, None, "")], force_terminal=True)
    rounds.add(48, 0)
    assert not rounds.end().open
    assert not Rounds(48).over_all(Progress(total=48)).open
    assert not Rounds(0, most=20).over_all(Progress(total=8)).open


def test_durations_read_like_a_clock():
    assert [progress.duration(s) for s in (0, 59.6, 3725, None)] == ["0:00", "1:00", "1:02:05", "-:--"]


def test_a_log_is_wide_and_a_terminal_as_wide_as_it_is(monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    assert LabConsole(file=io.StringIO()).width == LOG_WIDTH
    assert LabConsole(file=io.StringIO(), width=72).width == 72
    console = LabConsole(file=io.StringIO())
    console.size = (90, 20)
    assert console.width == 90


def test_the_slots_show_what_the_memory_holds():
    weight = torch.nn.Parameter(torch.zeros(2))
    optimizer = critgrad.SGD_C([weight], lr=0.1, topC=2, decay=0.5)
    for norm in (3.0, 4.0):
        weight.grad = torch.tensor([norm, 0.0])
        optimizer.step()
    (report,) = critgrad.inspect(optimizer).memories
    first, second = [line.split() for line in live.slot_table(report).plain().splitlines()[1:]]
    assert first[:4] == ["0", "2", "0.75", "3"]
    assert second[:4] == ["1", "1", "2", "4"]
    assert second[-1] == "new"
    assert len(second[4]) == live.BAR > len(first[4])
    assert live.header(report).startswith("2/2 slots, step 2, accepted 100%, |g| 4")


def test_a_memory_for_each_tensor_shows_the_first_and_counts_the_rest():
    weights = [torch.nn.Parameter(torch.zeros(2)) for _ in range(6)]
    optimizer = critgrad.SGD_C(weights, lr=0.1, topC=2, scope="tensor")
    file = io.StringIO()
    with live.Inspector(console=Console(file=file, force_terminal=True, width=80, height=60)) as inspector:
        for weight in weights:
            weight.grad = torch.ones(2)
        optimizer.step()
        inspector.on_step(optimizer)
    assert "... and 2 more memories" in file.getvalue()
