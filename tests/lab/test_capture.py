"""Recorded steps, with a recorder that calls the function again where CUDA would replay a graph."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch

import critgrad
from critgrad.lab.run.spec import Trial
from critgrad.lab.train import capture
from critgrad.lab.train import loop as engine
from critgrad.lab.train.capture import StaticStep, recorder_for, set_capturable
from critgrad.lab.train.loop import train
from critgrad.lab.train.optimizers import OPTIMIZERS, RESEARCH

FEW = 5  # eager steps at the start of these runs


class Again:
    """Replays a step by calling it: as a graph does, it knows the step's own buffers and nothing else."""

    def __init__(self, fails_at: int | None = None) -> None:
        self.calls: Counter[str] = Counter()
        self.recorded: list[StaticStep] = []
        self.fails_at = fails_at

    def prepare(self, optimizer):
        self.calls["prepare"] += 1

    def warm_up(self, step):
        self.calls["warm_up"] += 1
        step()

    def record(self, step, parameters):
        self.calls["record"] += 1
        if self.calls["record"] == self.fails_at:
            raise RuntimeError("operation not permitted when stream is capturing\nmore of it")
        self.recorded.append(step)

        def replay():
            self.calls["replay"] += 1
            step()

        return replay


@pytest.fixture
def again(monkeypatch):
    """Let runs record their steps after a few eager ones; what the recorder of the last run has seen."""
    used: list[Again] = []

    def make(fails_at=None):
        def recorder(device):
            used.append(Again(fails_at))
            return used[-1]

        monkeypatch.setattr(engine, "recorder_for", recorder)
        monkeypatch.setattr(engine, "EAGER_STEPS", FEW)
        return used

    return make


def run(trial, **options):
    """A trial's result, and its weights after the last epoch."""
    last = {}

    def keep(progress):
        groups = progress.optimizer.param_groups
        last["weights"] = [p.detach().clone() for group in groups for p in group["params"]]

    result = train(trial, on_epoch=keep, **options)
    return result, last["weights"]


def same(a, b):
    """Two runs bit for bit, but for what a clock says."""
    (a, a_weights), (b, b_weights) = a, b
    assert all(torch.equal(x, y) for x, y in zip(a_weights, b_weights, strict=True))
    assert set(a.curves) == set(b.curves)
    for name in set(a.curves) - {"seconds"}:
        np.testing.assert_array_equal(a.curves[name], b.curves[name], err_msg=name)
    for name in ("steps", "valid", "test", "best_epoch", "final_train_loss", "diverged"):
        assert a.summary[name] == b.summary[name], name


TRIALS = {
    "ptb-lstm": Trial("ptb-lstm@tiny", "Adam_C", {"lr": 0.01}, settings={"epochs": 8, "batch_size": 32}),
    "snli-lstm": Trial("snli-lstm@tiny", "RMSprop", {"lr": 0.003}, settings={"epochs": 2, "batch_size": 32}),
    "multiwoz-bilstm": Trial("multiwoz-bilstm@tiny", "Adam_F", {"lr": 0.003}, settings={"epochs": 2, "batch_size": 32}),
    "cifar100-convnet": Trial(
        "cifar100-convnet@tiny", "SGDM", {"lr": 0.01}, settings={"epochs": 2, "batch_size": 32, "width": 1}
    ),
    "cifar10-convnet": Trial("cifar10-convnet@tiny", "SGDM_C", {"lr": 0.01}, settings={"epochs": 2}),
}


@pytest.mark.parametrize("name", TRIALS)
def test_recorded_steps_are_the_plain_ones_bit_for_bit(name, again):
    trial = TRIALS[name]
    expected = run(trial)
    assert expected[0].provenance["graph"] is False
    used = again()
    found = run(trial)
    same(found, expected)
    calls = used[-1].calls
    assert found[0].provenance["graph"] is True
    assert "graph_warning" not in found[0].provenance
    assert calls["prepare"] == 1
    assert calls["replay"] > found[0].summary["steps"] / 3
    assert calls["warm_up"] == capture.WARM_UP_STEPS * calls["record"] or name == "ptb-lstm"


def test_the_first_and_the_last_chunk_of_a_text_get_records_of_their_own(again):
    used = again()
    run(TRIALS["ptb-lstm"].replace(settings={"epochs": 12, "batch_size": 32}))
    shapes = [(tuple(step.batch[0].shape), step.carry is None) for step in used[-1].recorded]
    assert set(shapes) == {((10, 32), False), ((10, 32), True), ((6, 32), False)}
    whole = (10, 32)
    # The state is written where the next step reads it.
    between = next(step for step in used[-1].recorded if step.batch[0].shape == whole and step.carry is not None)
    assert between.carried is between.carry


def test_more_shapes_than_graphs_stay_eager(again, monkeypatch):
    expected = run(TRIALS["ptb-lstm"])
    monkeypatch.setattr(capture, "MOST_GRAPHS", 1)
    used = again()
    same(run(TRIALS["ptb-lstm"]), expected)
    assert len(used[-1].recorded) == 1


@pytest.mark.parametrize("name", TRIALS)
def test_a_run_resumed_with_recorded_steps_equals_one_left_alone(name, again, tmp_path):
    trial = TRIALS[name].replace(probe=("memory", "decisions", "update"))
    expected = run(trial)
    used = again()
    path = tmp_path / "run.pt"
    half = trial.settings["epochs"] // 2
    run(trial, checkpoint=path, stop_after=half)
    torch.rand(3)  # whatever else draws in between
    resumed = run(trial, checkpoint=path)
    same(resumed, expected)
    assert resumed[0].provenance["graph"] is True
    assert all(recorder.calls["replay"] for recorder in used)


@pytest.mark.parametrize("fails_at", [1, 2])
def test_after_a_failed_recording_the_run_goes_on_eagerly_and_says_so(fails_at, again):
    expected = run(TRIALS["ptb-lstm"])
    used = again(fails_at)
    found = run(TRIALS["ptb-lstm"])
    same(found, expected)
    assert used[-1].calls["record"] == fails_at
    provenance = found[0].provenance
    assert provenance["graph_warning"] == "no CUDA graph: operation not permitted when stream is capturing"
    assert provenance["graph"] is (fails_at > 1)


def test_probes_see_every_recorded_step(again):
    trial = TRIALS["ptb-lstm"].replace(probe=("memory", "decisions", "update"))
    expected = run(trial)
    used = again()
    same(run(trial), expected)
    assert used[-1].calls["replay"] > 0


def test_a_callback_finds_the_gradient_of_each_step_in_place(again):
    def norms(**options):
        seen = []

        def look(optimizer):
            seen.append(float(sum(p.grad.square().sum() for p in optimizer.param_groups[0]["params"])))

        train(TRIALS["snli-lstm"], on_step=look, **options)
        return seen

    expected = norms()
    used = again()
    assert norms() == expected
    assert used[-1].calls["replay"] > 0


def test_a_probe_that_looks_between_gradient_and_step_keeps_the_run_eager(again):
    used = again()
    trial = TRIALS["multiwoz-bilstm"].replace(probe=("damping",))
    assert run(trial)[0].provenance["graph"] is False
    assert not used
    run(trial.replace(optimizer="Adam"))  # without a memory that probe looks at nothing
    assert used[-1].calls["replay"] > 0


def test_recording_can_be_turned_off(again, monkeypatch):
    used = again()
    assert train(TRIALS["cifar10-convnet"], graph=False).provenance["graph"] is False
    monkeypatch.setenv("CRITGRAD_GRAPH", "0")
    assert train(TRIALS["cifar10-convnet"]).provenance["graph"] is False
    assert not used


def test_a_yoked_run_and_its_donor_are_recorded(again):
    trial = TRIALS["ptb-lstm"].replace(seed=1, hyper={"lr": 0.01, "donor_seed": 0})
    expected = run(trial)
    used = again()
    same(run(trial), expected)
    assert [recorder.calls["replay"] > 0 for recorder in used] == [True, True]


def test_a_diverging_run_ends_as_without_recording(again):
    trial = TRIALS["ptb-lstm"].replace(
        optimizer="SGDM_C", hyper={"lr": 1e38}, settings={"batch_size": 32, "epochs": 8, "clip": None}
    )
    expected = train(trial)
    again()
    found = train(trial)
    assert found.summary["diverged"]
    assert found.summary["steps"] == expected.summary["steps"]


def test_timed_steps_are_never_recorded(again, monkeypatch):
    used = again()
    monkeypatch.setattr(engine, "EAGER_STEPS", engine.WARM_UP_STEPS + engine.TIMED_STEPS)
    result = train(TRIALS["cifar10-convnet"].replace(settings={"epochs": 13, "batch_size": 16}))
    assert result.summary["steps"] == 13 * 20
    assert used[-1].calls["replay"] == 13 * 20 - 220 - 1 - capture.WARM_UP_STEPS
    assert result.summary["step_ms"] > 0


def test_beside_other_processes_on_a_gpu_nothing_is_timed_and_recording_starts_soon(again, monkeypatch):
    used = again()
    monkeypatch.setattr(engine, "EAGER_STEPS", engine.WARM_UP_STEPS + engine.TIMED_STEPS)
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", "somewhere")
    trial = TRIALS["cifar10-convnet"].replace(settings={"epochs": 13, "batch_size": 16})
    result = train(trial)
    assert used[-1].calls["replay"] == 13 * 20 - engine.WARM_UP_STEPS - 1 - capture.WARM_UP_STEPS
    assert "step_ms" not in result.summary
    assert train(trial, graph=False).summary["step_ms"] > 0  # a run without graphs is there to be timed


def test_a_static_step_reads_and_writes_its_own_tensors():
    weight = torch.zeros(2)

    def take(batch, noise, carry):
        weight.add_(batch[0].sum())
        state = batch[0] if carry is None else carry[0] + batch[0]
        return weight.sum() * noise.sum(), (state,)

    batch, noise = (torch.ones(3),), torch.ones(1)
    first = StaticStep(take, batch, noise, None)
    following = StaticStep(take, batch, noise, (torch.zeros(3),))
    first.fill(batch, noise, None)
    first()
    carried, loss = first.carried, first.loss
    assert carried is not batch
    for value in (2.0, 5.0):
        following.fill((torch.full((3,), value),), noise, carried)
        following()
        carried = following.carried
    assert carried is following.carry
    assert carried[0].tolist() == [8.0, 8.0, 8.0]
    assert following.loss.item() == 2 * (3 + 6 + 15)
    assert first.loss is loss
    assert first.loss.item() == 6
    assert following.batch[0].tolist() == [5.0, 5.0, 5.0]


def test_nothing_of_the_autograd_graph_outlives_a_step():
    problem = engine.problem_for(TRIALS["ptb-lstm"], "cpu")
    model = engine.new_model(problem, 0)
    parameters = list(model.parameters())
    batch = next(iter(problem.batches(problem.plan(0, 1))))
    loss, carry = capture.gradients(problem, model, parameters, batch, None, None)
    assert loss.grad_fn is None
    assert all(part.grad_fn is None for part in carry)
    assert all(p.grad.grad_fn is None for p in parameters)


@pytest.mark.parametrize("optimizer", [torch.optim.NAdam, torch.optim.RMSprop, torch.optim.Adam, torch.optim.SGD])
def test_an_optimizer_is_made_capturable_and_back(optimizer):
    weight = torch.nn.Parameter(torch.ones(3))
    opt = optimizer([weight], lr=0.1)
    weight.grad = torch.ones(3)
    opt.step()
    before = {name: value.clone() for name, value in opt.state[weight].items() if torch.is_tensor(value)}
    set_capturable(opt, True)
    assert opt.param_groups[0].get("capturable") in (None, True)
    set_capturable(opt, False)
    assert not opt.param_groups[0].get("capturable")
    opt.step()  # with capturable=True torch would refuse a parameter on the CPU
    assert all(opt.state[weight][name].device == value.device for name, value in before.items())


def test_there_is_nothing_to_record_on_a_cpu():
    assert recorder_for(torch.device("cpu")) is None


@pytest.mark.parametrize("name", ["AdamW", "AdamW_F", "Adam_CM", "Muon"])
def test_where_the_rate_changes_the_gradient_alone_is_recorded(again, name):
    trial = Trial("pycode-gpt@tiny", name, {"lr": 0.01})
    plain = run(trial, graph=False)
    used = again()
    recorded = run(trial)
    same(recorded, plain)
    assert used[-1].calls["replay"] > 30
    assert used[-1].calls["prepare"] == 0


def test_an_optimizer_that_counts_on_the_host_is_not_recorded(again):
    """Its count would stand still in a graph, without an error."""
    used = again()
    trial = Trial("digits-mlp@tiny", "Adam_CM", {"lr": 0.01})
    same(run(trial), run(trial, graph=False))
    assert used[0].calls["replay"] > 0
    assert used[0].calls["prepare"] == 0  # the gradient alone


class Mine(torch.optim.SGD):
    """Somebody's own, which may count what it likes."""


def test_the_lab_s_optimizers_are_recorded_and_unknown_ones_are_not():
    weight = [torch.nn.Parameter(torch.ones(2, 2))]
    named = {name: recipe.make(weight, lr=0.1) for name, recipe in OPTIMIZERS.items()}
    assert all(map(capture.recordable, named.values()))
    for bases in ("Lion", "Muon", "Muon_F", "NesterovAdamW"):
        assert capture.recordable(RESEARCH[bases].make(weight))
    for make in (torch.optim.Adagrad, Mine, critgrad.critical(Mine), critgrad.Adam_CM):
        assert not capture.recordable(make(weight, lr=0.1)), make
