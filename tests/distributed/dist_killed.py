"""Two ranks that save a checkpoint; some steps later one of them dies inside a step."""

from __future__ import annotations

import os

import dist_checkpoint as checkpoint
import dist_problem as problem
import torch.distributed as dist
from dist_two import ranks, sharded

KIND = "fisher"
DIES_AT = checkpoint.HALF + 5
CODE = 77


def train_until_killed(folder) -> None:
    model, opt = checkpoint.make(KIND, sharded)
    batches = problem.data(2 * checkpoint.HALF)
    problem.train(model, opt, batches[: checkpoint.HALF], **ranks())
    checkpoint.save(model, opt, folder / "last", flat=False)
    problem.train(model, opt, batches[checkpoint.HALF : DIES_AT], **ranks())
    if dist.get_rank() == 1:
        dist.all_reduce = lambda *args, **kwargs: os._exit(CODE)  # between the norm and the decision
    problem.train(model, opt, batches[DIES_AT:], **ranks())


CLAIMS = {"train_until_killed": train_until_killed}
