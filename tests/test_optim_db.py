"""PyTorch's own database of optimizers and their arguments, run over our classes.

``torch.testing._internal.common_optimizers`` lists for every optimizer the combinations of arguments worth testing and
the ones that must raise. Each entry is taken over with our class in the place of torch's (and, where there is one, its
``_F`` twin); what torch's ``test_optim.py`` claims is then claimed of ours, with a memory that is in use.
"""

from __future__ import annotations

import copy
import io
import warnings

import pytest
import torch
from helpers import GradientStream, assert_close, assert_same_bits
from torch import nn

import critgrad

common = pytest.importorskip("torch.testing._internal.common_optimizers", reason="needs expecttest")

# Optimizer -> why it is not in the table.
NO_MEMORY = {
    "LBFGS": "it evaluates the closure several times in one step, so there is no one gradient to remember",
    "SparseAdam": "its gradients are sparse, and a memory of whole gradients is dense",
}

# (what is left out, why), for single combinations of arguments.
SKIPPED = {
    "tensor lr & foreach": "torch refuses a tensor lr with foreach=True unless capturable=True (accelerators only)",
    "tensor betas & foreach": "torch refuses tensor betas with foreach=True unless capturable=True, as above",
    "capturable": "torch supports capturable=True on accelerators only (tests/gpu covers it there)",
    "differentiable & checkpoint": "torch saves state that requires grad, and cannot step on it once it is loaded",
}


def skipped(kwargs) -> str | None:
    tensors = [name for name, value in kwargs.items() if any_tensor(value)]
    if kwargs.get("capturable"):
        return "capturable"
    if kwargs.get("foreach") and tensors:
        return "tensor lr & foreach" if "lr" in tensors else "tensor betas & foreach"
    return None


def any_tensor(value) -> bool:
    return any(torch.is_tensor(v) for v in (value if isinstance(value, (tuple, list)) else [value]))


def with_class(info, cls):
    ours = copy.copy(info)
    ours.optim_cls = cls
    return ours


TORCH = [info for info in common.optim_db if info.optim_cls.__name__ not in NO_MEMORY]
OURS = [with_class(info, critgrad.critical(info.optim_cls)) for info in TORCH]
OURS += [
    with_class(info, cls)
    for info in TORCH
    for cls in (critgrad.SGD_F, critgrad.RMSprop_F, critgrad.Adam_F, critgrad.AdamW_F, critgrad.NAdam_F)
    if cls._critical_base is info.optim_cls
]


def cases(every_loop: bool, leave_out: tuple[str, ...] = ()):
    """One case per class and combination of arguments; with ``every_loop``, per foreach, fused, differentiable too."""
    for info in OURS:
        if every_loop:
            inputs = common._get_optim_inputs_including_global_cliquey_kwargs("cpu", torch.float32, info, leave_out)
        else:
            inputs = info.optim_inputs_func("cpu")
        for i, case in enumerate(inputs):
            reason = skipped(case.kwargs)
            marks = [pytest.mark.skip(reason=f"{reason}: {SKIPPED[reason]}")] if reason else []
            name = f"{info.optim_cls.__name__}-{case.desc or i}"
            yield pytest.param(info.optim_cls, case.kwargs, id=name, marks=marks)


def start(kwargs, dtype=torch.float32):
    """Two matrices (Muon takes nothing else); clones of leaves where autograd is to follow the step."""
    generator = torch.Generator().manual_seed(0)
    values = [torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype) for shape in ((3, 4), (5, 2))]
    if kwargs.get("differentiable"):
        return [v.requires_grad_().clone() for v in values]
    return [nn.Parameter(v) for v in values]


def trained(cls, kwargs, steps=4, params=None, begin=0, **ours):
    params = start(kwargs) if params is None else params
    optimizer = cls(params, **fresh(kwargs), **ours)
    drive(optimizer, params, steps, begin)
    return params, optimizer


def fresh(kwargs):
    """Arguments that no two optimizers share: some bases write into a tensor lr's group."""
    return {name: value.clone() if torch.is_tensor(value) else value for name, value in kwargs.items()}


def drive(optimizer, params, steps, begin=0):
    stream = GradientStream(params)
    for t in range(begin, begin + steps):
        stream.set(params, t)
        optimizer.step()


def test_every_optimizer_of_torch_is_in_the_table_or_has_a_reason():
    names = {info.optim_cls.__name__ for info in common.optim_db}
    assert names - {info.optim_cls.__name__ for info in TORCH} == set(NO_MEMORY)
    for name in NO_MEMORY:
        with pytest.raises(TypeError, match="cannot have a memory"):
            critgrad.critical(getattr(torch.optim, name))
    public = {name for name, value in vars(torch.optim).items() if isinstance(value, type)} - {"Optimizer"}
    assert public <= names


@pytest.mark.parametrize("cls, kwargs", cases(every_loop=True))
def test_topC_0_is_the_base_bit_for_bit(cls, kwargs):
    ours, _ = trained(cls, kwargs, topC=0)
    theirs, _ = trained(cls._critical_base, kwargs)
    assert_same_bits(ours, theirs)


@pytest.mark.parametrize("cls, kwargs", cases(every_loop=False))
def test_a_memory_in_use_changes_the_run_and_stays_finite(cls, kwargs):
    ours, optimizer = trained(cls, kwargs, topC=2)
    theirs, _ = trained(cls._critical_base, kwargs)
    assert critgrad.inspect(optimizer).memories[0].live == 2
    assert all(p.isfinite().all() for p in ours)
    assert any(not torch.equal(p, q) for p, q in zip(ours, theirs))


@pytest.mark.parametrize("cls, kwargs", cases(every_loop=False))
def test_the_loops_of_the_base_agree(cls, kwargs):
    """for-loop == foreach == fused, each with a memory in front, bases without one of them left out."""
    info = next(info for info in OURS if info.optim_cls is cls)
    flags = [{"foreach": False}] if "foreach" in info.supported_impls else [{}]
    if "foreach" in info.supported_impls and not any_tensors(kwargs):
        flags.append({"foreach": True})
    if "fused" in info.supported_impls and "cpu" in info.supports_fused_on:
        flags.append({"fused": True})
    runs = [trained(cls, {**kwargs, **flag}, topC=3, steps=8)[0] for flag in flags]
    for other in runs[1:]:
        assert_close(other, runs[0], rtol=1e-4, atol=1e-5)


def any_tensors(kwargs):
    return any(any_tensor(value) for value in kwargs.values())


@pytest.mark.parametrize("cls, kwargs", cases(every_loop=True, leave_out=("differentiable",)))
def test_state_dict_round_trip_continues_bit_for_bit(cls, kwargs):
    params, optimizer = trained(cls, kwargs, topC=2, steps=4)
    file = io.BytesIO()
    torch.save(optimizer.state_dict(), file)
    file.seek(0)
    ours = [nn.Parameter(p.detach().clone()) for p in params]
    again = cls(ours, **fresh(kwargs), topC=2)
    again.load_state_dict(torch.load(file, weights_only=True))
    drive(again, ours, 4, begin=4)
    drive(optimizer, params, 4, begin=4)
    assert_same_bits(ours, params)


@pytest.mark.parametrize("cls, kwargs", cases(every_loop=False))
def test_a_deep_copy_continues_bit_for_bit(cls, kwargs):
    params, optimizer = trained(cls, kwargs, topC=2, steps=4)
    twins, twin = copy.deepcopy((params, optimizer))
    drive(twin, twins, 3, begin=4)
    drive(optimizer, params, 3, begin=4)
    assert_same_bits(twins, params)


def error_cases():
    for info in OURS:
        for i, case in enumerate(info.optim_error_inputs_func("cpu", torch.float32)):
            name = f"{info.optim_cls.__name__}-{case.optimizer_error_input.desc or i}"
            yield pytest.param(info.optim_cls, case, id=name)


@pytest.mark.parametrize("cls, case", error_cases())
def test_wrong_arguments_raise_what_the_base_raises(cls, case):
    given = case.optimizer_error_input
    params = [nn.Parameter(torch.ones(1, 1))] if given.params is None else given.params
    if case.error_on == common.OptimizerErrorEnum.CONSTRUCTION_ERROR:
        if issubclass(case.error_type, Warning):
            with pytest.warns(case.error_type, match=case.error_regex):
                cls(params, **given.kwargs)
            return
        with pytest.raises(case.error_type, match=case.error_regex):
            cls(params, **given.kwargs)
        return
    optimizer = cls(params, **given.kwargs)
    with pytest.raises(case.error_type, match=case.error_regex):
        optimizer.step()


@pytest.mark.parametrize("info", OURS, ids=lambda info: info.optim_cls.__name__)
def test_complex_parameters_where_the_base_takes_them(info):
    if not info.supports_complex:
        pytest.skip(f"{info.optim_cls._critical_base.__name__} supports no complex parameters")
    generator = torch.Generator().manual_seed(0)
    weight = nn.Parameter(torch.randn(3, 2, dtype=torch.complex128, generator=generator))
    plain = nn.Parameter(weight.detach().clone())
    ours, theirs = info.optim_cls([weight], kappa=0.0), info.optim_cls._critical_base([plain])
    for _ in range(4):
        weight.grad = torch.randn(3, 2, dtype=torch.complex128, generator=generator)
        plain.grad = weight.grad.clone()
        ours.step()
        theirs.step()
    assert_close([torch.view_as_real(weight.detach())], [torch.view_as_real(plain.detach())])
    assert critgrad.inspect(ours).memories[0].live == 4


@pytest.mark.parametrize("info", OURS, ids=lambda info: info.optim_cls.__name__)
def test_named_parameters_and_groups_of_their_own(info):
    if not info.supports_param_groups:
        pytest.skip("the base takes no groups")
    a, b = start({})
    optimizer = info.optim_cls([{"params": [("a", a)]}, {"params": [("b", b)], "lr": 0.02}], lr=0.01)
    drive(optimizer, [a, b], 4)
    saved = optimizer.state_dict()
    assert [group["param_names"] for group in saved["param_groups"]] == [["a"], ["b"]]
    optimizer.load_state_dict(saved)
    drive(optimizer, [a, b], 2, begin=4)
    assert critgrad.inspect(optimizer).memories[0].steps == 6


@pytest.mark.parametrize("info", OURS, ids=lambda info: info.optim_cls.__name__)
def test_the_databases_schedulers_run_on_ours(info):
    for makers in info.scheduler_inputs:
        params = start({})
        optimizer = info.optim_cls(params, lr=0.01)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            schedulers = [make(optimizer) for make in makers]
        for t in range(4):
            drive(optimizer, params, 1, begin=t)
            for scheduler in schedulers:
                plateau = isinstance(scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau)
                scheduler.step(1.0) if plateau else scheduler.step()
        assert all(p.isfinite().all() for p in params)
