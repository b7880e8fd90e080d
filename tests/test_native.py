"""The native core equals the plain path, whatever the base's options, and steps aside where it cannot be had."""

from __future__ import annotations

import copy

import pytest
import torch
from helpers import GradientStream, assert_close, assert_same_bits, memory_state, parameters, run

import critgrad
from critgrad.bases.families import family_of
from critgrad.engines import native
from critgrad.engines.native import build as compiled
from critgrad.memory import GRAM

pytestmark = pytest.mark.skipif(compiled.compiled_core() is None, reason="no C compiler")

SHAPES = ((70, 600), (5,), (), (2, 1, 3), (0, 4))
CASES = [
    ("SGD_C", {}),
    ("SGD_C", {"momentum": 0.9, "weight_decay": 0.1}),
    ("SGD_C", {"momentum": 0.9, "nesterov": True, "maximize": True}),
    ("RMSprop_C", {"weight_decay": 0.1}),
    ("RMSprop_C", {"momentum": 0.9, "maximize": True}),
    ("Adam_C", {}),
    ("Adam_C", {"weight_decay": 0.1, "maximize": True}),
    ("AdamW_C", {"weight_decay": 0.1}),
    ("NAdam_C", {"weight_decay": 0.1, "momentum_decay": 0.05}),
    ("NAdam_C", {"weight_decay": 0.1, "decoupled_weight_decay": True, "maximize": True}),
]
MEMORIES = [
    {"topC": 3, "decay": 0.9},
    {"topC": 4, "decay": 0.99, "scope": "tensor", "aggr": "mid"},
    {"topC": 4, "aggr": "sum", "kappa": 0.5, "policy": "RR", "max_age": 3},
    {"topC": 6, "decay": 0.99, "aggr": "fisher"},
    {"topC": 3, "decay": 0.99, "aggr": "fisher", "scope": "tensor", "rho": 1e-3, "kappa": 0.5},
]


def test_every_family_is_among_the_cases():
    bases = {getattr(critgrad, name)._critical_base for name, _ in CASES}
    assert {family_of(base).name for base in bases} == set(native.FAMILIES)


@pytest.fixture(autouse=True)
def _only_native(monkeypatch):
    """No other fused path, so that what is not native is plain."""
    monkeypatch.setenv("CRITGRAD_ENGINE", "native")
    monkeypatch.delenv("CRITGRAD_NATIVE", raising=False)


def optimizer(name, params, fused, **options):
    return getattr(critgrad, name)(params, lr=0.01, fused=fused, **options)


def is_native(opt) -> bool:
    return critgrad.inspect(opt).engine == "native"


@pytest.mark.parametrize("memory", MEMORIES, ids=["global", "tensor", "random", "damping", "damping by tensor"])
@pytest.mark.parametrize("name,base", CASES)
def test_native_equals_plain(name, base, memory):
    ours, theirs = (parameters(SHAPES, torch.float32) for _ in range(2))
    stream = GradientStream(ours, missing=0.2, zero=0.1)
    a, b = optimizer(name, ours, True, **base, **memory), optimizer(name, theirs, False, **base, **memory)
    run(a, ours, stream, 60)
    run(b, theirs, stream, 60)
    assert is_native(a)
    assert not is_native(b)
    # The streams' gradients reach 10, so 1e-5 is a rounding error of what was added up.
    assert_close(ours, theirs, rtol=1e-5, atol=2e-5)
    for mine, other in zip(memory_state(a), memory_state(b), strict=True):
        for key, value in mine.items():
            if key == GRAM:  # an inner product may cancel: it is exact to a share of the two lengths, not of itself
                lengths = value.diagonal(dim1=-2, dim2=-1).sqrt()
                scale = lengths[..., :, None] * lengths[..., None, :]
                assert ((value - other[key]).abs() <= 5e-7 * scale).all()
                continue
            torch.testing.assert_close(value, other[key], rtol=2e-5, atol=1e-4)


@pytest.mark.parametrize("scope", ["global", "tensor"])
@pytest.mark.parametrize("max_age", [None, 3])
@pytest.mark.parametrize("policy", ["KotH", "bottomC", "FIFO", "random", "MNDS", "RR", "NCPR", "sparse", "object"])
def test_the_decision_in_c_is_the_decision_in_torch(policy, max_age, scope):
    """Every policy it knows, and one that is an object of functions; slot by slot."""
    if policy == "object":
        policy = critgrad.Policy("mine", lambda tables: tables.t % 3 == 0, lambda tables: tables.norm.argmax(-1))
    options = {
        "policy": policy,
        "max_age": max_age,
        "scope": scope,
        "topC": 4,
        "decay": 0.9,
        "every": 3,
        "seed": 2**35 + 7,
    }
    ours, theirs = (parameters(((9, 5), (3,)), torch.float32) for _ in range(2))
    stream = GradientStream(ours, zero=0.1, bad=0.1)
    a, b = optimizer("SGD_C", ours, True, **options), optimizer("SGD_C", theirs, False, **options)
    run(a, ours, stream, 50)
    run(b, theirs, stream, 50)
    assert is_native(a)
    for mine, other in zip(memory_state(a), memory_state(b), strict=True):
        for key in ("critical_born", "critical_clock", "critical_inserted"):
            assert torch.equal(mine[key], other[key]), key
        torch.testing.assert_close(mine["critical_priority"], other["critical_priority"], rtol=1e-5, atol=0)


def test_more_than_one_group_and_a_learning_rate_that_changes():
    results = []
    for fused in (True, False):
        params = parameters(SHAPES, torch.float32)
        groups = [
            {"params": params[:2], "weight_decay": 0.1},
            {"params": params[2:4]},
            {"params": params[4:], "topC": 0},
        ]
        opt = critgrad.AdamW_C(groups, lr=0.01, fused=fused, topC=3)
        schedule = torch.optim.lr_scheduler.ExponentialLR(opt, 0.9)
        for t in range(30):
            GradientStream(params).set(params, t)
            opt.step()
            schedule.step()
        assert is_native(opt) == fused
        results.append(params)
    assert_close(*results, rtol=1e-5, atol=2e-5)


@pytest.mark.parametrize("name", ["SGD_C", "RMSprop_C"])
def test_a_momentum_that_is_turned_off_and_on_again(name):
    """With Nesterov's there is no buffer to read while it is off."""
    results = []
    for fused in (True, False):
        params = parameters(SHAPES, torch.float32)
        opt = optimizer(name, params, fused, momentum=0.9, **({"nesterov": True} if name == "SGD_C" else {}))
        for t in range(9):
            opt.param_groups[0]["momentum"] = 0.0 if 3 <= t < 6 else 0.9
            GradientStream(params).set(params, t)
            opt.step()
        assert is_native(opt) == fused
        results.append(params)
    assert_close(*results, rtol=1e-5, atol=2e-5)


@pytest.mark.parametrize(
    "name, options",
    [
        ("SGD_C", {"betas": (0.9, 0.5), "alpha": 0.5, "decoupled_weight_decay": True}),
        ("RMSprop_C", {"betas": (0.9, 0.5), "decoupled_weight_decay": True}),
        ("RMSprop_C", {"momentum": 0.9, "nesterov": True}),
        ("AdamW_C", {"momentum": 0.9, "nesterov": True, "alpha": 0.5}),
        ("NAdam_C", {"momentum": 0.9, "nesterov": True}),
    ],
)
def test_a_group_may_have_options_of_another_base_as_in_torch(name, options):
    results = []
    for fused in (True, False):
        params = parameters(SHAPES, torch.float32)
        opt = optimizer(name, [{"params": params, **options}], fused, weight_decay=0.1)
        run(opt, params, GradientStream(params), 6)
        assert is_native(opt) == fused
        results.append(params)
    assert_close(*results, rtol=1e-5, atol=2e-5)


@pytest.mark.parametrize("name", ["AdamW_C", "NAdam_F"])
def test_the_steps_of_an_empty_parameter_are_counted_as_in_torch(name):
    counted = []
    for fused in (True, False):
        params = parameters(((0, 4), (3,)), torch.float32)
        opt = optimizer(name, params, fused)
        run(opt, params, GradientStream(params), 4)
        params[0].grad = None
        opt.step()
        counted += [[opt.state[p][key] for p in params for key in ("step", "mu_product") if key in opt.state[p]]]
    assert_close(*counted, rtol=1e-6)


def test_threads_do_not_change_a_bit():
    results = []
    threads = torch.get_num_threads()
    for count in (1, 3):
        torch.set_num_threads(count)
        try:
            params = parameters(((300, 1000),), torch.float32)
            run(critgrad.Adam_C(params, fused=True), params, GradientStream(params), 6)
        finally:
            torch.set_num_threads(threads)
        results.append(params)
    assert_same_bits(*results)


@pytest.mark.parametrize("name", ["Adam_C", "NAdam_C"])
def test_resume_is_bitwise(name):
    params = parameters(SHAPES, torch.float32)
    stream = GradientStream(params, missing=0.2)
    opt = optimizer(name, params, True, topC=3)
    run(opt, params, stream, 25)
    resumed = [torch.nn.Parameter(p.detach().clone()) for p in params]
    again = optimizer(name, resumed, True, topC=3)
    again.load_state_dict(copy.deepcopy(opt.state_dict()))
    run(opt, params, stream, 20, start=25)
    run(again, resumed, stream, 20, start=25)
    assert is_native(again)
    assert_same_bits(params, resumed)


def test_nadams_counters_are_torchs_bit_for_bit_and_go_from_path_to_path():
    """Native, plain, native, each from the checkpoint before; tensors without a gradient now and then count fewer steps."""
    shapes = SHAPES[:-1]
    params, theirs = (parameters(shapes, torch.float32) for _ in range(2))
    stream = GradientStream(params, missing=0.3)
    plain = optimizer("NAdam_F", theirs, False, topC=3)
    run(plain, theirs, stream, 30)
    opt = optimizer("NAdam_F", params, None, topC=3)
    for start, fused in ((0, None), (10, False), (20, None)):
        checkpoint = copy.deepcopy(opt.state_dict())
        for group in checkpoint["param_groups"]:
            group["fused"] = fused
        opt = optimizer("NAdam_F", params, fused, topC=3)
        opt.load_state_dict(checkpoint)
        run(opt, params, stream, 10, start=start)
        assert is_native(opt) == (fused is None)
    assert_close(params, theirs, rtol=1e-5, atol=2e-5)
    for p, q in zip(params, theirs, strict=True):
        mine, other = opt.state[p], plain.state[q]
        assert mine.keys() == other.keys()
        for key in ("step", "mu_product"):
            assert mine[key].dtype == other[key].dtype == torch.float32
            assert torch.equal(mine[key], other[key])
    assert len({float(opt.state[p]["step"]) for p in params}) > 1


def test_a_checkpoint_of_torchs_nadam_goes_on_and_back():
    params = parameters(SHAPES, torch.float32)
    stream = GradientStream(params)
    base = torch.optim.NAdam(params, lr=0.01)
    run(base, params, stream, 3)
    opt = optimizer("NAdam_F", params, None, topC=3)
    opt.load_state_dict(copy.deepcopy(base.state_dict()))
    run(opt, params, stream, 4, start=3)
    assert is_native(opt)
    ours = copy.deepcopy(opt.state_dict())
    for state in ours["state"].values():
        for key in [key for key in state if key.startswith("critical_")]:
            del state[key]
    again = torch.optim.NAdam(params, lr=0.01)
    again.load_state_dict(ours)
    run(again, params, stream, 2, start=7)
    assert float(again.state[params[0]]["step"]) == 9


def test_a_bad_step_leaves_the_memory_and_moves_the_base_as_torch_would():
    params = parameters(SHAPES, torch.float32)
    stream = GradientStream(params)
    opt = optimizer("Adam_C", params, True, topC=3)
    run(opt, params, stream, 10)
    before = memory_state(opt)
    plain = [torch.nn.Parameter(p.detach().clone()) for p in params]
    base = torch.optim.Adam(plain, lr=0.01)
    for p, q in zip(params, plain, strict=True):
        theirs = ("step", "exp_avg", "exp_avg_sq")
        base.state[q] = {key: opt.state[p][key].clone() for key in theirs}
    stream.set(params, 10)
    params[0].grad[3, 3] = float("nan")
    for p, q in zip(params, plain, strict=True):
        q.grad = p.grad.clone()
    opt.step()
    base.step()
    assert_close(params, plain, rtol=1e-5, atol=1e-7)
    for was, now in zip(before, memory_state(opt), strict=True):
        assert all(torch.equal(was[key], now[key]) for key in was)


def test_gradients_are_not_written_and_parameters_count_their_versions():
    params = parameters(SHAPES, torch.float32)
    opt = optimizer("Adam_C", params, True)
    run(opt, params, GradientStream(params), 1)  # the base's own, as the memory is empty
    GradientStream(params).set(params, 1)
    grads, versions = [p.grad.clone() for p in params], [p._version for p in params]
    opt.step()
    assert_same_bits([p.grad for p in params], grads)
    assert all(p._version > version for p, version in zip(params, versions, strict=True))


@pytest.mark.parametrize("order", ["channels_last", "transposed"])
def test_other_storage_orders(order):
    results = []
    for fused in (True, False):
        params = parameters(((4, 3, 5, 5),), torch.float32)
        with torch.no_grad():
            data = params[0].to(memory_format=torch.channels_last)
            params = [torch.nn.Parameter(data if order == "channels_last" else params[0].transpose(0, 1))]
        opt = critgrad.Adam_C(params, lr=0.01, fused=fused)
        for t in range(10):
            GradientStream(params).set(params, t)  # contiguous, unlike the parameter
            opt.step()
        assert is_native(opt) == fused
        results.append(params)
    assert_close(*results, rtol=1e-5, atol=2e-5)


@pytest.mark.parametrize(
    "options",
    [
        {"fused": False},
        {"aggr": "median"},
        {"memory_dtype": "bfloat16"},
        {"policy": "CDS"},
    ],
    ids=str,
)
def test_what_it_does_not_know_is_left_to_torchs_operations(options):
    params = parameters(SHAPES, torch.float32)
    opt = critgrad.Adam_C(params, **{"fused": True, **options})
    run(opt, params, GradientStream(params), 2)
    assert not is_native(opt)


@pytest.mark.parametrize(
    "options", [{"foreach": True}, {"amsgrad": True}, {"momentum_decay": torch.tensor(4e-3)}], ids=str
)
def test_a_base_with_an_option_that_no_kernel_knows_steps_by_itself_on_the_cores_directions(options):
    cls = critgrad.NAdam_C if "momentum_decay" in options else critgrad.Adam_C
    results = []
    for environment in ("native", "torch"):
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("CRITGRAD_ENGINE", environment)
            params = parameters(SHAPES, torch.float32)
            opt = cls(params, lr=0.01, topC=3, **options)
            run(opt, params, GradientStream(params, missing=0.2), 10)
            report = critgrad.inspect(opt)
        assert report.engine == environment
        assert ("makes its own update" in report.engine_reason) == (environment == "native")
        results.append(params)
    assert_close(*results, rtol=1e-5, atol=2e-5)


def test_it_can_be_turned_off(monkeypatch):
    monkeypatch.setenv("CRITGRAD_NATIVE", "0")
    params = parameters(SHAPES, torch.float32)
    opt = critgrad.Adam_C(params, fused=True)
    run(opt, params, GradientStream(params), 2)
    assert not is_native(opt)


@pytest.mark.parametrize("fused", [None, True])
def test_it_is_chosen_by_itself(fused):
    params = parameters(SHAPES, torch.float32)
    opt = critgrad.Adam_C(params, fused=fused)
    run(opt, params, GradientStream(params), 2)
    assert is_native(opt)


@pytest.mark.parametrize("trouble", ["no compiler", "bad source", "no folder", "slow compiler"])
def test_no_library_no_word(trouble, monkeypatch, tmp_path, capfd, recwarn):
    if trouble == "no compiler":
        monkeypatch.setenv("CC", str(tmp_path / "nothing"))
    elif trouble == "bad source":
        (tmp_path / "native.c").write_text("this is not C")
        monkeypatch.setattr(compiled, "SOURCE", tmp_path / "native.c")
        monkeypatch.setenv("CRITGRAD_CACHE", str(tmp_path))
    elif trouble == "slow compiler":
        monkeypatch.setattr(compiled, "LONGEST_BUILD", 0.0)
        monkeypatch.setenv("CRITGRAD_CACHE", str(tmp_path))
    else:
        (tmp_path / "file").write_text("")
        monkeypatch.setenv("CRITGRAD_CACHE", str(tmp_path / "file"))
    compiled.compiled_core.cache_clear()
    try:
        params = parameters(SHAPES, torch.float32)
        opt = critgrad.Adam_C(params, fused=True)
        run(opt, params, GradientStream(params), 2)
        assert not is_native(opt)
    finally:
        monkeypatch.undo()
        compiled.compiled_core.cache_clear()
    assert capfd.readouterr() == ("", "")
    assert not recwarn.list
    assert not list(tmp_path.glob("critgrad/*.so"))


def test_it_is_compiled_once(monkeypatch, tmp_path):
    monkeypatch.setenv("CRITGRAD_CACHE", str(tmp_path))
    first = compiled.build()
    made = first.stat().st_mtime_ns
    assert compiled.build() == first
    assert first.stat().st_mtime_ns == made
    assert [path.name for path in first.parent.iterdir()] == [first.name]
