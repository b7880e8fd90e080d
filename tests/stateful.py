"""A machine that does to an optimizer what users do, in any order, and holds every step against the reference.

The machine keeps what each parameter's memory must hold (``Held``), and says for every action what becomes of it. A
step is then predicted from there: the reference (``reference.py``) gives directions and the entry that goes, torch's own
optimizer, put together from the parameters and state that ours had before the step, makes the step on those directions.
What ours did must be that, and what it holds afterwards is taken as the start of the next prediction, so that an error
is an error of one step and tolerances can be tight: they are worked out for each step from the rounding of its
direction (``_slack``), by letting torch's optimizer also step on directions that are off by as much.

Only public names and the keys of ``state`` are used, so that it holds for whatever makes the step.
"""

from __future__ import annotations

import copy
import io
import math
import os
import pickle
from dataclasses import dataclass, replace

import torch
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from torch import Tensor, nn

import critgrad
from critgrad.memory.aggregations import AGGREGATIONS as ALL_AGGREGATIONS
from critgrad.memory.aggregations import LINEAR
from critgrad.memory.gram import GRAM_ROUNDING
from critgrad.memory.policies import POLICIES
from critgrad.reference import Entry, ReferenceMemory

OPTIONS = (
    "topC", "decay", "aggr", "kappa", "rho", "policy", "every", "scope", "max_age", "seed", "memory_dtype", "memory_device",
)  # fmt: skip
# What a memory has one of: groups with one memory agree on it, others need not.
COMMON = {
    "topC": st.integers(1, 5),
    "decay": st.sampled_from([0.0, 0.5, 0.9, 1.0]),
    "policy": st.sampled_from(list(POLICIES)),
    "every": st.integers(1, 3),
    "max_age": st.sampled_from([None, 1, 2, 5]),
    "seed": st.integers(0, 2**40),
}
SOME_OF_THEM = st.fixed_dictionaries({}, optional=COMMON)
KEPT_ON_LOAD = ("topC", "scope", "memory_dtype", "memory_device")
AGGREGATIONS = (*ALL_AGGREGATIONS, "fisher")  # twice as often
FLOATS = {"float64": torch.float64, "float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
# How far a stored value may be from the gradient's, as a share of it and of the largest in its block.
ROUNDING = {"int8": (0.0, 0.51 / 127), "float8": (2**-4, 2**-9)}

# A large eps: otherwise a direction that happens to be nearly zero decides, by its rounding, where Adam goes.
BASES = {
    "SGD": (torch.optim.SGD, {"lr": 0.02}),
    "SGDM": (torch.optim.SGD, {"lr": 0.02, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01}),
    "RMSprop": (torch.optim.RMSprop, {"lr": 0.02, "eps": 0.1}),
    "Adam": (torch.optim.Adam, {"lr": 0.02, "eps": 0.1}),
    "AdamW": (torch.optim.AdamW, {"lr": 0.02, "eps": 0.1, "weight_decay": 0.1}),
    "NAdam": (torch.optim.NAdam, {"lr": 0.02, "eps": 0.1}),
    "RAdam": (torch.optim.RAdam, {"lr": 0.02, "eps": 0.1}),
    "Adagrad": (torch.optim.Adagrad, {"lr": 0.02, "eps": 0.1}),
}
SHAPES = ((2, 3, 2, 2), (5,), (), (0,))
MORE_SHAPES = ((3,), (2, 2), (1, 2, 3, 1))
MOST_TENSORS = 6

KINDS = (
    "ordinary",
    "ordinary",
    "ordinary",
    "ordinary",
    "lattice",
    "none",
    "zero",
    "tiny",
    "large",
    "huge",
    "inf",
    "nan",
)
GOOD_KINDS = KINDS[:9]


# -- what is held ------------------------------------------------------------------------------------------------------


@dataclass
class Held:
    """What one parameter's state says of the memory; float64, the slots' shape ``(C, *shape)``."""

    slots: Tensor
    priority: list[float]
    norm: list[float]
    born: list[int]
    clock: int
    inserted: int

    def tables(self):
        return self.priority, self.born, self.clock

    def kept(self, topC: int, by_age: bool) -> Held:
        """With another number of slots: the strongest stay, in their order; of equal ones the youngest."""
        C = len(self.born)
        if topC == C:
            return self

        def rank(k: int):
            live = self.born[k] > 0
            return (live, 0.0 if by_age else self.priority[k], self.born[k])

        keep = sorted(sorted(range(C), key=rank, reverse=True)[:topC])
        free = topC - len(keep)
        slots = torch.cat([self.slots[keep], self.slots.new_zeros(free, *self.slots.shape[1:])])
        tables = [
            [table[k] for k in keep] + [type(table[0])()] * free for table in (self.priority, self.norm, self.born)
        ]
        return Held(slots, *tables, self.clock, self.inserted)

    @classmethod
    def empty(cls, param: Tensor, topC: int) -> Held:
        zeros = [0.0] * topC
        return cls(torch.zeros(topC, *param.shape, dtype=torch.float64), zeros, zeros, [0] * topC, 0, 0)


def held_by(optimizer, param) -> Held | None:
    """What stands in an optimizer's state."""
    state = optimizer.state.get(param, {})
    if "critical_slots" not in state:
        return None
    slots = state["critical_slots"].double()
    if "critical_scale" in state:
        assert param.numel() <= 256, "of more than one block of scales the order would count"
        scale = state["critical_scale"].double()
        slots = slots * (scale[:, 0] if param.numel() else scale.new_ones(len(scale))).view(-1, *[1] * param.dim())
    lists = (state[key].double().tolist() for key in ("critical_priority", "critical_norm"))
    born = state["critical_born"].tolist()
    return Held(slots.clone(), *lists, born, int(state["critical_clock"]), int(state["critical_inserted"]))


def rounded(values: Tensor, name: str) -> Tensor:
    """As a slot of a float format holds them; 8-bit formats are left as they are."""
    if name not in FLOATS:
        return values
    largest = torch.finfo(FLOATS[name]).max
    return values.clamp(-largest, largest).to(FLOATS[name]).double()


class Oracle(ReferenceMemory):
    """The reference, with norms in the dtype that the memory has them in, and what leaves that range."""

    def __init__(self, dtype: torch.dtype, **options):
        super().__init__(**options)
        self.dtype = dtype

    def _norm(self, g: Tensor) -> float:
        return math.sqrt(float(g.double().square().sum().to(self.dtype)))

    def norm(self, g: Tensor) -> float:
        # torch's root of a single number is not always the nearest one (of 55 it is not), the kernels' are: equal norms are
        # a tie only by the same root. The native core leaves float64 to torch's operations.
        plain = os.environ.get("CRITGRAD_NATIVE") == "0" or self.dtype == torch.float64
        if plain and os.environ.get("TRITON_INTERPRET") != "1":
            return float(g.double().square().sum().to(self.dtype).sqrt())
        return super().norm(g)

    def finite(self, g: Tensor) -> bool:
        return math.isfinite(self._norm(g))

    def insert(self, g: Tensor) -> int | None:
        if not self.finite(g):
            return None
        return super().insert((g if self._norm(g) > 0 else torch.zeros_like(g)).to(self.dtype))

    def admits(self, g: Tensor, norm: float) -> bool:
        if self.policy == "bottomC":
            inverse = float(torch.tensor(1 / norm, dtype=torch.float64).to(self.dtype))
            return inverse > min(entry.priority for entry in self.live)
        return super().admits(g.double(), norm)


@dataclass
class Expected:
    """One memory as it must be before a step: its tensors' numbers, what each holds, and the common options."""

    members: list[int]
    held: list[Held]
    options: dict
    stream: int
    begun: bool  # whether any of them had a memory; if not, nothing stands in the state before the first step

    def oracle(self, dtype: torch.dtype, over: list[int], **options) -> Oracle:
        """The reference for some of the members, laid end to end."""
        out = Oracle(dtype, stream=self.stream, **{name: self.options[name] for name in COMMON}, **options)
        first = self.held[0]
        for k, born in enumerate(first.born):
            if born > 0:
                gradient = torch.cat([self.held[j].slots[k].reshape(-1) for j in over])
                out.entries[k] = Entry(first.priority[k], first.norm[k], born, gradient)
        out.t = first.clock
        return out


# -- the machine -------------------------------------------------------------------------------------------------------


class Net(nn.Module):
    def __init__(self, tensors):
        super().__init__()
        self.weights = nn.ParameterList([nn.Parameter(t) for t in tensors])


class Machine(RuleBasedStateMachine):
    """What users do. Subclasses say on what: ``bases``, ``wrapped``, ``dtypes`` and ``memory_dtypes`` to go between."""

    bases: tuple[str, ...] = ("Adam",)
    wrapped = (False,)
    dtypes: tuple[torch.dtype, ...] = (torch.float64,)
    memory_dtypes: tuple[str | None, ...] = (None,)
    fused: bool | None = None
    rhos = (0.03, 0.3, 3.0)
    steps = 0  # made by all machines of a class, and how many of them by another engine than torch's operations
    fast_steps = 0

    # -- what there is -------------------------------------------------------------------------------------------------

    @initialize(data=st.data())
    def begin(self, data):
        draw = data.draw
        self.base_class, base_options = BASES[draw(st.sampled_from(self.bases), "base")]
        self.is_wrapper = draw(st.sampled_from(self.wrapped), "wrapped")
        self.base_options = dict(base_options)
        options = {
            "topC": draw(st.integers(1, 4), "topC"),
            "decay": draw(st.sampled_from([0.0, 0.7, 0.95, 1.0]), "decay"),
            "aggr": draw(st.sampled_from(AGGREGATIONS), "aggr"),
            "policy": draw(st.sampled_from(("KotH",) * 4 + tuple(POLICIES)), "policy"),
            "scope": draw(st.sampled_from(["global", "global", "group", "tensor"]), "scope"),
            "memory_dtype": draw(st.sampled_from((None, None, *self.memory_dtypes)), "memory_dtype"),
            "every": 2,
        }
        generator = torch.Generator().manual_seed(0)
        dtype = self.dtypes[0]
        self.net = Net([torch.randn(s, generator=generator, dtype=torch.float64).to(dtype) for s in SHAPES])
        self.model: dict[int, Held] = {}
        self.drawn = 0  # gradients
        self.counted: dict[int, set[int]] = {}  # whom the Gram matrix that a parameter holds was made with
        self.widest = torch.finfo(self.work(0)).eps  # of the working dtypes so far
        self.peak = 0.0  # the largest value that any memory has held: what a running sum may still be off by
        split = draw(st.booleans(), "two groups")
        weights = list(self.net.weights)
        groups = [{"params": weights[:2]}, {"params": weights[2:]}] if split else [{"params": weights}]
        if options["scope"] != "global":
            groups[-1] |= draw(SOME_OF_THEM, "options of the last group")
        self.optimizer = self.make(groups, options)
        self.take()  # Adagrad has state from the beginning, and so has its memory

    def make(self, groups, options):
        kwargs = dict(self.base_options)
        if self.is_wrapper:
            return critgrad.CriticalGradients(self.base_class(groups, **kwargs), **options)
        if self.base_class not in (torch.optim.RAdam, torch.optim.Adagrad):
            kwargs["fused"] = self.fused
        return critgrad.critical(self.base_class)(groups, **kwargs, **options)

    @property
    def groups(self):
        return self.optimizer.param_groups

    @property
    def dtype(self):
        return self.net.weights[0].dtype

    def number(self, param) -> int:
        return next(i for i, p in enumerate(self.net.weights) if p is param)

    def group_of(self, i: int):
        return next(group for group in self.groups if any(p is self.net.weights[i] for p in group["params"]))

    def format_of(self, i: int) -> str:
        name = self.group_of(i)["memory_dtype"]
        return str(self.net.weights[i].dtype).removeprefix("torch.") if name is None else name

    # -- what must be there --------------------------------------------------------------------------------------------

    def expected(self) -> list[Expected]:
        """The memories that the groups ask for, with what the parameters hold brought to them."""
        together: list[int] = []
        found: list[tuple[list[int], int]] = []
        first = 0
        for number, group in enumerate(self.groups):
            mine = [self.number(p) for p in group["params"]]
            mine = [i for i in mine if self.net.weights[i].requires_grad or i in self.model]
            if group["topC"] == 0:
                pass
            elif group["scope"] == "global":
                together += mine
            elif group["scope"] == "group":
                found.append((mine, number + 1))
            else:
                found += [([i], (1 << 20) + first + j) for j, i in enumerate(mine)]
            first += len(group["params"])
        return [self.one_expected(*each) for each in [(together, 0), *found] if each[0]]

    def one_expected(self, members: list[int], stream: int) -> Expected:
        options = self.group_of(members[0])
        holders = [self.model[i] for i in members if i in self.model]
        if any(other.tables() != holders[0].tables() for other in holders[1:]):
            holders = []  # tables that do not fit together: it starts empty
        held = []
        for i in members:
            param = self.net.weights[i]
            if not holders:
                held.append(Held.empty(param, options["topC"]))
                continue
            mine = replace(holders[0], slots=self.zeros_like_slots(holders[0], param))
            if i in self.model:
                mine = replace(mine, slots=rounded(self.model[i].slots, self.format_of(i)))
            held.append(mine.kept(options["topC"], options["policy"] == "FIFO"))
        damping = {i for i in self.damping(members) if i in self.model}
        if any(self.counted.get(i, damping) != damping for i in damping):
            # A matrix that counts more than it should is kept where that is as little as rounding may be.
            self.widest = max(self.widest, GRAM_ROUNDING / 64)
        return Expected(members, held, options, stream, begun=any(i in self.model for i in members))

    def damping(self, members: list[int]) -> list[int]:
        return [i for i in members if self.group_of(i)["aggr"] == "fisher"]

    @staticmethod
    def zeros_like_slots(holder: Held, param: Tensor) -> Tensor:
        return torch.zeros(len(holder.born), *param.shape, dtype=torch.float64)

    def work(self, i: int) -> torch.dtype:
        return torch.promote_types(self.net.weights[i].dtype, torch.float32)

    def table_dtype(self, memory: Expected) -> torch.dtype:
        return torch.float64 if any(self.work(i) == torch.float64 for i in memory.members) else torch.float32

    # -- a step --------------------------------------------------------------------------------------------------------

    def predicted(
        self, memory: Expected, grads: dict[int, Tensor]
    ) -> tuple[dict[int, Tensor], dict[int, Tensor], Expected]:
        """``(directions, how far each may be off, the memory after the step)``."""
        dtype = self.table_dtype(memory)
        everyone = list(range(len(memory.members)))
        whole = memory.oracle(dtype, everyone, aggr="mean")
        g_of = [
            grads[i].double() if i in grads else torch.zeros(self.net.weights[i].shape, dtype=torch.float64)
            for i in memory.members
        ]
        flat = torch.cat([g.reshape(-1) for g in g_of])
        directions, slack = {}, {}
        usable = whole.finite(flat)
        for j, i in enumerate(memory.members):
            group = self.group_of(i)
            key = {name: group[name] for name in ("aggr", "kappa", "rho")}
            over = everyone
            if key["aggr"] == "fisher":
                over = [n for n in everyone if self.group_of(memory.members[n])["aggr"] == "fisher"]
            if not usable or not whole.live:
                directions[i], slack[i] = g_of[j], torch.zeros_like(g_of[j])
                continue
            mine = torch.cat([g_of[n].reshape(-1) for n in over])
            oracle = memory.oracle(dtype, over, **key)
            pieces = oracle.direction(mine).split([g_of[n].numel() for n in over])
            directions[i] = pieces[over.index(j)].reshape(g_of[j].shape)
            slack[i] = self._slack(i, memory.held[j], key, g_of[j], mine, oracle)
        slot = whole.insert(flat)
        entry = None if slot is None else whole.entries[slot]
        after = []
        for g, held, i in zip(g_of, memory.held, memory.members):
            slots, norm, born = held.slots.clone(), list(held.norm), list(held.born)
            if slot is not None:
                slots[slot], norm[slot], born[slot] = rounded(g, self.format_of(i)), entry.norm, entry.born
            priority = [0.0 if e is None else e.priority for e in whole.entries]
            after.append(Held(slots, priority, norm, born, whole.t, held.inserted + (slot is not None)))
        return directions, slack, replace(memory, held=after, begun=True)

    def _slack(self, i: int, held: Held, key: dict, g: Tensor, whole: Tensor, oracle: Oracle) -> Tensor:
        """How far rounding may take a direction: what is added up is rounded, and so is what is solved."""
        param, eps = self.net.weights[i], torch.finfo(self.work(i)).eps
        if key["aggr"] == "fisher":
            trace = sum(float(entry.gradient.square().sum()) for entry in oracle.live)
            if trace == 0:
                return torch.zeros_like(g)
            column = held.slots.square().sum(0).sqrt()
            share = float(whole.norm()) / math.sqrt(trace) * (1 / math.sqrt(key["rho"]) + 1 / key["rho"])
            bound = g.abs() + column * share
            off = 64 * self.widest * bound  # inner products are kept, of slots of a narrower model too
        else:
            bound = g.abs() + max(key["kappa"], 1.0) * held.slots.abs().sum(0)
            off = 16 * eps * bound
            state = self.optimizer.state.get(param, {})
            if key["aggr"] in LINEAR and "critical_sum" in state:  # what check_sum has let pass
                drift = state["critical_sum"].double() - held_by(self.optimizer, param).slots.sum(0)
                off = off + max(key["kappa"], 1.0) * drift.abs()
        if param.dtype != self.work(i):
            off = off + torch.finfo(param.dtype).eps * bound
        return off

    def plain_step(self, before, directions: dict[int, Tensor]):
        """torch's own optimizer on these directions: the parameters and states after it."""
        groups, numbers = [], []
        for group, members in before:
            params = []
            for i, value, _ in members:
                params.append(nn.Parameter(value.clone(), requires_grad=self.net.weights[i].requires_grad))
                if i in directions:
                    params[-1].grad = directions[i].to(value.dtype)
                numbers.append((i, params[-1]))
            groups.append({**group, "params": params})
        optimizer = self.base_class(groups, **self.base_options)
        for (_, param), state in zip(numbers, [state for _, members in before for _, _, state in members]):
            optimizer.state.pop(param, None)
            if state:
                optimizer.state[param] = clone_state(state)
        optimizer.step()
        return {i: (p.detach(), dict(optimizer.state[p]) if p in optimizer.state else {}) for i, p in numbers}

    def snapshot(self):
        """Groups, parameters and the base's state as ours has them: what torch's optimizer is put together from."""
        out = []
        for group in self.groups:
            options = {key: value for key, value in group.items() if key not in ("params", "fused", *OPTIONS)}
            members = []
            for p in group["params"]:
                state = self.optimizer.state.get(p, {})
                theirs = {key: value for key, value in state.items() if not key.startswith("critical_")}
                members.append((self.number(p), p.detach().clone(), clone_state(theirs)))
            out.append((options, members))
        return out

    def step_with(self, grads: dict[int, Tensor]) -> None:
        """Give these gradients, predict, step, compare."""
        for i, p in enumerate(self.net.weights):
            p.grad = grads.get(i)
        kept = [(p, p.grad, None if p.grad is None else (p.grad.clone(), p.grad._version)) for p in self.net.weights]
        versions = [p._version for p in self.net.weights]
        before = self.snapshot()
        directions = {i: g.double() for i, g in grads.items()}
        slack: dict[int, Tensor] = {}
        memories = []
        for memory in self.expected():
            mine, off, after = self.predicted(memory, grads)
            directions.update({i: d for i, d in mine.items() if i in grads})
            slack.update(off)
            memories.append(after)
        wanted = self.plain_step(before, directions)
        near = []
        if any(bool((off > 0).any()) for off in slack.values()):
            for sign in (1, -1):
                moved = {i: d + sign * slack[i] if i in slack else d for i, d in directions.items()}
                near.append(self.plain_step(before, moved))

        self.optimizer.step()
        type(self).steps += 1
        type(self).fast_steps += is_fast(self.optimizer)

        for p, grad, was in kept:
            assert p.grad is grad, "p.grad is another tensor after the step"
            if was is not None:
                assert p.grad._version == was[1], "p.grad was written to"
                assert torch.equal(p.grad.nan_to_num(), was[0].nan_to_num()), "p.grad has other values"
        self.check_versions(versions, grads)
        start = {i: (value, state) for _, members in before for i, value, state in members}
        for i, (value, state) in wanted.items():
            others = [each[i] for each in near]
            p = self.net.weights[i]
            compare(f"parameter {i}", p, value, start[i][0], [o[0] for o in others], p.dtype)
            if i not in grads:
                assert same(p, value), f"parameter {i} has no gradient and has changed"
                continue
            ours = self.optimizer.state[p]
            for key, theirs in state.items():
                if torch.is_tensor(theirs) and p.numel() > 0:  # kernels do not count the steps of nothing
                    old = start[i][1].get(key, torch.zeros_like(theirs))
                    compare(f"{key} of {i}", ours[key], theirs, old, [o[1][key] for o in others], p.dtype)
        self.check_memories(memories)
        self.take()
        self.go_back_from_nonsense(before)

    def check_versions(self, versions, grads) -> None:
        """Autograd must notice that a parameter has changed."""
        for i in grads:
            assert self.net.weights[i]._version > versions[i], f"the version of parameter {i} has not changed"

    def go_back_from_nonsense(self, before) -> None:
        """As one does after a step on a gradient that was no good: parameters and the base's state are put back."""
        numbers = [p.detach() for p in self.net.weights]
        for state in self.optimizer.state.values():
            numbers += [v for k, v in state.items() if torch.is_tensor(v) and not k.startswith("critical_")]
        if all(bool((v.isfinite() & (v.abs() < 1e8)).all()) for v in numbers):
            return
        for _, members in before:
            for i, value, state in members:
                p = self.net.weights[i]
                p.data.copy_(value)
                ours = self.optimizer.state.get(p, {})
                for key in [key for key in ours if not key.startswith("critical_")]:
                    if key not in state:
                        del ours[key]
                    elif torch.is_tensor(state[key]):
                        ours[key].copy_(state[key])

    # -- comparisons ---------------------------------------------------------------------------------------------------

    def check_memories(self, memories: list[Expected], coarse: float = 0.0) -> None:
        """Everything that the state holds of the memories, and nothing else."""
        inside = {i for memory in memories if memory.begun for i in memory.members}
        for i, p in enumerate(self.net.weights):
            state = self.optimizer.state.get(p, {})
            if i not in inside and not any(i in memory.members for memory in memories):
                assert not any(key.startswith("critical_") for key in state), f"parameter {i} is in no memory"
        for memory in memories:
            if memory.begun:
                self.check_memory(memory, coarse)

    def check_memory(self, memory: Expected, coarse: float) -> None:
        close = 1e-5 if self.table_dtype(memory) == torch.float32 else 1e-12
        first = self.optimizer.state[self.net.weights[memory.members[0]]]
        for i, want in zip(memory.members, memory.held):
            p = self.net.weights[i]
            state = self.optimizer.state[p]
            found = held_by(self.optimizer, p)
            assert found is not None, f"parameter {i} has no slots"
            assert (found.born, found.clock) == (want.born, want.clock), (i, found, want)
            assert found.inserted == want.inserted, (i, found.inserted, want.inserted)
            torch.testing.assert_close(found.priority, want.priority, rtol=max(close, coarse), atol=0)
            torch.testing.assert_close(found.norm, want.norm, rtol=max(close, coarse), atol=0)
            for key in ("critical_priority", "critical_born", "critical_clock"):
                assert state[key].data_ptr() == first[key].data_ptr(), f"{key} is not one tensor"
            self.check_slots(i, found.slots, want.slots, coarse)
            damps = self.group_of(i)["aggr"] == "fisher"
            assert ("critical_gram" in state, "critical_sum" in state) == (damps, not damps), (i, list(state))
            if not damps:
                self.check_sum(i, state["critical_sum"].double(), found.slots)
        self.check_gram(memory)

    def check_slots(self, i: int, found: Tensor, want: Tensor, coarse: float) -> None:
        share, of_largest = ROUNDING.get(self.format_of(i), (0.0, 0.0))
        share = max(share, coarse)
        found, want = found.reshape(len(found), -1), want.reshape(len(want), -1)
        largest = want.abs().amax(1, keepdim=True) if want.numel() else 0.0
        off = (found - want).abs()
        smallest = 1e-35 if of_largest else 0.0  # scales below have no reciprocal
        room = share * want.abs() + max(of_largest, coarse) * largest + smallest
        assert bool((off <= room).all()), (i, self.format_of(i), found, want)

    def check_sum(self, i: int, total: Tensor, slots: Tensor) -> None:
        eps = torch.finfo(self.work(i)).eps
        room = 16 * eps * max(self.peak, float(slots.abs().max()) if slots.numel() else 0.0) * len(slots)
        off = (total - slots.sum(0)).abs()
        assert bool((off <= room).all()), f"the sum of {i} is off by {off.tolist()}"

    def check_gram(self, memory: Expected) -> None:
        members = self.damping(memory.members)
        if not members:
            return
        self.counted |= {i: set(members) for i in members}
        slots = [held_by(self.optimizer, self.net.weights[i]).slots for i in members]
        G = torch.cat([each.reshape(len(each), -1) for each in slots], 1)
        K, sizes = G @ G.T, G.abs().sum(1)  # no squares, which may be lost
        close = 64 * self.widest
        for i in members:
            gram = self.optimizer.state[self.net.weights[i]]["critical_gram"]
            assert gram.dtype == torch.float64
            known = ~gram.isnan()
            self.check_pending(gram, known)
            off = (gram - K).abs()[known]
            # A product below the smallest normal number of its type is lost, each value's.
            lost = (
                G.shape[1] * torch.finfo(torch.promote_types(self.net.weights[i].dtype.to_real(), torch.float32)).tiny
            )
            assert bool((off <= close * torch.outer(sizes, sizes)[known] + lost).all()), (gram, K)

    def check_pending(self, gram: Tensor, known: Tensor) -> None:
        """Inner products that only the next step finds: an engine that has such says so."""
        assert bool(known.all()), gram

    def take(self) -> None:
        """What ours holds now, checked, is where the next prediction starts."""
        self.model = {}
        for i, p in enumerate(self.net.weights):
            held = held_by(self.optimizer, p)
            if held is not None:
                self.model[i] = held
                if held.slots.numel():
                    self.peak = max(self.peak, float(held.slots.abs().max()))

    def look(self, coarse: float = 0.0) -> None:
        """Let the memories be brought to the options now, not in the next step, and compare."""
        memories = self.expected()
        report = critgrad.inspect(self.optimizer)
        assert [m.live for m in report.memories] == [
            sum(b > 0 for b in e.held[0].born) for e in self.in_report_order(memories)
        ]
        self.check_memories(memories, coarse)
        self.take()

    def in_report_order(self, memories):
        return memories

    # -- rules: gradients ----------------------------------------------------------------------------------------------

    def gradient(self, i: int, kind: str, generator: torch.Generator, size: float, last: bool) -> Tensor | None:
        p = self.net.weights[i]
        g = torch.randn(p.shape, generator=generator, dtype=torch.float64) * size
        limits = {"tiny": 1e-30, "large": 1e3, "huge": 1e30}
        if p.dtype == torch.float64:
            limits = {"tiny": 1e-200, "large": 1e3, "huge": 1e200}
        if kind == "none":
            return None
        if kind == "zero":
            g = g * 0
        elif kind == "lattice":  # whole numbers: norms that are equal to the last bit
            g = torch.randint(-2, 3, p.shape, generator=generator).double()
        elif kind in limits:
            g = g * limits[kind]
        elif kind in ("inf", "nan") and g.numel():
            g.view(-1)[0] = math.inf if kind == "inf" else math.nan
        g = g.to(p.dtype)
        return g.to(memory_format=torch.channels_last) if last and p.dim() == 4 else g

    def draw_gradients(self, seed: int, kinds: list[str], last: bool = False) -> dict[int, Tensor]:
        """Whole numbers may come again; others do not: of norms that differ by rounding alone nobody knows the larger."""
        if kinds != ["lattice"]:
            self.drawn += 1
            seed += self.drawn * 10**7
        generator = torch.Generator().manual_seed(seed)
        size = 10 ** (2 * float(torch.rand((), generator=generator)) - 1)
        found = {
            i: self.gradient(i, kinds[i % len(kinds)], generator, size, last) for i in range(len(self.net.weights))
        }
        return {i: g for i, g in found.items() if g is not None}

    @rule(seed=st.integers(0, 10**6), count=st.integers(1, 4))
    def ordinary_steps(self, seed, count):
        for k in range(count):
            self.step_with(self.draw_gradients(seed + k, ["ordinary"]))

    @rule(
        seed=st.integers(0, 10**6),
        kinds=st.lists(st.sampled_from(GOOD_KINDS), min_size=1, max_size=4),
        last=st.booleans(),
    )
    def mixed_step(self, seed, kinds, last):
        self.step_with(self.draw_gradients(seed, kinds, last))

    @rule(seed=st.integers(0, 10**6), kinds=st.lists(st.sampled_from(KINDS), min_size=1, max_size=4))
    def any_step(self, seed, kinds):
        self.step_with(self.draw_gradients(seed, kinds))

    @rule(seed=st.integers(0, 20), count=st.integers(1, 3))
    def tied_steps(self, seed, count):
        for _ in range(count):
            self.step_with(self.draw_gradients(seed, ["lattice"]))

    # -- rules: options ------------------------------------------------------------------------------------------------

    def a_group(self, data):
        return self.groups[data.draw(st.sampled_from(range(len(self.groups))), "group")]

    def set_in(self, group, name, value):
        """Groups that have their memory in common with this one follow."""
        group[name] = value
        together = [each for each in self.groups if each["topC"] > 0 and each["scope"] == "global"]
        if any(each is group for each in together):
            for each in together:
                each.update({name: group[name] for name in COMMON})

    @rule(data=st.data(), name=st.sampled_from(["topC", *COMMON]))
    def change_a_common_option(self, data, name):
        self.set_in(self.a_group(data), name, data.draw(COMMON[name], "value"))

    @rule(data=st.data())
    def change_an_option_of_a_group(self, data):
        group = self.a_group(data)
        name = data.draw(st.sampled_from(["aggr", "aggr", "kappa", "rho", "lr"]), "option")
        values = {"aggr": AGGREGATIONS, "kappa": (0.0, 0.5, 1.0), "rho": self.rhos, "lr": (0.0, 0.01, 0.05)}[name]
        group[name] = data.draw(st.sampled_from(values), "value")

    @rule(data=st.data())
    def leave_the_memory(self, data):
        self.a_group(data)["topC"] = 0
        if all(group["topC"] == 0 for group in self.groups):
            # A step without any memory forgets what was held only if the optimizer has not been copied in between.
            self.look()

    @rule(data=st.data(), scope=st.sampled_from(["global", "group", "tensor"]), all_=st.booleans())
    def change_scope(self, data, scope, all_):
        for group in self.groups if all_ else [self.a_group(data)]:
            self.set_in(group, "scope", scope)

    @rule(data=st.data())
    def change_memory_dtype(self, data):
        name = data.draw(st.sampled_from((None, *self.memory_dtypes)), "memory_dtype")
        self.a_group(data)["memory_dtype"] = name
        self.look(coarse=0.07)

    @rule(lr=st.sampled_from([0.0, 0.01, 0.05]), tensor=st.booleans())
    def change_lr(self, lr, tensor):
        for group in self.groups:
            group["lr"] = torch.tensor(lr) if tensor else lr

    @rule()
    def inspect(self):
        self.look()

    # -- rules: parameters ---------------------------------------------------------------------------------------------

    @precondition(lambda self: len(self.net.weights) < MOST_TENSORS)
    @rule(data=st.data(), shape=st.sampled_from(MORE_SHAPES), out=st.booleans(), frozen=st.booleans())
    def add_a_group(self, data, shape, out, frozen):
        new = nn.Parameter(torch.ones(shape, dtype=self.dtype), requires_grad=not (out and frozen))
        common = next((group for group in self.groups if group["topC"] > 0), self.groups[0])
        options = {name: common[name] for name in COMMON}
        options["aggr"] = data.draw(st.sampled_from(AGGREGATIONS), "aggr")
        options["scope"] = data.draw(st.sampled_from([common["scope"]] * 2 + ["group"]), "scope")
        if options["scope"] != "global":
            options |= data.draw(SOME_OF_THEM, "options of its own")
        if out and not frozen:
            options["topC"] = 0
        self.net.weights.append(new)
        self.optimizer.add_param_group({"params": [new], **options})

    @precondition(lambda self: len(self.groups) > 1)
    @rule(data=st.data(), last=st.booleans(), drop=st.booleans())
    def move_to_another_group(self, data, last, drop):
        """To the front or the end of it; what the parameter holds goes with it. A group that it leaves empty may go, too."""
        i = data.draw(st.sampled_from(range(len(self.net.weights))), "parameter")
        p, old = self.net.weights[i], self.group_of(i)
        others = [n for n, group in enumerate(self.groups) if group is not old]
        new = self.groups[data.draw(st.sampled_from(others), "group")]
        del old["params"][next(k for k, q in enumerate(old["params"]) if q is p)]
        new["params"].insert(len(new["params"]) if last else 0, p)
        if drop and not old["params"]:
            del self.groups[next(n for n, group in enumerate(self.groups) if group is old)]
        if new["memory_dtype"] != old["memory_dtype"]:
            self.look(coarse=0.07)

    @rule(data=st.data(), flag=st.booleans())
    def freeze_or_thaw(self, data, flag):
        i = data.draw(st.sampled_from(range(len(self.net.weights))), "parameter")
        self.net.weights[i].requires_grad_(flag)

    @rule(data=st.data(), keep=st.booleans())
    def replace_a_parameter(self, data, keep):
        """A layer is made anew; whether the old one's state is taken out or left behind."""
        i = data.draw(st.sampled_from(range(len(self.net.weights))), "parameter")
        old = self.net.weights[i]
        group = self.group_of(i)
        at = next(k for k, p in enumerate(group["params"]) if p is old)
        new = nn.Parameter(torch.full_like(old, 0.5), requires_grad=old.requires_grad)
        state = self.optimizer.state.get(old, {})
        self.net.weights[i] = group["params"][at] = new
        if self.base_class is torch.optim.Adagrad:  # which makes its state at construction only
            self.optimizer.state[new] = {k: v for k, v in state.items() if not k.startswith("critical_")}
        if not keep:
            self.optimizer.state.pop(old, None)
        self.model.pop(i, None)

    @rule(data=st.data(), how=st.sampled_from(["all", "empty", "ours"]))
    def drop_state(self, data, how):
        i = data.draw(st.sampled_from(range(len(self.net.weights))), "parameter")
        p = self.net.weights[i]
        if p not in self.optimizer.state:
            return
        if how == "ours" or self.base_class is torch.optim.Adagrad:
            for key in [key for key in self.optimizer.state[p] if key.startswith("critical_")]:
                del self.optimizer.state[p][key]
        elif how == "all":
            del self.optimizer.state[p]
        else:
            self.optimizer.state[p] = {}
        self.model.pop(i, None)

    @rule(last=st.booleans())
    def change_memory_format(self, last):
        order = torch.channels_last if last else torch.contiguous_format
        self.net.to(memory_format=order)

    @rule()
    def move_storage(self):
        for p in self.net.weights:
            p.data = p.data.clone()

    @precondition(lambda self: len(self.dtypes) > 1)
    @rule(data=st.data(), by_hand=st.booleans(), seed=st.integers(0, 10**6))
    def cast(self, data, by_hand, seed):
        """The model in another dtype; the base's state follows as torch lets it: by a load, or by hand."""
        dtype = data.draw(st.sampled_from(self.dtypes), "dtype")
        was = self.dtype
        self.forget_old_parameters()
        coarse = max(torch.finfo(d).eps for d in (was, dtype)) if was != dtype else 0.0
        for p in self.net.weights:
            p.grad = None
        self.net.to(dtype)
        self.widest = max(self.widest, torch.finfo(self.work(0)).eps)
        if not by_hand:
            self.conform()
            self.optimizer.load_state_dict(self.optimizer.state_dict())
            self.after_load(coarse)
            return
        for p, state in self.optimizer.state.items():
            for key, value in state.items():
                if not key.startswith("critical_") and key not in ("step", "mu_product") and torch.is_tensor(value):
                    state[key] = value.to(p.dtype)
        self.step_with(self.draw_gradients(seed, ["ordinary"]))

    # -- rules: copies -------------------------------------------------------------------------------------------------

    def forget_old_parameters(self):
        """torch saves no state of parameters that stand in no group."""
        mine = {id(p) for p in self.net.weights}
        for p in [p for p in self.optimizer.state if id(p) not in mine]:
            del self.optimizer.state[p]

    def conform(self):
        """A load brings the memories to the options at once."""
        memories = self.expected()
        for memory in memories:
            for i, held in zip(memory.members, memory.held):
                if memory.begun:
                    self.model[i] = held
        inside = {i for memory in memories for i in memory.members}
        self.model = {i: held for i, held in self.model.items() if i in inside}

    def after_load(self, coarse=0.0):
        memories = self.expected()
        for memory in memories:
            memory.begun = memory.begun or any(held_by(self.optimizer, self.net.weights[i]) for i in memory.members)
        self.check_memories(memories, coarse)
        self.take()

    @rule(
        more=st.sampled_from([0, 0, 0, -1, 1]),
        data=st.data(),
    )
    def save_and_load(self, more, data):
        """Into an optimizer made anew, perhaps of another size."""
        self.forget_old_parameters()
        before = self.snapshot()
        file = io.BytesIO()
        torch.save(self.optimizer.state_dict(), file)
        file.seek(0)
        was = [dict(group) for group in self.groups]
        fresh_groups = [
            {
                "params": list(group["params"]),
                "topC": max(group["topC"] + more, 0) if group["topC"] else 0,
                "scope": group["scope"],
                "memory_dtype": group["memory_dtype"],
            }
            for group in self.groups
        ]
        self.optimizer = self.make(fresh_groups, {"decay": 0.123, "seed": 5})
        self.optimizer.load_state_dict(torch.load(file, weights_only=True))
        for group, fresh, old in zip(self.groups, fresh_groups, was, strict=True):
            for name in OPTIONS:
                assert group[name] == (fresh.get(name, old[name]) if name in KEPT_ON_LOAD else old[name]), name
            assert group["lr"] == old["lr"]
        self.check_base(before)
        self.conform()
        self.after_load()

    def check_base(self, before):
        """Parameters and the base's state are what they were."""
        for (_, old), (_, new) in zip(before, self.snapshot(), strict=True):
            for (i, value, state), (j, now, other) in zip(old, new, strict=True):
                assert i == j
                assert same(value, now)
                assert state.keys() == other.keys(), (i, list(state), list(other))
                for key in state:
                    if torch.is_tensor(state[key]):
                        # torch casts what is not called "step" to the parameter's dtype.
                        expected = state[key] if key == "step" else state[key].to(value.dtype)
                        assert same(expected.double(), other[key].double()), (i, key, state[key], other[key])

    @rule(how=st.sampled_from(["pickle", "deepcopy", "torch.save"]))
    def copy_everything(self, how):
        before = self.snapshot()
        both = (self.net, self.optimizer)
        states = self.optimizer.state.values()
        if any(v.dtype == torch.float8_e4m3fn for state in states for v in state.values() if torch.is_tensor(v)):
            how = "torch.save" if how == "pickle" else how  # torch itself cannot unpickle an 8-bit float (2.13)
        if how == "pickle":
            both = pickle.loads(pickle.dumps(both))
        elif how == "deepcopy":
            both = copy.deepcopy(both)
        else:
            file = io.BytesIO()
            torch.save(both, file)
            file.seek(0)
            both = torch.load(file, weights_only=False)
        self.net, self.optimizer = both
        for (_, old), (_, new) in zip(before, self.snapshot(), strict=True):
            for (_, value, state), (_, now, other) in zip(old, new, strict=True):
                assert same(value, now)
                assert state.keys() == other.keys()
                assert all(same(state[k], other[k]) for k in state if torch.is_tensor(state[k]))
        for i, p in enumerate(self.net.weights):
            held = held_by(self.optimizer, p)
            assert (held is None) == (i not in self.model)
            if held is not None:
                assert held.born == self.model[i].born
                assert same(held.slots, self.model[i].slots)


# -- helpers -----------------------------------------------------------------------------------------------------------


def clone_state(state):
    return {key: value.clone() if torch.is_tensor(value) else copy.copy(value) for key, value in state.items()}


def same(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and torch.equal(a.isnan(), b.isnan()) and torch.equal(a.nan_to_num(), b.nan_to_num())


def compare(what: str, ours: Tensor, theirs: Tensor, was: Tensor, near: list[Tensor], dtype: torch.dtype) -> None:
    """Whether ``ours`` is ``theirs`` up to rounding, from what ``was``, and to what nearby directions would have made of it."""
    ours, theirs = ours.detach().double(), theirs.double()
    off = (ours - theirs).abs()
    room = 32 * torch.finfo(dtype).eps * torch.maximum(theirs.abs(), was.double().abs())
    for other in near:
        room = room + 2 * (other.double() - theirs).abs()
    ok = (off <= room) | (ours == theirs) | (ours.isnan() & theirs.isnan()) | ~room.isfinite()
    assert bool(ok.all()), f"{what}: {ours.tolist()} is not {theirs.tolist()}, off by {off.max()} of {room.tolist()}"


def is_fast(optimizer) -> bool:
    """Whether another engine than torch's operations makes the steps."""
    return critgrad.inspect(optimizer).engine != "torch"
