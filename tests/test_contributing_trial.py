"""CONTRIBUTING's recipes, followed with things that do not exist: a record in a table is enough, and engines decline."""

from __future__ import annotations

import pytest
import torch
from helpers import GradientStream, assert_close, assert_same_bits, copies, parameters
from memory_helpers import assert_directions, assert_holds, in_pieces, long_vector, vectors_at

import critgrad
from critgrad.bases import families
from critgrad.engines import native
from critgrad.engines import triton as triton_engine
from critgrad.engines.triton import launch
from critgrad.memory import aggregations, formats, options, policies
from critgrad.memory.aggregations import AGGREGATIONS, Linear, Pick
from critgrad.memory.policies import ADMISSION, POLICIES, Policy
from critgrad.reference import ReferenceMemory, uniform

SHAPES = ((3, 4), (5,), ())
DTYPES = {"torch": torch.float64, "native": torch.float32}


@pytest.fixture(params=["torch", "native"])
def engine(request, monkeypatch):
    monkeypatch.setenv("CRITGRAD_ENGINE", request.param)
    return request.param


def equals(reference, engine, steps=16, **given):
    """Drive a memory with these options beside a reference; returns the memory."""
    params = parameters(SHAPES, DTYPES[engine])
    stream = GradientStream(params, seed=5, missing=0.1, zero=0.1, bad=0.1)
    memory = critgrad.Memory(params, topC=reference.topC, decay=reference.decay, **given)
    for t in range(steps):
        vectors = vectors_at(stream, t, DTYPES[engine])
        g = long_vector(vectors, params)
        assert_directions(memory.step(vectors), in_pieces(reference.direction(g), vectors, params), DTYPES[engine])
        reference.insert(g)
        assert_holds(memory.state[params[0]], reference, DTYPES[engine])
    return memory


# -- a policy --------------------------------------------------------------------------------------------------------------


def above_the_mean_on_a_coin(tables):
    mean = tables.norm.sum(-1) / tables.live.sum(-1).clamp(min=1)
    return (tables.g_norm > mean) | (tables.draw(ADMISSION) < 0.25)


def newest(tables):
    return tables.born.argmax(-1)


class RisingReference(ReferenceMemory):
    """The same rule, naively."""

    def admits(self, g, norm):
        mean = sum(entry.norm for entry in self.live) / len(self.live)
        return norm > mean or uniform(self.seed, self.t, self.stream, 0) < 0.25

    def victim(self):
        return max(range(self.topC), key=lambda k: self.live[k].born)


@pytest.fixture
def rising(monkeypatch):
    monkeypatch.setitem(POLICIES, "rising", Policy("rising", above_the_mean_on_a_coin, newest))


@pytest.mark.parametrize("aggr", ["mean", "fisher"])
def test_a_record_of_a_policy_is_enough_for_both_engines(rising, engine, aggr):
    reference = RisingReference(topC=3, decay=0.9, aggr=aggr)
    memory = equals(reference, engine, policy="rising", aggr=aggr)
    assert critgrad.inspect(memory).engine == engine


def test_the_native_core_asks_its_functions(rising, monkeypatch):
    monkeypatch.setenv("CRITGRAD_ENGINE", "native")
    called = []
    rules = POLICIES["rising"]
    counting = Policy("rising", lambda tables: called.append(1) or rules.admit(tables), rules.evict)
    monkeypatch.setitem(POLICIES, "rising", counting)
    params = parameters(SHAPES, torch.float32)
    optimizer = critgrad.Adam_C(params, policy="rising")
    for t in range(5):
        GradientStream(params).set(params, t)
        optimizer.step()
    assert critgrad.inspect(optimizer).engine == "native"
    assert len(called) == 5


def test_a_policy_that_compares_directions_is_declined_and_right_on_torchs_operations(monkeypatch):
    def turned(tables):
        return tables.cosine() < 0

    class Turned(RisingReference):
        def admits(self, g, norm):
            total = torch.stack([entry.gradient for entry in self.live]).sum(0)
            return float(g @ total) < 0

    monkeypatch.setitem(POLICIES, "turned", Policy("turned", turned, newest, needs_cosine=True))
    monkeypatch.setenv("CRITGRAD_ENGINE", "native")
    memory = equals(Turned(topC=3, decay=0.9), "native", policy="turned")
    report = critgrad.inspect(memory)
    assert (report.engine, "policy 'turned'" in report.engine_reason) == ("torch", True)


def test_a_kernel_without_the_name_declines_the_policy(rising):
    (store,) = prepared(policy="rising")
    assert "policy 'rising'" in triton_engine.declines(store)


def test_a_checkpoint_of_it_needs_no_object(rising):
    params = parameters(SHAPES, torch.float32)
    optimizer = critgrad.SGD_C(params, lr=0.1, policy="rising")
    for t in range(5):
        GradientStream(params).set(params, t)
        optimizer.step()
    theirs = copies(params)
    other = critgrad.SGD_C(theirs, lr=0.1)
    other.load_state_dict(optimizer.state_dict())
    for t in range(5, 9):
        for mine, stepper in ((params, optimizer), (theirs, other)):
            GradientStream(mine).set(mine, t)
            stepper.step()
    assert_same_bits(params, theirs)


# -- an aggregation --------------------------------------------------------------------------------------------------------


def _root(kappa, n):
    """``(g + kappa * (sum of M) / sqrt(n)) / 2``"""
    return torch.ones_like(n) / 2, kappa / n.sqrt()


class RootReference(ReferenceMemory):
    def direction(self, g):
        if not self.live or not torch.isfinite(g).all():
            return g
        total = torch.stack([entry.gradient for entry in self.live]).sum(0)
        return (g + self.kappa * total / len(self.live) ** 0.5) / 2


class NewestReference(ReferenceMemory):
    def direction(self, g):
        if not self.live or not torch.isfinite(g).all():
            return g
        return g + self.kappa * max(self.live, key=lambda entry: entry.born).gradient


@pytest.fixture
def root(monkeypatch):
    monkeypatch.setitem(AGGREGATIONS, "root", Linear("root", _root))


@pytest.fixture
def latest(monkeypatch):
    monkeypatch.setitem(AGGREGATIONS, "latest", Pick("latest", lambda norm, born: born.argmax(-1)))


def test_a_linear_record_is_known_to_both_engines_without_another_change(root, engine):
    memory = equals(RootReference(topC=3, decay=0.9, kappa=0.6), engine, aggr="root", kappa=0.6)
    report = critgrad.inspect(memory)
    assert (report.engine, report.memories[0].aggr) == (engine, ("root",))


@pytest.mark.parametrize("make", [critgrad.Adam_C, critgrad.critical(torch.optim.RAdam)])
def test_a_linear_record_stands_before_any_base(root, make):
    params = parameters(SHAPES, torch.float32)
    theirs = copies(params)
    with_kernels, without = make(params, lr=0.01, aggr="root"), make(theirs, lr=0.01, aggr="root")
    for t in range(8):
        GradientStream(params).set(params, t)
        GradientStream(theirs).set(theirs, t)
        with_kernels.step()
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("CRITGRAD_ENGINE", "torch")
            without.step()
    engines = [critgrad.inspect(with_kernels).engine, without._critical_memory().ready_stores[0].engine.name]
    assert engines == ["native", "torch"]
    assert_close(params, theirs, rtol=1e-4, atol=1e-5)


def test_going_over_to_it_is_read_and_makes_nothing_anew(root, engine):
    params = parameters(SHAPES, torch.float32)
    optimizer = critgrad.SGD_C(params, lr=0.1)
    for t in range(6):
        optimizer.param_groups[0]["aggr"] = "root" if t > 2 else "mean"
        GradientStream(params).set(params, t)
        optimizer.step()
        if t == 2:
            stores = optimizer._critical_memory().ready_stores
    assert optimizer._critical_memory().ready_stores is stores


def test_a_pick_without_a_number_is_declined_by_kernels_and_right_on_torchs_operations(latest, engine):
    memory = equals(NewestReference(topC=3, decay=0.9, kappa=0.6), engine, aggr="latest", kappa=0.6)
    report = critgrad.inspect(memory)
    assert report.engine == "torch"
    if engine == "native":
        assert "does not take aggr='latest'" in report.engine_reason
    (store,) = prepared(aggr="latest")
    assert "aggr='latest'" in triton_engine.declines(store)
    assert "aggr='latest'" in native.declines(store)


def test_a_linear_record_is_not_declined(root):
    (store,) = prepared(aggr="root")
    assert native.declines(store) is None
    assert "aggr" not in f"{triton_engine.declines(store)}"  # here it declines the device


@pytest.mark.parametrize("name", ["root", "latest"])
def test_kappa_zero_and_an_empty_memory(root, latest, name):
    params = parameters(SHAPES)
    memory = critgrad.Memory(params, aggr=name, kappa=0.0)
    vectors = GradientStream(params).at(0)
    assert_same_bits(memory.step(vectors), vectors)
    share = {"root": 0.5, "latest": 1.0}[name]
    assert_close(memory.step(vectors), [share * v for v in vectors])


def test_an_unknown_name_is_told_as_ever(root):
    with pytest.raises(ValueError, match="Invalid aggr: 'roots', expected one of"):
        critgrad.Adam_C(parameters(SHAPES), aggr="roots")


# -- a format --------------------------------------------------------------------------------------------------------------


def test_a_record_of_a_format_is_enough(monkeypatch):
    name, format_ = "float8_e5m2", formats.Format(torch.float8_e5m2, 57344.0)
    monkeypatch.setitem(formats.FORMATS, name, format_)
    params = parameters(((300,), (7,)), torch.float32)
    memory = critgrad.Memory(params, topC=2, memory_dtype=name, aggr="sum")
    first, second = ([g.float() for g in GradientStream(params).at(t)] for t in range(2))
    memory.step(first)
    for d, g, held in zip(memory.step(second), second, first):
        assert (d - g - held).abs().max() <= held.abs().max() / 8  # two bits of mantissa
    other = critgrad.Memory(params, topC=2, memory_dtype=name, aggr="sum")
    other.load_state_dict(memory.state_dict())
    assert_same_bits(other.step(first), memory.step(first))
    assert f"slots in {name}" in critgrad.inspect(memory).engine_reason


# -- a base ----------------------------------------------------------------------------------------------------------------


def test_a_family_that_an_engine_has_no_lines_for_steps_by_itself(monkeypatch, engine):
    record = families.Family(
        "adamax", (torch.optim.Adamax,), lambda group: ("exp_avg", "exp_inf"), ("betas", "eps"), (("step", 0.0),)
    )
    params = parameters(SHAPES, torch.float32)
    theirs = copies(params)
    cls = critgrad.critical(torch.optim.Adamax)
    with_record, without = cls(params, lr=0.05, topC=3), cls(theirs, lr=0.05, topC=3)
    for t in range(6):
        GradientStream(params).set(params, t)
        GradientStream(theirs).set(theirs, t)
        with monkeypatch.context() as patch:
            patch.setattr(families, "FAMILIES", (*families.FAMILIES, record))
            with_record.step()
        without.step()
        if engine == "native" and t == 5:
            assert "Adamax makes its own update: there is no kernel" in critgrad.inspect(with_record).engine_reason
    assert_close(params, theirs, rtol=1e-5, atol=1e-6)


# -- tables that engines have of their own ----------------------------------------------------------------------------------


def test_every_name_that_an_engine_knows_is_in_the_tables():
    assert set(native._POLICIES) <= set(POLICIES)
    assert set(native.FAMILIES) == {family.name for family in families.FAMILIES}
    assert set(triton_engine.FAMILIES) == {family.name for family in families.FAMILIES}
    assert tuple(name for name, a in AGGREGATIONS.items() if isinstance(a, Linear)) == aggregations.LINEAR
    numbers = [a.number for a in AGGREGATIONS.values() if isinstance(a, Pick)]
    assert sorted(numbers) == list(range(len(numbers)))
    assert policies.POLICIES is options.OBJECTS["policy"][1]


def test_every_family_has_its_launches_on_a_gpu():
    """The interpreter has one size for all of them, so nothing that runs here would miss any."""
    for family in families.FAMILIES:
        for momentum in (0.0, 0.9):
            buffers = len(family.buffers({"momentum": momentum}))
            for size in (4, 2, 1):
                values, warps = launch.Tuning().update(True, size, family.name, buffers)
                assert values % (32 * warps) == 0


def prepared(**given):
    params = parameters(SHAPES, torch.float32)
    memory = critgrad.Memory(params, topC=3, **given)
    memory.step([torch.ones_like(p) for p in params])
    return memory.ready_stores
