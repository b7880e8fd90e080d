"""How a bank computes gradients: batches shared by the models of a seed, convolutions as products."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.func import functional_call, grad, vmap

from critgrad.lab.tasks.models import LeNet
from critgrad.lab.train.bank.convolution import ConvolutionByProducts, _Patches, _Products, _Sums, compute_as_products
from critgrad.lab.train.bank.models import Cohorts


@pytest.mark.parametrize("kernel", [(5, 5), (2, 3), (1, 1)])
@pytest.mark.parametrize("bias", [True, False])
def test_products_give_the_convolution_and_its_gradients(kernel: tuple[int, int], bias: bool) -> None:
    conv = nn.Conv2d(3, 4, kernel, bias=bias)
    x = torch.randn(2, 3, 7, 8, requires_grad=True)
    names = [name for name, _ in conv.named_parameters()]

    def both() -> list[torch.Tensor]:
        out = conv(x)
        return [out, *torch.autograd.grad((out**2).sum(), [x, *conv.parameters()])]

    expected = both()
    conv.__class__ = ConvolutionByProducts
    for name, value, right in zip(["out", "x", *names], both(), expected):
        torch.testing.assert_close(value, right, rtol=1e-12, atol=1e-12, msg=name)


def test_products_of_many_models_are_those_of_each() -> None:
    models, images = 3, torch.randn(3, 4, 3, 32, 32)
    net = LeNet()
    stacked = {name: torch.stack([p.detach() * (1 + i) for i in range(models)]) for name, p in net.named_parameters()}
    net.requires_grad_(False)

    def loss(parameters: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
        return functional_call(net, parameters, (x,)).square().sum()

    alone = [grad(loss)({name: p[i] for name, p in stacked.items()}, images[i]) for i in range(models)]
    compute_as_products(net)
    assert type(net.conv1) is type(net.conv2) is ConvolutionByProducts
    together = vmap(grad(loss))(stacked, images)
    for name in stacked:
        for i in range(models):
            torch.testing.assert_close(together[name][i], alone[i][name], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("shared", [True, False])
def test_models_of_a_seed_share_their_batch(shared: bool) -> None:
    """Two seeds of three models: an inner vmap without a model axis of the images, or with copies of them."""
    net = LeNet()
    stacked = {name: torch.randn(2, 3, *p.shape) / 10 for name, p in net.named_parameters()}
    net.requires_grad_(False)
    images = torch.randn(2, 4, 3, 32, 32)

    def loss(parameters: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
        return functional_call(net, parameters, (x,)).square().sum()

    alone = {
        (u, i): grad(loss)({name: p[u, i] for name, p in stacked.items()}, images[u]) for u in (0, 1) for i in (0, 1, 2)
    }
    compute_as_products(net)
    x = images if shared else images[:, None].expand(-1, 3, -1, -1, -1, -1)
    together = vmap(vmap(grad(loss), in_dims=(0, None if shared else 0)))(stacked, x)
    for (u, i), right in alone.items():
        for name, value in right.items():
            torch.testing.assert_close(together[name][u, i], value, rtol=1e-9, atol=1e-9)


def test_the_products_can_be_differentiated_twice() -> None:
    matrix, columns = torch.randn(3, 4, requires_grad=True), torch.randn(2, 4, 5, requires_grad=True)
    assert torch.autograd.gradcheck(_Products.apply, (matrix, columns))
    assert torch.autograd.gradgradcheck(_Products.apply, (matrix, columns))
    image = torch.randn(2, 5, 6, requires_grad=True)
    assert torch.autograd.gradgradcheck(lambda x: _Patches.apply(x, (2, 3)), (image,))


def test_each_factor_may_be_shared() -> None:
    matrices, columns = torch.randn(3, 2, 4), torch.randn(3, 5, 4, 6)
    outs = torch.randn(3, 5, 2, 6)
    for dims in ((0, 0), (0, None), (None, 0)):
        a, b = (part if dim == 0 else part[0] for part, dim in zip((matrices, columns), dims))
        expected = torch.einsum(
            "mok,mnkl->mnol", *(p if p.dim() == q else p.expand(3, *p.shape) for p, q in ((a, 3), (b, 4)))
        )
        torch.testing.assert_close(vmap(_Products.apply, in_dims=dims)(a, b), expected)
        c, d = (part if dim == 0 else part[0] for part, dim in zip((outs, columns), dims))
        expected = torch.einsum("mnol,mnkl->mok", *(p if p.dim() == 4 else p.expand(3, *p.shape) for p in (c, d)))
        torch.testing.assert_close(vmap(_Sums.apply, in_dims=dims)(c, d), expected)


def test_convolutions_with_padding_strides_or_groups_stay_as_they_are() -> None:
    others = [nn.Conv2d(4, 4, 3, padding=1), nn.Conv2d(4, 4, 3, stride=2), nn.Conv2d(4, 4, 3, groups=2)]
    net = nn.Sequential(*others)
    compute_as_products(net)
    assert {type(module) for module in net} == {nn.Conv2d}


@pytest.mark.parametrize("seeds", [[7, 8, 7, 9, 8, 9], [7, 8, 7, 7, 8], [5, 5, 5]])
def test_cohorts_bring_every_model_home(seeds: list[int]) -> None:
    cohorts = Cohorts(seeds, torch.device("cpu"))
    rows = torch.arange(len(seeds) * 2.0).reshape(-1, 2)
    gathered = cohorts.gather(rows)
    assert gathered.shape[:2] == (len(set(seeds)), max(map(seeds.count, seeds)))
    assert torch.equal(cohorts.scatter(gathered), rows)
    for u, seed in enumerate(cohorts.seeds):
        assert {seeds[int(row[0]) // 2] for row in gathered[u]} == {seed}
    batch = torch.tensor([float(seed) for seed in cohorts.seeds])
    (copies,), noise = cohorts.for_models((batch,), None)
    assert copies.tolist() == seeds
    assert noise is None


def test_a_bank_of_one_large_and_many_small_cohorts_does_not_compute_for_nobody() -> None:
    assert Cohorts([1, 1, 2, 2], torch.device("cpu")).shared
    assert not Cohorts([1, 1, 1, 1, 2, 3, 4, 5], torch.device("cpu")).shared
    assert not Cohorts([1, 2, 3], torch.device("cpu")).shared
