"""The modern tasks: what their models see, how images are moved, and how parameters are grouped."""

from __future__ import annotations

import pytest
import torch

from critgrad.lab.tasks import problem_of
from critgrad.lab.tasks.classification import SHIFT, shifted
from critgrad.lab.tasks.models import GPT, ResNet
from critgrad.lab.tasks.models.gpt import rotations, turned
from critgrad.lab.train.bases import Muon


def test_a_piece_is_judged_by_what_came_before_it_alone():
    torch.manual_seed(0)
    model = GPT(20, 8, width=16, layers=2, heads=2)
    inputs = torch.randint(20, (1, 8))
    other = inputs.clone()
    other[0, 5] = (other[0, 5] + 1) % 20

    def losses(pieces):
        targets = torch.zeros_like(pieces)
        return torch.stack([model(pieces[:, :n], targets[:, :n], total=True) for n in range(1, 9)]).diff()

    before, after = losses(inputs), losses(other)
    torch.testing.assert_close(before[:4], after[:4])  # the loss at places 1 to 4
    assert (before[4:] - after[4:]).abs().min() > 1e-6


def test_turning_keeps_lengths_and_knows_only_the_distance():
    cosine, sine = rotations(12, 8)
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(8, generator=generator).expand(12, 8) for _ in range(2))
    a, b = turned(a, cosine, sine), turned(b, cosine, sine)
    torch.testing.assert_close(a.norm(dim=-1), a.norm(dim=-1)[:1].expand(12))
    torch.testing.assert_close(a[3] @ b[1], a[9] @ b[7])
    assert abs(float(a[3] @ b[1] - a[3] @ b[2])) > 1e-3


def test_a_fresh_model_knows_nothing_and_its_matrices_are_tied():
    problem = problem_of("pycode-gpt@tiny")
    torch.manual_seed(0)
    model = problem.build().eval()
    assert problem.evaluate(model, "valid").loss == pytest.approx(problem.worst, abs=0.1)
    assert sum(p.shape == (50, 32) for p in model.parameters()) == 1


def test_windows_are_pieces_and_those_after_them():
    problem = problem_of("pycode-gpt@tiny")
    stream = problem.splits["train"]
    plan = problem.plan(0, 1)
    inputs, targets = problem.batch(plan[0])
    for begin, row, after in zip(plan[0].tolist(), inputs, targets, strict=True):
        assert row.tolist() == stream[begin : begin + 32].tolist()
        assert after.tolist() == stream[begin + 1 : begin + 33].tolist()
    assert not torch.equal(plan, problem.plan(0, 2))
    assert not torch.equal(plan, problem.plan(1, 1))


def test_every_piece_of_a_split_is_counted_once():
    problem = problem_of("pycode-gpt@tiny")
    said = torch.cat([targets.flatten() for _, targets in problem.parts("valid")])
    whole = problem.splits["valid"]
    assert said.tolist() == whole[1 : len(said) + 1].tolist()
    assert len(whole) - 1 - len(said) < 32


def test_an_image_is_moved_and_mirrored_as_its_moves_say():
    x = torch.randn(3, 3, 32, 32)
    still = torch.tensor([SHIFT, SHIFT, 0]).expand(3, 3)
    assert torch.equal(shifted(x, still), x)
    moved = shifted(x, torch.tensor([[SHIFT, SHIFT, 1], [SHIFT + 2, SHIFT, 0], [0, 2 * SHIFT, 0]]))
    assert torch.equal(moved[0], x[0].flip(-1))
    assert torch.equal(moved[1, :, :-2], x[1, :, 2:])
    assert not moved[1, :, -2:].any()
    assert torch.equal(moved[2, :, SHIFT:, :-SHIFT], x[2, :, :-SHIFT, SHIFT:])


def test_moves_are_of_the_seed_and_evaluation_has_none():
    problem = problem_of("cifar10-resnet@tiny")
    moves = problem.noise(3, 1)
    assert moves.shape == (problem.steps, problem.batch_size, 3)
    assert (int(moves[..., :2].max()), int(moves[..., 2].max())) == (2 * SHIFT, 1)
    assert torch.equal(moves, problem.noise(3, 1))
    assert not torch.equal(moves, problem.noise(3, 2))
    model = problem.build().eval()
    assert problem.evaluate(model, "test") == problem.evaluate(model, "test")


@pytest.mark.parametrize(
    "name, sizes", [("pycode-gpt@tiny", [8, 1, 5]), ("cifar10-resnet@tiny", [10, 15]), ("digits-mlp@tiny", None)]
)
def test_matrices_embeddings_and_vectors_are_groups_of_their_own(name, sizes):
    problem = problem_of(name)
    model = problem.build()
    groups = list(problem.groups(model))
    if sizes is None:
        assert all(isinstance(p, torch.nn.Parameter) for p in groups)
        return
    assert [len(group["params"]) for group in groups] == sizes
    assert sum(sizes) == len(list(model.parameters()))
    assert groups[-1]["weight_decay"] == 0
    assert all(p.dim() < 2 for p in groups[-1]["params"])
    assert all(p.dim() >= 2 for group in groups[:-1] for p in group["params"])


def test_the_residual_net_halves_its_images_twice():
    net = ResNet(10, width=8, blocks=2)
    assert net(torch.randn(2, 3, 32, 32)).shape == (2, 10)
    assert net.blocks(net.first(torch.randn(2, 3, 32, 32))).shape == (2, 32, 8, 8)


@pytest.mark.parametrize("name", ["ptb-lstm@tiny", "snli-lstm@tiny", "pycode-gpt@tiny"])
def test_an_optimizer_for_matrices_leaves_embeddings_alone(name):
    problem = problem_of(name)
    model = problem.build()
    optimizer = Muon(problem.groups(model))
    for p in model.parameters():
        p.grad = torch.ones_like(p)
    optimizer.step()
    by_adam = {id(p) for p in model.parameters() if "v" in optimizer.state[p]}
    tables = {id(layer.weight) for layer in model.modules() if isinstance(layer, torch.nn.Embedding)}
    assert tables
    assert by_adam == tables | {id(p) for p in model.parameters() if p.dim() < 2}
