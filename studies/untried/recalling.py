"""AdamW beside a memory of large gradients, used in three ways that no optimizer of docs/which-memory-helps.md has.

``a`` is the mean of the gradients that ``critgrad.Memory`` holds (of none: 0); moments are AdamW's, of the gradient alone:

- ``use="grow"``: ``share * (1 - lr / peak) * a`` is added to the momentum: more and more of it as the schedule falls;
- ``use="extrapolate"``: ``share * (g - a)`` is added: away from what is held;
- ``use="agree"``: entries of the step whose sign is not that of ``a`` keep ``1 - share``, then the kept shares have mean 1.
"""

from __future__ import annotations

import torch

import critgrad


def grow(m, g, a, step, group):
    group["peak"] = max(group.get("peak", 0.0), group["lr"])
    return (m + group["share"] * (1 - group["lr"] / group["peak"]) * a) / step


def extrapolate(m, g, a, step, group):
    return (m + group["share"] * (g - a)) / step


def agree(m, g, a, step, group):
    kept = torch.where(m * a > 0, 1.0, 1 - group["share"])
    return m * kept / kept.mean().clamp_min(1e-3) / step


USES = {use.__name__: use for use in (grow, extrapolate, agree)}


class Recalling(torch.optim.Optimizer):
    """AdamW with one of ``USES``; ``share=0`` is AdamW."""

    def __init__(
        self,
        params,
        lr=1e-3,
        betas=(0.9, 0.99),
        eps=1e-8,
        weight_decay=0.0,
        use="agree",
        share=0.5,
        topC=5,
        decay=0.9,
    ):
        self.use = USES[use]
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "share": share})
        self.memory = critgrad.Memory(self.param_groups, state=self, topC=topC, decay=decay, aggr="sum")

    @torch.no_grad()
    def step(self, closure=None):
        loss = None if closure is None else torch.enable_grad()(closure)()
        # "sum": the gradient plus the mean of what is held
        sums = iter(self.memory.step([p.grad for group in self.param_groups for p in group["params"]]))
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for p, total in zip(group["params"], sums):
                if p.grad is None:
                    continue
                g, state = p.grad, self.state[p]
                if "m" not in state:
                    state |= {"t": 0, "m": torch.zeros_like(p), "v": torch.zeros_like(p)}
                state["t"] += 1
                state["m"].lerp_(g, 1 - beta1)
                state["v"].mul_(beta2).addcmul_(g, g, value=1 - beta2)
                size = (state["v"] / (1 - beta2 ** state["t"])).sqrt() + group["eps"]
                p.mul_(1 - group["lr"] * group["weight_decay"])
                p.sub_(group["lr"] * self.use(state["m"] / (1 - beta1 ** state["t"]), g, total - g, size, group))
        return loss
