"""The variants of damping: each is what its formula says, and with all options at their defaults nothing has changed."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from bank_problem import assert_same, trial
from test_bank import _Ops, bank_of
from variant_reference import Reference, dense_power

from critgrad.lab.run.spec import Trial
from critgrad.lab.train import loop as single
from critgrad.lab.train.bank import bank_groups, run_bank
from critgrad.lab.train.bank.roots import redundancy, root_weights, square_root
from critgrad.lab.train.optimizers import OPTIMIZERS, RESEARCH, build
from critgrad.lab.train.variants import CHOICES, Variant

ONE_EPOCH = {"epochs": 1}
LR = {"SGD": 0.05, "SGDM": 0.03, "Nesterov": 0.03, "Adam": 0.01, "NAdam": 0.01, "AdamW": 0.01, "Lion": 0.003}
STEPS = 30

CASES = [
    *[
        ("Adam_X", {name: value})
        for name, choice in CHOICES.items()
        for value in list(choice.values)[1:]
        if name != "select"
    ],
    *[("Nesterov_X", {"apply": place, "power": power}) for place in ("momentum", "update") for power in (0.5, 1.0)],
    *[("NAdam_X", {"apply": place, "metric": "adam"}) for place in ("gradient", "momentum", "update")],
    *[("Lion_X", {"apply": place}) for place in ("gradient", "momentum", "update")],
    *[("Adam_X", {"apply": place, "metric": "adam", "power": 0.5, "rho": 0.01}) for place in ("momentum", "update")],
    ("SGDM_X", {"blocks": "tensors", "select": "block", "topC": 4}),
    (
        "SGDM_X",
        {"blocks": "layers", "select": "block", "evict": "redundant", "topC": 3, "rho_rule": "noise", "rho": 1.0},
    ),
    ("SGD_X", {"evict": "redundant", "policy": "sparse", "every": 3, "topC": 4}),
    ("SGD_X", {"evict": "redundant", "blocks": "tensors", "topC": 4, "decay": 0.9}),
    ("Adam_X", {"evict": "redundant", "topC": 3, "before_clip": True, "blocks": "layers", "apply": "update"}),
    ("Nesterov_X", {"rho": 1e-5, "power": 0.5}),
]


def case(name: str, options: dict, seed: int = 0) -> Trial:
    return trial(name, seed=seed, settings={"clip": 0.8, "epochs": 2}, lr=LR[name.removesuffix("_X")], **options)


@pytest.mark.parametrize(
    "name, options", CASES, ids=lambda value: value if isinstance(value, str) else "-".join(map(str, value.values()))
)
def test_a_variant_is_its_formula(name, options):
    one = case(name, options)
    bank = bank_of([one])
    for _ in range(STEPS):
        bank.step()
    torch.testing.assert_close(bank.theta[0], Reference(one).run(STEPS), rtol=1e-8, atol=1e-8)


def test_all_variants_sit_in_one_bank():
    trials = [case(name, options, seed=i % 3) for i, (name, options) in enumerate(CASES)]
    trials += [
        trial("Adam", lr=0.01, settings=trials[0].settings),
        trial("SGD_C", lr=0.03, settings=trials[0].settings),
    ]
    bank = bank_of(trials)
    alone = [bank_of([one]) for one in trials]
    for _ in range(12):
        bank.step()
        for other in alone:
            other.step()
    for one, other in zip(bank.crew.place, alone):
        torch.testing.assert_close(bank.theta[one], other.theta[0], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_with_every_option_at_its_default_a_variant_is_the_librarys_damping_bit_for_bit(dtype):
    names = [name.removesuffix("_X") for name, recipe in RESEARCH.items() if recipe.role == "X"]
    explicit = {name: choice.default for name, choice in CHOICES.items()}
    settings = {"epochs": 1, "clip": 0.8, "weight_decay": 0.01}
    twins = [
        [
            trial(name + role, lr=LR[name], topC=topC, policy=policy, settings=settings, **extra)
            for role, extra in (("_F", {}), ("_X", explicit))
        ]
        for name in names
        for topC, policy in ((4, "KotH"), (7, "CDS"))
    ]
    results = run_bank([one for pair in twins for one in pair], dtype=dtype)
    for (plain, varied), (one, _) in zip(zip(results[::2], results[1::2]), twins):
        for curve, values in plain.curves.items():
            np.testing.assert_array_equal(values, varied.curves[curve], err_msg=one.optimizer)


@pytest.mark.parametrize("policy", ["KotH", "random", "sparse"])
def test_tensors_that_select_for_themselves_are_the_librarys_scope_tensor(policy):
    shared = {"lr": 0.03, "topC": 3, "decay": 0.9, "policy": policy, "settings": ONE_EPOCH}
    ours = run_bank([trial("SGDM_X", blocks="tensors", select="block", **shared)])[0]
    library = single.train(trial("SGDM_F", scope="tensor", **shared).replace(engine="single"))
    assert_same(ours, library)
    assert_same(run_bank([trial("SGDM_F", scope="tensor", **shared)])[0], ours)


@pytest.mark.parametrize("name", ["Lion", "Lion_F", "NAdam_F"])
def test_research_bases_are_the_same_in_both_engines(name):
    one = trial(name, lr=0.003, weight_decay=0.01 if name == "Lion" else 0.0, settings=ONE_EPOCH)
    assert_same(run_bank([one])[0], single.train(one.replace(engine="single")))


def test_in_adams_metric_damping_the_update_is_damping_the_momentum():
    options = {"metric": "adam", "lr": 0.01, "settings": ONE_EPOCH}
    m, u, plain = (
        r.curves["train_loss"]
        for r in run_bank([trial("Adam_X", apply=place, **options) for place in ("momentum", "update", "gradient")])
    )
    np.testing.assert_allclose(m, u, rtol=1e-9)
    assert abs(m - plain).max() > 1e-6


def test_before_clip_changes_nothing_where_nothing_is_clipped():
    a, b = run_bank([trial("Adam_X", lr=0.01, before_clip=flag, settings=ONE_EPOCH) for flag in (False, True)])
    np.testing.assert_array_equal(a.curves["train_loss"], b.curves["train_loss"])


def test_a_step_of_variants_never_waits_for_the_device_and_leaves_tensors_in_place(monkeypatch):
    trials = [case(name, options) for name, options in CASES]
    bank = bank_of(trials)
    tables = [
        tensor for block in bank.blocks for tensor in vars(block.memories).values() if isinstance(tensor, torch.Tensor)
    ]
    places = [tensor.data_ptr() for tensor in tables]

    def waits(*args):
        raise AssertionError("a value was looked at on the host")

    for name in ("tolist", "numpy", "cpu"):
        monkeypatch.setattr(torch.Tensor, name, waits)
    with _Ops() as ops:
        bank.step()
        bank.step()
    # Those that check on the host, or allocate in a way that a CUDA graph forbids, too.
    forbidden = {"_local_scalar_dense", "nonzero", "equal", "is_nonzero", "masked_select", "unique", "item"}
    forbidden |= {
        "_linalg_eigh",
        "linalg_eigh",
        "linalg_inv",
        "linalg_inv_ex",
        "cholesky_solve",
        "_linalg_svd",
        "linalg_cholesky",
    }
    assert not forbidden & set(ops.names)
    assert "linalg_cholesky_ex" in ops.names
    now = [
        tensor for block in bank.blocks for tensor in vars(block.memories).values() if isinstance(tensor, torch.Tensor)
    ]
    assert [tensor.data_ptr() for tensor in now] == places


def test_a_gradient_that_is_not_finite_leaves_the_memory_as_it_was():
    for options in (
        {"rho_rule": "noise"},
        {"blocks": "layers", "select": "block"},
        {"metric": "adam", "evict": "redundant"},
    ):
        bank = bank_of([trial("Adam_X", lr=0.01, topC=3, **options)])
        for _ in range(5):
            bank.step()
        memories = bank.blocks[0].memories
        before = {name: value.clone() for name, value in vars(memories).items() if isinstance(value, torch.Tensor)}
        g = torch.full_like(bank.theta, torch.inf)
        memories.look(g)
        memories.insert(g, bank.number)
        for name in ("slots", "priority", "born", "clock", *(("mean", "weight") if "rho_rule" in options else ())):
            assert torch.equal(getattr(memories, name), before[name]), name


# -- small matrices ----------------------------------------------------------------------------------------------------


def grams(rows: int = 5, C: int = 6, d: int = 40) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    scales = 10.0 ** torch.linspace(-3, 3, C)
    G = torch.randn(rows, C, d, generator=generator) * scales[:, None]
    G[0, 1:] = 0  # one entry
    G[1, 3] = G[1, 2]  # two that are the same
    return G, G @ G.mT


def test_roots_without_eigenvectors_agree_with_those():
    _, K = grams()
    trace = K.diagonal(dim1=-2, dim2=-1).sum(-1)[:, None, None]
    for rho in (1e-6, 1e-3, 0.3, 10.0):
        matrix = (K / trace + rho * torch.eye(6)) / (1 + rho)
        values, vectors = torch.linalg.eigh(matrix)
        root = vectors @ torch.diag_embed(values.clamp(min=0).sqrt()) @ vectors.mT
        torch.testing.assert_close(square_root(matrix), root, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("rho", [1e-5, 0.03, 3.0])
def test_root_weights_are_the_dense_inverse_root(rho):
    G, K = grams()
    x = torch.randn(5, 40, generator=torch.Generator().manual_seed(2))
    w = root_weights(K, (G @ x[..., None]).squeeze(-1), rho, 1.0, torch.ones(5, dtype=torch.bool))
    for i in range(5):
        M = torch.eye(40) + G[i].T @ G[i] / (rho * G[i].square().sum())
        torch.testing.assert_close(x[i] - G[i].T @ w[i], dense_power(M, -0.5) @ x[i], rtol=1e-7, atol=1e-8)
    unused = root_weights(K, (G @ x[..., None]).squeeze(-1), rho, 1.0, torch.zeros(5, dtype=torch.bool))
    assert not unused.any()


def test_the_most_redundant_entries_are_those_that_are_there_twice():
    _, K = grams()
    live = torch.ones(5, 6, dtype=torch.bool)
    live[0, 1:] = False
    share = redundancy(K, live)
    assert share[1, 2] == share[1, 3] == 1.0
    assert share[0].tolist() == [0.0, -1.0, -1.0, -1.0, -1.0, -1.0]
    assert (share[2:] < 1).all()


# -- what is refused ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name, recipe in RESEARCH.items() if recipe.role == "X"])
def test_the_single_engine_refuses_variants_with_a_cure(name):
    with pytest.raises(ValueError, match=f"{name} is a variant that is being tried; use critgrad search"):
        single.train(trial(name, lr=0.1).replace(engine="single"))
    with pytest.raises(ValueError, match="critgrad search"):
        build(trial(name, lr=0.1), [torch.nn.Parameter(torch.zeros(1))])
    assert name not in OPTIMIZERS


@pytest.mark.parametrize(
    "name, hyper, message",
    [
        ("Adam_X", {"power": 2.0}, "Invalid power: 2.0, expected one of 1.0, 0.5"),
        ("Adam_X", {"before_clip": 1}, "Invalid before_clip: 1, expected one of False, True"),
        ("Adam_X", {"apply": "weights"}, "Invalid apply: 'weights'"),
        ("Adam_X", {"select": "block"}, "Invalid select: .block. with one block"),
        ("Nesterov_X", {"metric": "adam"}, "Invalid metric of Nesterov_X.*keeps no second moment"),
        ("SGD_X", {"apply": "momentum"}, "Invalid apply of SGD_X.*has no momentum"),
        ("Adam_X", {"aggr": "mean"}, "Invalid aggr of Adam_X"),
        ("Adam_X", {"donor_seed": 1}, "Invalid donor_seed of Adam_X"),
        ("Adam_X", {"metric": "adam", "policy": "CDS"}, "Invalid policy of Adam_X"),
        ("Adam_X", {"power": 0.5, "rho": 1e-9}, "Invalid rho of Adam_X"),
        ("Adam_X", {"powre": 0.5}, "powre"),
    ],
)
def test_what_makes_no_sense_is_refused(name, hyper, message):
    with pytest.raises((ValueError, TypeError), match=message):
        run_bank([trial(name, lr=0.01, **hyper)])


def test_a_probe_without_a_meaning_is_refused():
    with pytest.raises(ValueError, match="Invalid probe of Adam_X: 'damping'"):
        run_bank([trial("Adam_X", lr=0.01, probe=("damping",))])
    run_bank([trial("Adam_X", lr=0.01, probe=("memory", "decisions", "update"), settings=ONE_EPOCH)])


def test_groups_keep_variants_together():
    trials = [case(name, options, seed=seed) for seed in range(3) for name, options in CASES[:4]]
    assert [len({Variant.of(t.hyper) for t in group}) for group in bank_groups(trials, 3)] == [1, 1, 1, 1]


def test_every_option_makes_a_difference():
    bank = bank_of([case(name, options) for name, options in CASES] + [case(name, {}) for name, _ in CASES])
    for _ in range(STEPS):
        bank.step()
    theta = bank.theta[bank.crew.place]
    for (name, options), varied, plain in zip(CASES, theta[: len(CASES)], theta[len(CASES) :]):
        same = options in ({"apply": "gradient"}, {"blocks": "kinds"})  # the tiny net has dense layers only
        assert ((varied - plain).abs().max() < 1e-6) == same, (name, options)
