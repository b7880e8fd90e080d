import copy
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call, grad, stack_module_state, vmap

from critgrad.lab.tasks import TASKS, data, problem_of, task_of
from critgrad.lab.tasks.classification import ClassificationProblem
from critgrad.lab.tasks.data import Dataset
from critgrad.lab.tasks.models import DeepConvNet, LeNet
from critgrad.lab.train.loop import new_model

BANKABLE = [name for name, task in TASKS.items() if task.bankable]


def parameters(model):
    return sum(p.numel() for p in model.parameters() if p.requires_grad)


def test_the_models_have_the_sizes_of_the_plan():
    assert parameters(problem_of("digits-mlp").build()) == 2_410
    assert parameters(problem_of("mnist-logreg@tiny").build()) == 7_850
    assert parameters(problem_of("mnist-mlp@tiny").build()) == 25_450
    assert parameters(problem_of("cifar10-convnet@tiny").build()) == 62_006
    assert parameters(DeepConvNet()) == 5_898_340


def test_mixed_precision_is_asked_for_on_a_gpu_alone():
    # What it does there is checked in tests/gpu/check_capture.py.
    x = torch.randn(4, 3, 32, 32)
    torch.manual_seed(0)
    plain = DeepConvNet(width=4).eval()
    torch.manual_seed(0)
    assert torch.equal(DeepConvNet(width=4, bf16=True).eval()(x), plain(x))


def test_rectifying_after_the_pooling_is_the_papers_network_bit_for_bit() -> None:
    """Values and gradients, also where windows are all negative or have equal entries."""
    torch.manual_seed(0)
    ours = DeepConvNet(width=4, dropout2d=0.0, dropout=0.0)
    papers = copy.deepcopy(ours)
    layers = list(papers.blocks)
    for at in [i for i, layer in enumerate(layers) if isinstance(layer, nn.MaxPool2d)]:
        assert isinstance(layers[at + 1], nn.ReLU)
        layers[at], layers[at + 1] = layers[at + 1], layers[at]
    papers.blocks = nn.Sequential(*layers)
    x = torch.randn(8, 3, 32, 32).round()  # of few values: ties
    for model in (ours, papers):
        model(x).square().sum().backward()
    assert torch.equal(ours(x), papers(x))
    for mine, theirs in zip(ours.parameters(), papers.parameters(), strict=True):
        assert torch.equal(mine.grad, theirs.grad)
    assert problem_of("cifar100-convnet@tiny", {"bf16": True}).build().bf16


def test_pixels_are_normalised_by_the_data_sets_own_mean_and_spread():
    problem = problem_of("cifar10-convnet@tiny")
    x, _ = problem.batch(torch.tensor([3]))
    info = problem.data.info
    raw = problem.data.arrays["train_x"][3].astype(np.float64) * info["scale"]
    expected = (raw - np.reshape(info["mean"], (3, 1, 1))) / np.reshape(info["std"], (3, 1, 1))
    np.testing.assert_allclose(x[0].numpy(), expected, atol=1e-6)


def test_large_and_small_data_are_normalised_alike(monkeypatch):
    ready = problem_of("mnist-mlp@tiny").batch(torch.arange(5))[0]
    monkeypatch.setattr("critgrad.lab.tasks.classification.SMALL", 0)
    kept_as_bytes = problem_of("mnist-mlp@tiny")
    assert kept_as_bytes.splits["train"][0].x.dtype == torch.uint8
    assert torch.equal(kept_as_bytes.batch(torch.arange(5))[0], ready)


@pytest.mark.parametrize("name", BANKABLE)
def test_a_leading_model_axis_gives_each_model_its_own_batch(name):
    problem = problem_of(f"{name}@tiny")
    index = torch.stack([problem.plan(seed, 1)[0] for seed in range(3)])
    together = problem.batch(index)
    for s in range(3):
        for part, alone in zip(together, problem.batch(index[s])):
            assert torch.equal(part[s], alone)


@pytest.mark.parametrize("name", ["digits-mlp", "rcv1-logreg", "cifar10-convnet"])
def test_an_epochs_batches_are_those_of_its_steps(name):
    problem = problem_of(f"{name}@tiny")
    plan = problem.plan(0, 1)
    batches = list(problem.batches(plan))
    assert len(batches) == problem.steps
    for step in (0, problem.steps - 1):
        for a, b in zip(batches[step], problem.batch(plan[step])):
            assert torch.equal(a, b)


def test_each_epoch_sees_every_example_at_most_once_and_in_another_order():
    problem = problem_of("digits-mlp")
    first, second = problem.plan(0, 1), problem.plan(0, 2)
    assert first.shape == (1197 // 32, 32)
    assert len(first.unique()) == first.numel()
    assert not torch.equal(first, second)
    assert torch.equal(first, problem.plan(0, 1))


def test_sparse_rows_become_the_dense_matrix():
    problem = problem_of("rcv1-logreg@tiny")
    arrays, features = problem.data.arrays, problem.data.info["features"]
    dense = np.zeros((len(arrays["train_y"]), features), np.float32)
    for row, (begin, end) in enumerate(zip(arrays["train_x_rows"], arrays["train_x_rows"][1:])):
        dense[row, arrays["train_x_columns"][begin:end]] = arrays["train_x_values"][begin:end]
    np.testing.assert_array_equal(problem.batch(torch.arange(len(dense)))[0].numpy(), dense)


def test_sparse_rows_of_different_lengths_and_an_empty_one():
    values, columns = np.array([1, 2, 3], np.float32), np.array([0, 3, 1], np.int32)
    arrays = {"train_x_values": values, "train_x_columns": columns, "train_x_rows": np.array([0, 2, 2, 3], np.int64)}
    arrays["train_y"] = np.array([0, 1, 1], np.uint8)
    made = Dataset("made", arrays, "synthetic", "", "", {"classes": 2, "features": 4})
    problem = ClassificationProblem(task_of("rcv1-logreg"), made, torch.device("cpu"))
    x, y = problem.batch(torch.tensor([[2, 1], [0, 0]]))
    assert x.tolist() == [[[0, 3, 0, 0], [0, 0, 0, 0]], [[1, 0, 0, 2], [1, 0, 0, 2]]]
    assert y.tolist() == [[1, 1], [0, 0]]


@pytest.mark.parametrize("name", ["digits-mlp", "cifar10-convnet", "covtype-logreg"])
def test_an_evaluation_in_pieces_is_that_of_the_whole(name, monkeypatch):
    problem = problem_of(f"{name}@tiny")
    model = new_model(problem, 0).eval()
    whole = problem.evaluate(model, problem.select_on)
    monkeypatch.setattr("critgrad.lab.tasks.classification.PIECE", 1)  # pieces of 32 rows
    pieces = problem.evaluate(model, problem.select_on)
    assert pieces.metric == pytest.approx(whole.metric, rel=1e-6)
    assert pieces.loss == pytest.approx(whole.loss, rel=1e-6)


def test_convex_tasks_are_judged_by_the_training_loss_and_no_worse_than_a_guess():
    problem = problem_of("covtype-logreg@tiny")
    assert problem.select_on == problem.report_on == "train"
    assert problem.worst == pytest.approx(math.log(7))
    model = new_model(problem, 0)
    x, y = problem.batch(torch.arange(problem.train_size))
    scores = problem.evaluate(model, "train")
    assert scores.loss == pytest.approx(problem.loss(model, (x, y), None, None)[0].item(), rel=1e-5)
    assert scores.metric == min(scores.loss, problem.worst)


def test_dropout_masks_are_given_by_seed_and_epoch_at_the_rate_asked_for():
    problem = problem_of("cifar10-convnet@tiny")
    keep = problem.noise(0, 1)
    assert keep.shape == (problem.steps, 16, 204)
    assert keep.float().mean().item() == pytest.approx(0.75, abs=0.01)
    assert torch.equal(keep, problem.noise(0, 1))
    assert not torch.equal(keep, problem.noise(0, 2))
    assert not torch.equal(keep, problem.noise(1, 1))
    assert problem_of("cifar10-convnet@tiny", {"dropout": 0}).noise(0, 1) is None


def test_a_dropped_unit_has_no_say_and_the_others_are_scaled_up():
    torch.manual_seed(0)
    net, x = LeNet(10, dropout=0.5), torch.randn(2, 3, 32, 32)
    everything = torch.ones(2, 204, dtype=torch.bool)
    with torch.no_grad():
        net.hidden2.bias.zero_()
        net.hidden1.bias.zero_()
        # Rectified layers without bias are homogeneous: twice doubled.
        plain, doubled = net(x) - net.output.bias, net(x, everything) - net.output.bias
        torch.testing.assert_close(doubled, 4 * plain)
        nothing = net(x, ~everything)
    torch.testing.assert_close(nothing, net.output.bias.detach().expand(2, 10))


@pytest.mark.parametrize("name", BANKABLE)
def test_a_bank_of_models_gives_the_gradients_of_each_alone(name):
    problem = problem_of(f"{name}@tiny", {"dtype": "float64"})
    models = [new_model(problem, seed) for seed in range(2)]
    params, buffers = stack_module_state(models)
    index = torch.stack([problem.plan(seed, 1)[0] for seed in range(2)])
    masks = [problem.noise(seed, 1) for seed in range(2)]
    noise = None if masks[0] is None else torch.stack([mask[0] for mask in masks])

    def loss(p, b, batch, keep):
        return problem.loss(lambda *args: functional_call(models[0], (p, b), args), batch, keep, None)[0]

    axes = (0, 0, 0, None if noise is None else 0)
    found = vmap(grad(loss), in_dims=axes)(params, buffers, problem.batch(index), noise)
    for s, model in enumerate(models):
        problem.loss(model, problem.batch(index[s]), None if noise is None else noise[s], None)[0].backward()
        for key, p in model.named_parameters():
            torch.testing.assert_close(found[key][s], p.grad, rtol=1e-9, atol=1e-12)


def test_scores_work_under_vmap():
    problem = problem_of("digits-mlp@tiny")
    models = [new_model(problem, seed) for seed in range(2)]
    params, buffers = stack_module_state(models)
    (part,) = problem.parts("valid")

    def score(p, b):
        return problem.score(lambda *args: functional_call(models[0], (p, b), args), part)

    found = vmap(score)(params, buffers)
    for s, model in enumerate(models):
        torch.testing.assert_close(found[s], problem.score(model, part))


def test_an_unknown_float_type_is_refused():
    with pytest.raises(ValueError, match="Invalid dtype of digits-mlp: 'float16'"):
        problem_of("digits-mlp", {"dtype": "float16"})


@pytest.mark.slow
def test_the_real_images_fit_the_default_models(real_data):
    for name in ("mnist-mlp", "cifar10-convnet", "cifar100-convnet"):
        problem = problem_of(name)
        model = new_model(problem, 0)
        index = problem.plan(0, 1)
        noise = problem.noise(0, 1)
        loss, _ = problem.loss(model, problem.batch(index[0]), None if noise is None else noise[0], None)
        assert loss.item() == pytest.approx(math.log(problem.classes), rel=0.1)
        assert abs(problem.batch(index[:8].flatten())[0].mean().item()) < 0.1  # normalised
        assert problem.train_size == data.load(problem.task.dataset).arrays["train_y"].size


@pytest.mark.parametrize("name", ["covtype-logreg", "rcv1-logreg", "reuters-logreg"])
def test_a_few_steps_on_the_real_rows_lower_the_convex_loss(real_data, name):
    problem = problem_of(name)
    model = new_model(problem, 0)
    before = problem.evaluate(model, "train")
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    for batch, _ in zip(problem.batches(problem.plan(0, 1)), range(40)):
        optimizer.zero_grad()
        problem.loss(model, batch, None, None)[0].backward()
        optimizer.step()
    after = problem.evaluate(model, "train")
    assert before.loss == pytest.approx(math.log(problem.classes), rel=0.35)
    assert after.loss < before.loss - 0.02


def test_a_convex_task_reports_the_loss_that_it_minimises():
    problem = problem_of("covtype-logreg@tiny", {"dtype": "float64"}, torch.device("cpu"))
    model = problem.build()
    x, y = problem.splits["train"][0].take(slice(problem.train_size)), problem.splits["train"][1]
    penalty = 0.01 / 2 * sum(p.square().sum() for p in model.parameters())
    expected = F.cross_entropy(model(x), y) + penalty
    assert penalty > 0
    torch.testing.assert_close(problem.loss(model, (x, y), None, None)[0], expected)
    assert problem.evaluate(model, "train").loss == pytest.approx(expected.item(), rel=1e-12)
