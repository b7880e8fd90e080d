"""The cross entropy of a large output layer is torch's, value and gradients."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from critgrad.lab.tasks.models.softmax import NOT_COUNTED, linear_cross_entropy, sum_of_losses


def tensors(dtype, scale=1.0, n=37, h=8, v=51):
    generator = torch.Generator().manual_seed(0)
    shapes = ((n, h), (v, h), (v,))
    made = [(scale * torch.randn(s, generator=generator, dtype=torch.float64)).to(dtype) for s in shapes]
    targets = torch.randint(v, (n,), generator=generator)
    return [part.requires_grad_() for part in made], targets


def plain(hidden, weight, bias, targets):
    return F.cross_entropy(F.linear(hidden, weight, bias), targets)


@pytest.mark.parametrize("dtype, bound", [(torch.float64, 1e-12), (torch.float32, 1e-5)])
@pytest.mark.parametrize("upstream", [1.0, -2.5])
def test_value_and_gradients_are_torchs(dtype, bound, upstream):
    parts, targets = tensors(dtype)
    found = linear_cross_entropy(*parts, targets)
    gradients = torch.autograd.grad(upstream * found, parts)
    expected = plain(*parts, targets)
    torch.testing.assert_close(found, expected, rtol=bound, atol=bound)
    for mine, torchs in zip(gradients, torch.autograd.grad(upstream * expected, parts), strict=True):
        torch.testing.assert_close(mine, torchs, rtol=bound, atol=bound)


def test_without_gradients_it_is_torchs_own():
    parts, targets = tensors(torch.float32)
    with torch.no_grad():
        assert torch.equal(linear_cross_entropy(*parts, targets), plain(*parts, targets))


def test_a_hopeless_guess_is_finite_and_its_gradient_right():
    parts, targets = tensors(torch.float32, scale=30.0)
    found = linear_cross_entropy(*parts, targets)
    assert torch.isfinite(found)
    expected = torch.autograd.grad(plain(*parts, targets), parts)
    for mine, torchs in zip(torch.autograd.grad(found, parts), expected, strict=True):
        torch.testing.assert_close(mine, torchs, rtol=1e-4, atol=1e-4)


def test_what_is_not_a_number_stays_so():
    parts, targets = tensors(torch.float32)
    with torch.no_grad():
        parts[0][0, 0] = float("nan")
    assert torch.isnan(linear_cross_entropy(*parts, targets))


def test_the_sum_of_an_evaluation_leaves_out_what_does_not_count():
    parts, targets = tensors(torch.float64)
    targets[3:9] = NOT_COUNTED
    found = sum_of_losses(*parts, targets)
    counted = targets >= 0
    assert not found.requires_grad
    torch.testing.assert_close(found, plain(parts[0][counted], *parts[1:], targets[counted]) * counted.sum())
