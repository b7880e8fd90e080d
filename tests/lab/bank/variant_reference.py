"""The variants of damping as they are written down: dense d x d matrices, lists of entries, one model, no cleverness."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from critgrad.lab.run.spec import Trial
from critgrad.lab.train import loop as single

DEFAULTS: dict[str, Any] = {
    "topC": 10,
    "decay": 0.99,
    "rho": 0.3,
    "policy": "KotH",
    "every": 10,
    "power": 1.0,
    "apply": "gradient",
    "metric": "plain",
    "blocks": "all",
    "select": "all",
    "evict": "policy",
    "rho_rule": "fixed",
    "before_clip": False,
}
# The tiny net's tensors: inner.weight, inner.bias, outer.weight, outer.bias.
SIZES = (48, 8, 24, 3)
BLOCKS = {
    "all": ((0, 1, 2, 3),),
    "kinds": ((0, 1, 2, 3),),
    "layers": ((0, 1), (2, 3)),
    "tensors": tuple((i,) for i in range(4)),
}


def coordinates(blocks: str) -> list[Tensor]:
    pieces = torch.arange(sum(SIZES)).split(list(SIZES))
    return [torch.cat([pieces[i] for i in block]) for block in BLOCKS[blocks]]


def dense_power(matrix: Tensor, power: float) -> Tensor:
    values, vectors = torch.linalg.eigh(matrix)
    return vectors @ torch.diag(values**power) @ vectors.T


def explained(entries: list[Tensor]) -> list[float]:
    """The share of each entry that lies in the span of the others."""
    out = []
    for i, entry in enumerate(entries):
        others = torch.stack([other for j, other in enumerate(entries) if j != i]) if len(entries) > 1 else None
        inside = torch.zeros_like(entry) if others is None else others.T @ torch.linalg.pinv(others.T) @ entry
        out.append(float(inside.dot(inside) / entry.dot(entry)))
    return out


class Memory:
    """Entries ``[priority, born, vector]`` of the coordinates that are selected together."""

    def __init__(self, options: dict[str, Any]) -> None:
        self.o, self.entries, self.t = options, [], 0

    def insert(self, g: Tensor) -> None:
        self.t += 1
        norm, o = float(g.norm()), self.o
        sparse = o["policy"] == "sparse"
        turn = (self.t - 1) % o["every"] == 0
        if len(self.entries) < o["topC"]:
            if turn or not sparse:
                self.entries.append([norm, self.t, g.clone()])
        elif turn if sparse else norm > min(entry[0] for entry in self.entries):
            self.entries[self.evicted()] = [norm, self.t, g.clone()]
        for entry in self.entries:
            entry[0] *= o["decay"]

    def evicted(self) -> int:
        places = range(len(self.entries))
        if self.o["evict"] == "redundant":
            share = explained([entry[2] for entry in self.entries])
            return max(places, key=lambda i: (round(share[i], 6), -self.entries[i][1]))
        if self.o["policy"] == "sparse":
            return min(places, key=lambda i: self.entries[i][1])
        return min(places, key=lambda i: (self.entries[i][0], self.entries[i][1]))


class Reference:
    """One model of the tiny task, trained by the formulas."""

    def __init__(self, trial: Trial) -> None:
        self.trial = trial
        self.problem = single.problem_for(trial, "cpu")
        self.o = {**DEFAULTS, **trial.hyper}
        self.base = trial.optimizer.removesuffix("_X")
        self.model = single.new_model(self.problem, trial.seed)
        self.parameters = list(self.model.parameters())
        self.theta = torch.cat([p.detach().reshape(-1) for p in self.parameters])
        self.m, self.v = torch.zeros_like(self.theta), torch.zeros_like(self.theta)
        self.blocks = coordinates(self.o["blocks"])
        self.units = self.blocks if self.o["select"] == "block" else coordinates("all")
        self.memories = [Memory(self.o) for _ in self.units]
        self.seen: list[Tensor] = []
        self.mu_product = 1.0
        self.T = self.problem.steps * self.problem.task.epochs

    def entries(self, block: Tensor) -> Tensor:
        """The stored gradients on the coordinates of a block."""
        for unit, memory in zip(self.units, self.memories):
            if torch.isin(block, unit).all():
                at = torch.searchsorted(unit, block)
                return (
                    torch.stack([entry[2][at] for entry in memory.entries])
                    if memory.entries
                    else torch.zeros(0, len(at))
                )
        raise AssertionError

    def rho(self, t: int) -> float:
        rho, rule = self.o["rho"], self.o["rho_rule"]
        if rule == "fixed":
            return rho
        if rule == "linear":
            return rho * (1 - (t - 1) / self.T) + 1e-6
        if rule == "cosine":
            return rho * (1 + math.cos(math.pi * (t - 1) / self.T)) / 2 + 1e-6
        if len(self.seen) < 2:
            return 1e-6
        weights = torch.tensor([0.99 ** (len(self.seen) - 1 - i) for i in range(len(self.seen))])
        weights /= weights.sum()
        mean = (torch.stack(self.seen) * weights[:, None]).sum(0)
        square = (torch.stack(self.seen).square().sum(1) * weights).sum()
        share = weights.square().sum()
        signal = (mean.dot(mean) - share * square) / (1 - share)
        power = sum(sum(float(e[2].dot(e[2])) for e in m.entries) / len(m.entries) for m in self.memories)
        return max(rho * min(max(float(signal) / power, 0.0), 10.0), 1e-6)

    def damp(self, x: Tensor, scale: Tensor | None, t: int) -> Tensor:
        out = x.clone()
        for block in self.blocks:
            D = torch.ones(len(block)) if scale is None else scale[block]
            G = self.entries(block) / D.sqrt()
            trace = G.square().sum()
            if trace == 0:
                continue
            M = torch.eye(len(block)) + G.T @ G / (self.rho(t) * trace)
            out[block] = D.sqrt() * (dense_power(M, -self.o["power"]) @ (x[block] / D.sqrt()))
        return out

    def step(self, index: Tensor, noise: Tensor | None, t: int) -> None:
        at = 0
        for p in self.parameters:
            p.data.copy_(self.theta[at : at + p.numel()].view_as(p))
            p.grad = None
            at += p.numel()
        loss, _ = self.problem.loss(self.model, self.problem.batch(index), noise, None)
        loss.backward()
        raw = torch.cat([p.grad.reshape(-1) for p in self.parameters])
        clip = self.problem.task.clip
        g = raw * min(1.0, clip / (float(raw.norm()) + 1e-6)) if clip else raw
        stored = raw if self.o["before_clip"] else g
        self.theta = self.theta - self.o["lr"] * self.direction(g, t)
        self.seen.append(stored)
        for unit, memory in zip(self.units, self.memories):
            memory.insert(stored[unit])

    def direction(self, g: Tensor, t: int) -> Tensor:
        """The base's step for a learning rate of 1, damped where the variant says."""
        place, own = self.o["apply"], self.o["metric"] == "adam"

        def at(here: str, x: Tensor, scale: Tensor | None = None) -> Tensor:
            return self.damp(x, scale if own else None, t) if place == here else x

        if self.base in ("SGD", "SGDM", "Nesterov"):
            mu = {"SGD": 0.0}.get(self.base, 0.9)
            g = at("gradient", g)
            self.m = mu * self.m + g
            used = at("momentum", self.m)
            return at("update", g + mu * used if self.base == "Nesterov" else used)
        if self.base == "Lion":
            g = at("gradient", g)
            c = at("momentum", 0.9 * self.m + 0.1 * g)
            self.m = 0.99 * self.m + 0.01 * g
            return at("update", c.sign())
        before = max(t - 1, 1)
        g = at("gradient", g, (self.v / (1 - 0.999**before)).sqrt() + 1e-8)
        self.m = 0.9 * self.m + 0.1 * g
        self.v = 0.999 * self.v + 0.001 * g.square()
        scale = (self.v / (1 - 0.999**t)).sqrt() + 1e-8
        used = at("momentum", self.m, scale)
        if self.base == "Adam":
            numerator = used / (1 - 0.9**t)
        else:
            mu, ahead = (0.9 * (1 - 0.5 * 0.96 ** (s * 0.004)) for s in (t, t + 1))
            self.mu_product *= mu
            numerator = g * (1 - mu) / (1 - self.mu_product) + used * ahead / (1 - self.mu_product * ahead)
        if place == "update":
            return self.damp(numerator, scale, t) / scale if own else self.damp(numerator / scale, None, t)
        return numerator / scale

    def run(self, steps: int) -> Tensor:
        plan, noise = self.problem.plan(self.trial.seed, 1), self.problem.noise(self.trial.seed, 1)
        for t in range(1, steps + 1):
            self.step(plan[t - 1], None if noise is None else noise[t - 1], t)
        return self.theta
