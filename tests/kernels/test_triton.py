"""The Triton kernels equal the plain path: on a GPU, or without one in Triton's interpreter (TRITON_INTERPRET=1).

These run in a process of their own (``make test`` starts it), since the interpreter must be chosen before Triton is
imported. The very same tests run on a GPU.
"""

from __future__ import annotations

import copy
import io
import os
import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[1]))
from helpers import ALL_AGGREGATIONS, GradientStream, copies, memory_state, parameters, run

import critgrad
from critgrad.engines.triton.decide_kernel import KNOWN_POLICIES
from critgrad.memory.gram import pending, settle, settled

triton = pytest.importorskip("triton")
tl = pytest.importorskip("triton.language")
numbers = pytest.importorskip("critgrad.engines.triton.device_functions").numbers
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
if DEVICE == "cpu" and os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("needs a GPU, or TRITON_INTERPRET=1 in a process of its own", allow_module_level=True)


@pytest.fixture(autouse=True)
def _no_native_core(monkeypatch):
    """What is fused here is Triton's: in the interpreter tensors lie on the CPU, which has a fused path of its own."""
    monkeypatch.setenv("CRITGRAD_NATIVE", "0")


# Several chunks in the first, unaligned lengths, one value, one that is a power of two.
SHAPES = ((23, 29), (5,), (), (16, 16))

OPTIMIZERS = {
    "SGD_C": (critgrad.SGD_C, {"lr": 0.05}),
    "SGD_C momentum": (critgrad.SGD_C, {"lr": 0.02, "momentum": 0.9, "weight_decay": 0.01}),
    "SGD_C nesterov maximize": (critgrad.SGD_C, {"lr": 0.02, "momentum": 0.9, "nesterov": True, "maximize": True}),
    "RMSprop_C": (critgrad.RMSprop_C, {"lr": 0.01, "weight_decay": 0.01}),
    "RMSprop_C momentum": (critgrad.RMSprop_C, {"lr": 0.01, "momentum": 0.5}),
    "Adam_C": (critgrad.Adam_C, {"lr": 0.02, "weight_decay": 0.01}),
    "AdamW_C maximize": (critgrad.AdamW_C, {"lr": 0.02, "weight_decay": 0.1, "maximize": True}),
    "NAdam_C": (critgrad.NAdam_C, {"lr": 0.02, "weight_decay": 0.1, "decoupled_weight_decay": True, "maximize": True}),
}


def pair(cls, base_options, dtype=torch.float32, shapes=SHAPES, **options):
    """The same optimizer with and without kernels, on equal parameters."""
    ours = parameters(shapes, dtype=dtype, device=DEVICE)
    theirs = copies(ours)
    return (cls(ours, **base_options, **options), ours), (cls(theirs, **base_options, **options, fused=False), theirs)


def is_fused(optimizer) -> bool:
    return critgrad.inspect(optimizer).engine == "triton"


def compare(
    cls, base_options, steps=8, rtol=2e-5, atol=1e-5, memory_rtol=1e-5, stream=None, dtype=torch.float32, **options
):  # fmt: skip
    (fused, ours), (plain, theirs) = pair(cls, base_options, dtype=dtype, **options)
    grads = GradientStream(ours, **(stream or {}))
    run(fused, ours, grads, steps)
    run(plain, theirs, grads, steps)
    assert is_fused(fused)
    assert not is_fused(plain)
    for memory in fused._critical_memory().ready_stores:
        settle(memory)
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=rtol, atol=atol)
    for a, b in zip(memory_state(fused), memory_state(plain), strict=True):
        assert torch.equal(a["critical_born"], b["critical_born"])
        assert torch.equal(a["critical_clock"], b["critical_clock"])
        assert torch.equal(a["critical_inserted"], b["critical_inserted"])
        torch.testing.assert_close(a["critical_priority"], b["critical_priority"], rtol=1e-5, atol=0)
        if "critical_sum" in a:
            scale = 1 + b["critical_sum"].abs().max()
            torch.testing.assert_close(a["critical_sum"] / scale, b["critical_sum"] / scale, rtol=0, atol=memory_rtol)
        if "critical_gram" in a:
            scale = b["critical_gram"].abs().max().clamp(min=1e-30)  # of an empty tensor it is all zeros
            torch.testing.assert_close(a["critical_gram"] / scale, b["critical_gram"] / scale, rtol=0, atol=memory_rtol)
    return fused


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("aggr", ["mean", "fisher"])
def test_every_optimizer_equals_its_plain_path(name, aggr):
    cls, base_options = OPTIMIZERS[name]
    compare(cls, base_options, aggr=aggr, topC=3, decay=0.9)


@pytest.mark.parametrize("aggr", ALL_AGGREGATIONS)
def test_every_aggregation_with_missing_and_zero_gradients(aggr):
    # Tensors then count other steps; with NAdam they have other momenta, too, and weights decay through the gradient here.
    cls, weight_decay = (critgrad.NAdam_C, 0.01) if aggr in ("mid", "max", "fisher") else (critgrad.Adam_C, 0.0)
    fused = compare(
        cls, {"lr": 0.02, "weight_decay": weight_decay}, aggr=aggr, topC=4, decay=0.9, kappa=0.7,
        stream={"missing": 0.3, "zero": 0.2},
    )  # fmt: skip
    assert len({float(state["step"]) for state in fused.state.values()}) > 1


@pytest.mark.parametrize("policy", KNOWN_POLICIES)
@pytest.mark.parametrize("aggr", ["sum", "fisher"])
def test_every_policy(policy, aggr):
    compare(critgrad.SGD_C, {"lr": 0.02}, aggr=aggr, policy=policy, topC=3, decay=0.9, every=2, seed=2**33 + 5)


@pytest.mark.parametrize("memory_dtype", ["float32", "float16", "int8"])
def test_whole_tiles_tails_and_unaligned_tensors_damp_as_the_plain_path(memory_dtype):
    """Of 1,536 values all are in whole tiles, 1,040 have a tail, 1,033 are not aligned: each is read in its own way."""
    tolerance = {"float32": 2e-5, "float16": 1e-4, "int8": 0.02}[memory_dtype]  # a value half-way may go either way
    compare(
        critgrad.NAdam_F, {"lr": 0.02}, steps=5, shapes=((1536,), (1040,), (1033,)), topC=3, decay=0.9,
        memory_dtype=memory_dtype, rtol=tolerance, atol=tolerance, memory_rtol=tolerance,
    )  # fmt: skip


@triton.jit
def _decode(codes, values):
    i = tl.arange(0, 256)
    tl.store(values + i, numbers(tl.load(codes + i), 127.0))


def test_each_of_the_256_codes_is_decoded_exactly():
    codes = torch.arange(-128, 128, dtype=torch.int8, device=DEVICE)
    values = torch.full((256,), float("nan"), device=DEVICE)
    _decode[(1,)](codes, values, num_warps=1)
    assert torch.equal(values, codes.to(torch.float32))


@pytest.mark.parametrize("scope", ["group", "tensor"])
@pytest.mark.parametrize("policy", ["KotH", "CDS"])
def test_scopes(scope, policy):
    compare(critgrad.Adam_C, {"lr": 0.02}, scope=scope, policy=policy, topC=3, decay=0.9)


@pytest.mark.parametrize("scope", ["group", "tensor"])
@pytest.mark.parametrize("memory_dtype", ["float32", "float16", "int8"])
def test_scopes_damp(scope, memory_dtype):
    tolerance = {"float32": 2e-5, "float16": 1e-4, "int8": 0.02}[memory_dtype]  # a value half-way may go either way
    shapes = ((), (1536,), (1040,), (0,), (1033,), (5, 7))
    # Without some gradients tensors count other steps, and so do their memories.
    compare(
        critgrad.NAdam_F, {"lr": 0.02, "weight_decay": 0.01}, shapes=shapes, scope=scope, topC=3, decay=0.9, rho=0.1,
        memory_dtype=memory_dtype, stream={"missing": 0.3, "zero": 0.1}, rtol=tolerance, atol=tolerance, memory_rtol=tolerance,
    )  # fmt: skip


@pytest.mark.parametrize("policy", KNOWN_POLICIES)
def test_every_policy_damps_each_tensor_by_itself(policy):
    compare(
        critgrad.SGD_F, {"lr": 0.02, "momentum": 0.9, "nesterov": True}, scope="tensor", policy=policy, topC=5, decay=0.9,
        every=2, max_age=5, seed=2**33 + 5,
    )  # fmt: skip


@pytest.mark.parametrize("aggr", ["mean", "fisher"])
def test_max_age(aggr):
    compare(critgrad.Adam_C, {"lr": 0.02}, aggr=aggr, topC=3, decay=0.99, max_age=4)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("aggr", ["mean", "sum", "fisher"])
def test_half_parameters(dtype, aggr):
    # A rounding may go the other way in a fused expression, and half types show it: one unit in the last place a step.
    # The interpreter truncates to bfloat16 where a GPU rounds, so its errors all have one sign and add up.
    tolerance = (16 if DEVICE == "cpu" and dtype == torch.bfloat16 else 4) * torch.finfo(dtype).eps
    compare(
        critgrad.SGD_C, {"lr": 0.02, "momentum": 0.9}, dtype=dtype, aggr=aggr, topC=3, decay=0.9, memory_rtol=tolerance,
        rtol=tolerance, atol=tolerance,
    )  # fmt: skip


@pytest.mark.parametrize("memory_dtype", ["bfloat16", "float16", "int8", "float8"])
@pytest.mark.parametrize("aggr", ["mean", "max", "fisher"])
def test_small_memory(memory_dtype, aggr):
    if memory_dtype == "float8" and DEVICE == "cpu":
        (fused, ours), _ = pair(critgrad.Adam_C, {"lr": 0.02}, memory_dtype=memory_dtype)
        run(fused, ours, GradientStream(ours), 2)
        assert not is_fused(fused)  # the interpreter rounds 8-bit floats wrongly, so there they take the plain path
        return
    # A value half-way between two codes may go either way, and the interpreter truncates where a GPU rounds.
    tolerance = {"bfloat16": 2e-2 if DEVICE == "cpu" else 1e-4, "float16": 1e-4, "int8": 0.02, "float8": 0.1}[
        memory_dtype
    ]
    compare(
        critgrad.Adam_C, {"lr": 0.02}, aggr=aggr, memory_dtype=memory_dtype, topC=3, decay=0.9, steps=6, memory_rtol=tolerance,
        rtol=tolerance, atol=tolerance,
    )  # fmt: skip


@pytest.mark.parametrize("topC", [1, 2, 5, 8, 10])
def test_any_number_of_slots_damps(topC):
    """Tiles hold powers of two: alone, and one with a smaller one."""
    compare(critgrad.SGD_C, {"lr": 0.02}, aggr="fisher", topC=topC, decay=0.99, steps=topC + 3)


def with_pending(memory_dtype="bfloat16", steps=6):
    (fused, ours), _ = pair(critgrad.Adam_C, {"lr": 0.02}, aggr="fisher", memory_dtype=memory_dtype, topC=3, decay=0.5)
    run(fused, ours, GradientStream(ours), steps)
    assert is_fused(fused)
    return fused, ours, fused._critical_memory().ready_stores[0]


@pytest.mark.parametrize("memory_dtype", ["bfloat16", "int8"])
def test_the_inner_products_of_a_rounded_entry_are_found_in_the_next_step(memory_dtype):
    _, _, memory = with_pending(memory_dtype)
    waits = pending(memory.gram)[0].tolist()
    assert sum(waits) == 1
    assert memory.born[0].argmax() == waits.index(True)
    slots = torch.cat([part.block.slots.columns(0, part.length) for part in memory.parts], 1).double()
    exact = slots @ slots.T
    torch.testing.assert_close(settled(memory)[0], exact, rtol=1e-5, atol=1e-5 * float(exact.abs().max()))


def test_another_path_settles_what_is_pending():
    fused, ours, memory = with_pending()
    fused.param_groups[0]["fused"] = False
    run(fused, ours, GradientStream(ours), 1, start=6)
    assert not is_fused(fused)
    assert torch.isfinite(memory.gram).all()


def test_looking_inside_changes_nothing():
    fused, _, memory = with_pending()
    before = memory.gram.clone()
    spectrum = critgrad.inspect(fused).memories[0].spectrum
    assert len(spectrum) == 3
    assert all(value >= 0 for value in spectrum)
    assert torch.equal(memory.gram.nan_to_num(-1.0), before.nan_to_num(-1.0))


def test_a_doubtful_matrix_is_made_anew_when_it_is_loaded():
    """One entry may be pending; two cannot be, nor one whose row is only half unknown."""
    fused, ours, memory = with_pending()
    checkpoint = copy.deepcopy(fused.state_dict())
    again = critgrad.Adam_C(copies(ours), lr=0.02, aggr="fisher", memory_dtype="bfloat16", topC=3, decay=0.5)
    again.load_state_dict(checkpoint)
    assert pending(again._critical_memory().ready_stores[0].gram).sum() == 1
    for state in checkpoint["state"].values():
        state["critical_gram"] = state["critical_gram"].fill_(float("nan"))
    again.load_state_dict(checkpoint)
    torch.testing.assert_close(again._critical_memory().ready_stores[0].gram, settled(memory), rtol=1e-5, atol=1e-4)


def test_the_rolling_refresh_keeps_the_sum_of_the_slots():
    (fused, ours), _ = pair(critgrad.SGD_C, {"lr": 0.0}, topC=2, decay=0.5)
    run(fused, ours, GradientStream(ours), 36)  # once round
    for p in ours:
        state = fused.state[p]
        torch.testing.assert_close(state["critical_sum"], state["critical_slots"].sum(0), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("aggr", ["mean", "fisher"])
def test_a_bad_gradient_leaves_the_memory_as_it_was(aggr):
    (fused, ours), (plain, theirs) = pair(critgrad.Adam_C, {"lr": 0.02}, aggr=aggr, topC=3, decay=0.9)
    grads = GradientStream(ours)
    run(fused, ours, grads, 5)
    run(plain, theirs, grads, 5)
    before = memory_state(fused)
    for value in (float("nan"), float("inf")):
        for optimizer, params in ((fused, ours), (plain, theirs)):
            grads.set(params, 6)
            params[1].grad[2] = value
            optimizer.step()
        for a, b in zip(memory_state(fused), before, strict=True):
            for key in b:
                assert torch.equal(a[key], b[key]), key
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6, equal_nan=True)


@pytest.mark.parametrize("aggr", ["mean", "fisher"])
@pytest.mark.parametrize("memory_dtype", [None, "bfloat16", "int8"])
def test_resumes_bit_for_bit(aggr, memory_dtype):
    cls = critgrad.NAdam_C if memory_dtype is None else critgrad.Adam_C
    options = {"aggr": aggr, "memory_dtype": memory_dtype, "topC": 3, "decay": 0.9}
    (whole, ours), _ = pair(cls, {"lr": 0.02}, **options)
    grads = GradientStream(ours)
    run(whole, ours, grads, 5)
    kept = copies(ours)
    file = io.BytesIO()
    torch.save(whole.state_dict(), file)
    run(whole, ours, grads, 4, start=5)
    file.seek(0)
    resumed = cls(kept, lr=0.02, **options)
    resumed.load_state_dict(torch.load(file, weights_only=True))
    run(resumed, kept, grads, 4, start=5)
    assert is_fused(resumed)
    for a, b in zip(ours, kept, strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("cls", [critgrad.Adam_C, critgrad.NAdam_C])
def test_a_checkpoint_goes_on_in_the_other_path(cls):
    """From the plain path to the kernels and back: the state is the base's own."""
    (fused, ours), (plain, theirs) = pair(cls, {"lr": 0.02}, topC=3)
    grads = GradientStream(ours, missing=0.2)
    run(plain, theirs, grads, 4)
    for a, b in zip(ours, theirs, strict=True):
        a.data.copy_(b)
    fused.load_state_dict(loadable(plain, fused=None))
    run(fused, ours, grads, 4, start=4)
    assert is_fused(fused)
    back = copies(ours)
    again = cls(back, lr=0.02, topC=3)
    again.load_state_dict(loadable(fused, fused=False))
    run(again, back, grads, 4, start=8)
    assert not is_fused(again)
    run(plain, theirs, grads, 8, start=4)
    for a, b in zip(back, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=2e-5, atol=1e-5)
        mine, other = again.state[a], plain.state[b]
        assert mine.keys() == other.keys()
        for key in {"step", "mu_product"} & mine.keys():
            torch.testing.assert_close(mine[key], other[key], check_device=False, rtol=1e-6, atol=0)


def loadable(optimizer, fused):
    checkpoint = copy.deepcopy(optimizer.state_dict())
    for group in checkpoint["param_groups"]:
        group["fused"] = fused
    return checkpoint


def test_tensor_learning_rate_and_groups_without_memory():
    shapes = ((20, 20), (7,), (3, 3))

    def make(**options):
        params = parameters(shapes, dtype=torch.float32, device=DEVICE)
        groups = [
            {"params": params[:1], "lr": torch.tensor(0.03, device=DEVICE)},
            {"params": params[1:2], "topC": 0},
            {"params": params[2:], "weight_decay": 0.1, "aggr": "sum"},
        ]
        return critgrad.Adam_C(groups, lr=0.02, **options), params

    (fused, ours), (plain, theirs) = make(), make(fused=False)
    grads = GradientStream(ours)
    run(fused, ours, grads, 10)
    run(plain, theirs, grads, 10)
    assert is_fused(fused)
    assert not any(key.startswith("critical_") for key in fused.state[ours[1]])
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=2e-5, atol=1e-5)


def test_channels_last_and_strided_gradients():
    def make(**options):
        params = parameters(((8, 4, 3, 3), (6, 5)), dtype=torch.float32, device=DEVICE)
        params[0].data = params[0].data.to(memory_format=torch.channels_last)
        return critgrad.Adam_C(params, lr=0.02, topC=3, **options), params

    (fused, ours), (plain, theirs) = make(), make(fused=False)
    grads = GradientStream(ours)
    for t in range(8):
        for optimizer, params in ((fused, ours), (plain, theirs)):
            grads.set(params, t)
            params[0].grad = params[0].grad.to(memory_format=torch.channels_last) if t % 2 else params[0].grad
            params[1].grad = params[1].grad.T.contiguous().T
            optimizer.step()
    assert is_fused(fused)
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=2e-5, atol=1e-5)


ANY_GRADIENT = critgrad.Policy("mine", lambda tables: tables.g_norm > 0, lambda tables: tables.born.argmin(-1))


@pytest.mark.parametrize(
    "cls, options",
    [
        (critgrad.Adam_C, {"fused": False}),
        (critgrad.Adam_C, {"policy": ANY_GRADIENT}),
        (critgrad.NAdam_C, {"fused": False}),
    ],
    ids=["fused=False", "policy object", "NAdam fused=False"],
)
def test_what_the_kernels_do_not_know_is_left_to_another_engine_without_a_word(cls, options):
    params = parameters(dtype=torch.float32, device=DEVICE)
    optimizer = cls(params, lr=0.02, **options)
    run(optimizer, params, GradientStream(params), 3)
    assert not is_fused(optimizer)


BASES = {
    "amsgrad": lambda p, **options: critgrad.Adam_C(p, lr=0.02, amsgrad=True, **options),
    "foreach": lambda p, **options: critgrad.NAdam_C(p, lr=0.02, foreach=True, **options),
    "RAdam": lambda p, **options: critgrad.critical(torch.optim.RAdam)(p, lr=0.02, **options),
    "Adagrad": lambda p, **options: critgrad.critical(torch.optim.Adagrad)(p, lr=0.02, **options),
    "Adamax": lambda p, **options: critgrad.critical(torch.optim.Adamax)(p, lr=0.02, **options),
    "wrapped": lambda p, **options: critgrad.CriticalGradients(torch.optim.RAdam(p, lr=0.02), **options),
    "Adam_CM": lambda p, **options: critgrad.Adam_CM(p, lr=0.02, **options),
}
if hasattr(torch.optim, "Muon"):
    BASES["Muon"] = lambda p, **options: critgrad.critical(torch.optim.Muon)([q for q in p if q.dim() == 2], **options)


@pytest.mark.parametrize(
    "memory",
    [
        {"aggr": "mean", "topC": 3, "decay": 0.9},
        {"aggr": "fisher", "topC": 3, "decay": 0.99, "kappa": 0.5},
        {"aggr": "sum", "topC": 3, "scope": "tensor", "memory_dtype": "float16"},
        {"aggr": "max", "topC": 2, "policy": "CDS"},
    ],
    ids=["adding", "damping", "by tensor", "a pick"],
)
@pytest.mark.parametrize("base", BASES)
def test_any_base_steps_by_itself_on_the_kernels_directions(base, memory, monkeypatch):
    results = []
    for engine in ("triton", "torch"):
        monkeypatch.setenv("CRITGRAD_ENGINE", engine)
        params = parameters(dtype=torch.float32, device=DEVICE)
        optimizer = BASES[base](params, **memory)
        run(optimizer, params, GradientStream(params, missing=0.2, zero=0.1), 8)
        assert critgrad.inspect(optimizer).engine == engine
        results.append(params)
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b, rtol=2e-5, atol=2e-5)


def test_a_priority_given_to_the_memory_ranks_in_the_place_of_the_norm(monkeypatch):
    held = []
    for engine in ("triton", "torch"):
        monkeypatch.setenv("CRITGRAD_ENGINE", engine)
        params = parameters(dtype=torch.float32, device=DEVICE)
        memory = critgrad.Memory(params, topC=3, decay=0.9)
        stream = GradientStream(params)
        for t, priority in enumerate((3.0, 9.0, 1.0, float("nan"), -1.0, 2.0, float("inf"), 0.5, 8.0)):
            stream.set(params, t)
            memory.step([p.grad for p in params], priority=torch.tensor(priority, device=DEVICE))
        held.append(memory.state_dict()["state"][0])
    for key in ("critical_born", "critical_clock", "critical_inserted", "critical_priority", "critical_slots"):
        torch.testing.assert_close(held[0][key], held[1][key])
    assert held[0]["critical_inserted"] == 5


def test_tensors_of_several_dtypes_have_norms_of_their_own():
    params = [torch.nn.Parameter(torch.zeros(700, dtype=d, device=DEVICE)) for d in (torch.float32, torch.float16) * 2]
    optimizer = critgrad.SGD_C(params, lr=0.1, scope="tensor", topC=2)
    for size, p in enumerate(params, start=1):
        p.grad = torch.full_like(p, size)
    optimizer.step()
    assert is_fused(optimizer)
    norms = [optimizer.state[p]["critical_norm"][0].item() for p in params]
    assert norms == pytest.approx([size * 700**0.5 for size in range(1, 5)])
