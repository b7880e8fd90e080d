"""The bank's tests run on a tiny problem, in float64."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from bank_problem import problem_of

from critgrad.lab.train import loop as train


@pytest.fixture(autouse=True)
def tiny_problem(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(train, "problem_of", problem_of)
    train.cached_problem.cache_clear()
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)
    train.cached_problem.cache_clear()
