"""Adam with critical momenta (Malviya, Mordido, Baratin, Babanezhad, Huang, Lacoste-Julien, Pascanu, Chandar:
"Promoting Exploration in Memory-Augmented Adam using Critical Momenta", arXiv 2307.09638).

A plain optimizer on ``critgrad.Memory``: the memory stands in no gradient's way here, it holds momenta::

    m = beta1 m + (1 - beta1) g
    a = aggr(m, memory), then m is offered to the memory, ranked by the norm of g
    v = beta2 v + (1 - beta2) a^2
    theta = theta - lr a / (1 - beta1^t) / (sqrt(v / (1 - beta2^t)) + eps)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer, ParamsT

from .memory import Memory
from .memory.dtensors import is_dtensor, local
from .memory.options import DEFAULTS, default_options, unexpected
from .memory.store import Store


class Adam_CM(Optimizer):
    """Adam whose memory holds critical momenta instead of gradients.

    ``v`` is of the *aggregate*, not of the gradient: with ``topC=0`` this is Adam with ``v`` of ``m``, and most of its larger
    step is that. It is the control to compare with, which the paper lacks. (The authors' code makes no step at its first call
    and stores the raw gradient then; this does not.)

    Args:
        params: parameters or groups, as everywhere in torch.
        lr: learning rate.
        betas: decay of ``m`` and of ``v``.
        eps: added to the root of ``v``.
        weight_decay: of the weights by themselves, as in AdamW.
        process_group: as in ``critgrad.Adam_C``.
        **memory: the options of the memory, as in ``critgrad.Adam_C``; ``topC=5, decay=0.7, aggr="sum"`` unless given.

    >>> weight = torch.nn.Parameter(torch.tensor([3.0, 4.0]))
    >>> opt = Adam_CM([weight], lr=1e-3, topC=5, decay=0.7)
    """

    _memory: Memory | None = None  # made again when missing: pickle and deepcopy drop attributes
    _process_group: Any = None
    _lost_group = False  # had a process group, and came without it from pickle or deepcopy

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        *,
        process_group: Any = None,
        **memory: Any,
    ) -> None:
        if not (lr >= 0 and eps >= 0 and weight_decay >= 0 and all(0 <= beta < 1 for beta in betas)):
            raise ValueError(
                f"Invalid lr, eps, weight_decay or betas: {lr}, {eps}, {weight_decay}, {betas}, expected none below 0 "
                "and betas below 1"
            )
        for name in memory:
            if name not in DEFAULTS:
                known = ["lr", "betas", "eps", "weight_decay", *DEFAULTS, "process_group"]
                raise unexpected("Adam_CM", name, known)
        options = default_options(memory, aggr="sum")
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, **options})
        self._process_group = process_group
        _ = self.memory  # says what is wrong with an option

    @property
    def memory(self) -> Memory:
        """What holds the momenta; ``critgrad.inspect`` looks into it."""
        if self._memory is None:
            self._memory = Memory(self.param_groups, state=self, process_group=self._process_group)
            self._memory.lost_group = self._lost_group
        return self._memory

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_lost_group": self._lost_group or self._process_group is not None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        _ = self.memory  # which follows state_dict and load_state_dict, also of a copy that has not made a step yet

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Perform one step."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        grads = [p.grad for group in self.param_groups for p in group["params"]]
        if any(g is not None and g.layout is not torch.strided for g in grads):
            raise RuntimeError("Adam_CM does not support sparse gradients: use a dense embedding (sparse=False)")
        squares = self._squares()

        def priority(store: Store) -> Tensor:
            """The norm of the gradients of those that are in this memory; under ``scope="tensor"`` of each."""
            mine = squares[[part.index for part in store.parts]].to(store.device)
            return (mine if store.by_tensor else mine.sum().reshape(1)).sqrt()

        self.memory.ready()  # raises for a wrong option, say, before anything is written
        momenta: list[Tensor | None] = []
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    momenta.append(None)
                    continue
                state = self.state[p]
                if "step" not in state:
                    state["step"] = torch.tensor(0.0, device="cpu")
                    state["exp_avg"] = torch.zeros_like(p, memory_format=torch.preserve_format)
                    state["exp_avg_sq"] = torch.zeros_like(p, memory_format=torch.preserve_format)
                elif state["exp_avg"].dtype != p.dtype:  # model.float()
                    state.update({key: state[key].to(p.dtype) for key in ("exp_avg", "exp_avg_sq")})
                state["step"] += 1
                momenta.append(state["exp_avg"].lerp_(p.grad, 1 - group["betas"][0]))
        rest = iter(self.memory.step(momenta, priority=priority))
        for group in self.param_groups:
            found = [(p, a) for p, a in zip(group["params"], rest) if a is not None]
            if found:
                self._update(group, [p for p, _ in found], [a for _, a in found])
        return loss

    def _squares(self) -> Tensor:
        """Of the norm of each gradient."""
        squares = [
            torch.zeros((), device=local(p).device) if p.grad is None else self._square(p.grad)
            for group in self.param_groups
            for p in group["params"]
        ]
        each = torch.stack([square.to(squares[0].device) for square in squares]) if squares else torch.zeros(0)
        if self._process_group is not None:
            torch.distributed.all_reduce(each, group=self._process_group)
        return each

    @staticmethod
    def _square(g: Tensor) -> Tensor:
        norm: Any = torch.linalg.vector_norm(g, dtype=torch.promote_types(g.dtype, torch.float32))
        return (norm.full_tensor() if is_dtensor(norm) else norm).square()

    def _update(self, group: dict[str, Any], params: list[Tensor], aggregates: list[Tensor]) -> None:
        lr, (beta1, beta2) = float(group["lr"]), group["betas"]
        states = [self.state[p] for p in params]
        steps = [state["step"].item() for state in states]
        v = [state["exp_avg_sq"] for state in states]
        # Complex numbers are pairs of real ones, as in torch's Adam.
        params, aggregates, v = (
            [torch.view_as_real(t) if t.is_complex() else t for t in each] for each in (params, aggregates, v)
        )
        torch._foreach_mul_(v, beta2)
        torch._foreach_addcmul_(v, aggregates, aggregates, 1 - beta2)
        size = torch._foreach_sqrt(v)
        torch._foreach_div_(size, [(1 - beta2**t) ** 0.5 for t in steps])
        torch._foreach_add_(size, group["eps"])
        if group["weight_decay"] != 0:
            torch._foreach_mul_(params, 1 - lr * group["weight_decay"])
        torch._foreach_addcdiv_(params, aggregates, size, [-lr / (1 - beta1**t) for t in steps])
