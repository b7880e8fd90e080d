"""The rivals: each equals a known optimizer, or its equations written out, in a setting where it must."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import critgrad
from critgrad.lab.errors import MissingPackageError
from critgrad.lab.run.spec import Trial
from critgrad.lab.study.optimizers import maker_of
from critgrad.lab.train import family
from critgrad.lab.train.bases import Lion, Muon
from critgrad.lab.train.loop import train
from critgrad.lab.train.optimizers import TRAINED, settled

STEPS = 12
LR, BETAS, DECAY, EPS = 0.03, (0.9, 0.99), 0.1, 1e-12

FAMILY = (
    *("AdamW", "NesterovAdamW", "NAdamW", "AdamW_C", "AdamW_F", "Adam_CM", "AdEMAMix", "MARS", "Cautious", "GrokFast"),
    *("AggMo", "Lion", "AdamWScheduleFree", "Muon", "Muon_F"),
)


def gradients(shapes, steps=STEPS, size=0.1):
    generator = torch.Generator().manual_seed(3)
    return [
        [size * torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes] for _ in range(steps)
    ]


def parameters(shapes):
    generator = torch.Generator().manual_seed(4)
    return [nn.Parameter(torch.randn(shape, generator=generator, dtype=torch.float64)) for shape in shapes]


def walked(make, shapes=((4, 3), (5,)), grads=None):
    """The parameters after each step of an optimizer that is handed the same gradients."""
    params = parameters(shapes)
    optimizer = make(params)
    if hasattr(optimizer, "train"):
        optimizer.train()
    seen = []
    for step in gradients(shapes) if grads is None else grads:
        for p, g in zip(params, step):
            p.grad = g.clone()
        optimizer.step()
        seen.append(torch.cat([p.detach().flatten() for p in params]))
    return torch.stack(seen)


def of(name, **hyper):
    return lambda params: settled(TRAINED[name], {"lr": LR, **hyper}, params)


class ScheduleFree:
    """``z`` takes Adam's steps without momentum, ``x`` is the mean of all ``z``, gradients are those of the point between."""

    def __init__(self, params, lr, beta1, beta2, eps, decay):
        self.params, self.lr, self.beta1, self.beta2, self.eps, self.steps = params, lr, beta1, beta2, eps, 0
        self.decay = decay
        self.z, self.x = ([p.detach().clone() for p in params] for _ in range(2))
        self.v = [torch.zeros_like(p) for p in params]

    @torch.no_grad()
    def step(self):
        self.steps += 1
        for p, z, x, v in zip(self.params, self.z, self.x, self.v):
            v.lerp_(p.grad.square(), 1 - self.beta2)
            size = (v / (1 - self.beta2**self.steps)).sqrt() + self.eps
            z.sub_(self.lr * (p.grad / size + self.decay * p))  # of the point where the gradient was taken
            x.lerp_(z, 1 / self.steps)
            p.copy_(z.lerp(x, self.beta1))


class Damped(Muon):
    """Muon whose gradients have been through a damping memory."""

    def __init__(self, params, **options):
        super().__init__(params, lr=LR)
        self.damped, self.memory = params, critgrad.Memory(params, aggr="fisher", **options)

    def step(self, closure=None):
        for p, d in zip(self.damped, self.memory.step([p.grad for p in self.damped])):
            p.grad = d
        super().step(closure)


ADAMW = {"betas": BETAS, "weight_decay": DECAY, "eps": EPS}

# arm and options -> the known optimizer that it then is
REDUCTIONS = {
    "AdamW_C without a memory": (of("AdamW_C", topC=0, **ADAMW), of("AdamW", **ADAMW)),
    "AdamW_F without a memory": (of("AdamW_F", topC=0, **ADAMW), of("AdamW", **ADAMW)),
    "AdamW_F by tensor without a memory": (of("AdamW_F", topC=0, scope="tensor", **ADAMW), of("AdamW", **ADAMW)),
    "AdEMAMix without its slow average": (
        of("AdEMAMix", alpha=0.0, betas=(*BETAS, 0.999), weight_decay=DECAY, eps=EPS),
        of("AdamW", **ADAMW),
    ),
    "AdEMAMix, scheduled, without its slow average": (
        of("AdEMAMix", alpha=0.0, t_alpha_beta3=7.0, betas=(*BETAS, 0.999), weight_decay=DECAY, eps=EPS),
        of("AdamW", **ADAMW),
    ),
    "MARS without its correction": (of("MARS", gamma=0.0, **ADAMW), of("AdamW", **ADAMW)),
    "MARS without it, vectors by AdamW": (
        lambda params: family.mars(params, lr=LR, gamma=0.0, optimize_1d=False, eps=EPS, betas=(0.9, 0.95)),
        lambda params: torch.optim.AdamW(params, lr=LR, betas=(0.9, 0.95), eps=EPS, weight_decay=0.0),
    ),
    "GrokFast that adds nothing": (of("GrokFast", lamb=0.0, **ADAMW), of("AdamW", **ADAMW)),
    "NAdamW without momentum": (
        of("NAdamW", betas=(0.0, 0.99), weight_decay=DECAY, eps=EPS),
        of("AdamW", betas=(0.0, 0.99), weight_decay=DECAY, eps=EPS),
    ),
    "Nesterov's AdamW without momentum": (
        of("NesterovAdamW", betas=(0.0, 0.99), weight_decay=DECAY, eps=EPS),
        of("AdamW", betas=(0.0, 0.99), weight_decay=DECAY, eps=EPS),
    ),
    "Adam_CM without memory and momentum": (
        of("Adam_CM", topC=0, betas=(0.0, 0.99), weight_decay=DECAY, eps=EPS),
        of("AdamW", betas=(0.0, 0.99), weight_decay=DECAY, eps=EPS),
    ),
    "AggMo with one decay": (of("AggMo", betas=(0.9,)), of("SGDM")),
    "schedule-free by its paper's equations, constant rate": (
        lambda params: ScheduleFree(params, LR, *BETAS, EPS, DECAY),
        of("AdamWScheduleFree", **ADAMW),
    ),
    "Muon without a memory": (of("Muon_F", topC=0), of("Muon")),
    "Muon_F is Muon of damped gradients": (
        of("Muon_F", topC=3, decay=0.9, rho=0.3),
        lambda params: Damped(params, topC=3, decay=0.9, rho=0.3),
    ),
    "Muon's vectors": (
        lambda params: Muon([{"params": params, "embedding": True}], lr=LR, betas=BETAS, eps=EPS),
        lambda params: torch.optim.Adam(params, lr=LR, betas=BETAS, eps=EPS),
    ),
}


@pytest.mark.parametrize("arms", REDUCTIONS.values(), ids=list(REDUCTIONS))
def test_an_arm_is_a_known_optimizer_where_it_must_be(arms):
    pytest.importorskip("pytorch_optimizer")
    pytest.importorskip("schedulefree")
    mine, known = (walked(make) for make in arms)
    torch.testing.assert_close(mine, known, rtol=2e-5, atol=1e-6)  # steps that a capture counts are float32
    assert not torch.equal(mine[0], mine[-1])


def equations(move, grads, shapes=((4, 3), (5,))):
    """Parameters after each step of one tensor's equations: ``move(p, g, state, t)`` returns the new ``p``."""
    params = [p.detach().clone() for p in parameters(shapes)]
    states = [{} for _ in params]
    seen = []
    for t, step in enumerate(grads, 1):
        params = [move(p, g, state, t) for p, g, state in zip(params, step, states)]
        seen.append(torch.cat([p.flatten() for p in params]))
    return torch.stack(seen)


def averages(g, state, b1=BETAS[0], b2=BETAS[1], of_v=None):
    of_v = g if of_v is None else of_v
    state["m"] = b1 * state.get("m", 0.0) + (1 - b1) * g
    state["v"] = b2 * state.get("v", 0.0) + (1 - b2) * of_v**2
    return state["m"], state["v"]


def nesterov(p, g, state, t):
    b1, b2 = BETAS
    m, v = averages(g, state)
    top = b1 * m / (1 - b1 ** (t + 1)) + (1 - b1) * g / (1 - b1**t)
    return p * (1 - LR * DECAY) - LR * top / ((v / (1 - b2**t)).sqrt() + EPS)


def nadam(p, g, state, t):
    """Dozat's ``mu``, which grows with the steps."""
    b1, b2 = BETAS
    m, v = averages(g, state)
    mu, ahead = (b1 * (1 - 0.5 * 0.96 ** (k * 0.004)) for k in (t, t + 1))
    state["product"] = state.get("product", 1.0) * mu
    top = ahead * m / (1 - state["product"] * ahead) + (1 - mu) * g / (1 - state["product"])
    return p * (1 - LR * DECAY) - LR * top / ((v / (1 - b2**t)).sqrt() + EPS)


def mixed(alpha, b3, t_max=None):
    def move(p, g, state, t):
        b1, b2 = BETAS
        a, slow_beta = alpha, b3
        if t_max is not None:  # the paper's equations: alpha linear, the half-life of the slow average linear
            a = min(alpha, alpha * t / t_max)
            logs = torch.tensor([b1, b3], dtype=torch.float64).log()
            slow = logs[0] * logs[1] / ((1 - t / t_max) * logs[1] + t / t_max * logs[0])
            slow_beta = min(float(slow.exp()), b3)
        m, v = averages(g, state)
        state["slow"] = slow_beta * state.get("slow", 0.0) + (1 - slow_beta) * g
        top = m / (1 - b1**t) + a * state["slow"]
        return p * (1 - LR * DECAY) - LR * top / ((v / (1 - b2**t)).sqrt() + EPS)

    return move


def corrected(gamma):
    def move(p, g, state, t):
        b1, b2 = BETAS
        c = g + gamma * b1 / (1 - b1) * (g - state.get("last", torch.zeros_like(g)))
        c = c / max(1.0, float(c.norm()))
        state["last"] = g
        m, v = averages(c, state)
        return p * (1 - LR * DECAY) - LR * m / (1 - b1**t) / ((v / (1 - b2**t)).sqrt() + EPS)

    return move


def agreeing(p, g, state, t):
    b1, b2 = BETAS
    m, v = averages(g, state)
    mask = (m * g > 0).double()
    mask = mask * mask.numel() / (mask.sum() + 1)
    return p * (1 - LR * DECAY) - LR * mask * m / (1 - b1**t) / ((v / (1 - b2**t)).sqrt() + EPS)


def amplified(lamb, alpha):
    def move(p, g, state, t):
        b1, b2 = BETAS
        state["slow"] = alpha * state.get("slow", g) + (1 - alpha) * g
        m, v = averages(g + lamb * state["slow"], state)
        return p * (1 - LR * DECAY) - LR * m / (1 - b1**t) / ((v / (1 - b2**t)).sqrt() + EPS)

    return move


def of_the_momentum(p, g, state, t):
    b1, b2 = BETAS
    state["m"] = b1 * state.get("m", 0.0) + (1 - b1) * g
    state["v"] = b2 * state.get("v", 0.0) + (1 - b2) * state["m"] ** 2
    return p * (1 - LR * DECAY) - LR * state["m"] / (1 - b1**t) / ((state["v"] / (1 - b2**t)).sqrt() + EPS)


def sign(p, g, state, t):
    m = state.get("m", torch.zeros_like(g))
    step = (BETAS[0] * m + (1 - BETAS[0]) * g).sign()
    state["m"] = BETAS[1] * m + (1 - BETAS[1]) * g
    return p * (1 - LR * DECAY) - LR * step


def aggregated(p, g, state, t):
    velocities = {b: b * state.get(b, torch.zeros_like(g)) + g for b in (0.0, 0.9, 0.99)}
    state.update(velocities)
    return p - LR * sum(velocities.values()) / 3


def orthogonal(p, g, state, t):
    """Muon's matrices: the published polynomial five times on the singular values."""
    state["m"] = 0.95 * state.get("m", torch.zeros_like(g)) + g
    left, values, right = torch.linalg.svd(g + 0.95 * state["m"], full_matrices=False)
    values = values / values.norm()
    for _ in range(5):
        values = 3.4445 * values - 4.7750 * values**3 + 2.0315 * values**5
    return p * (1 - LR * DECAY) - LR * 0.2 * max(g.shape) ** 0.5 * (left * values) @ right


EQUATIONS = {
    "NAdamW": (of("NAdamW", **ADAMW), nadam),
    "AggMo": (of("AggMo", betas=(0.0, 0.9, 0.99)), aggregated),
    "Nesterov's AdamW": (of("NesterovAdamW", **ADAMW), nesterov),
    "AdEMAMix": (of("AdEMAMix", alpha=3.0, betas=(*BETAS, 0.999), weight_decay=DECAY, eps=EPS), mixed(3.0, 0.999)),
    "AdEMAMix, scheduled": (
        of("AdEMAMix", alpha=3.0, t_alpha_beta3=8.0, betas=(*BETAS, 0.999), weight_decay=DECAY, eps=EPS),
        mixed(3.0, 0.999, 8),
    ),
    "MARS": (of("MARS", gamma=0.05, **ADAMW), corrected(0.05)),
    "Cautious": (of("Cautious", **ADAMW), agreeing),
    "GrokFast": (of("GrokFast", **ADAMW), amplified(2.0, 0.98)),
    "Adam_CM's control": (of("Adam_CM", topC=0, **ADAMW), of_the_momentum),
    "Lion": (lambda params: Lion(params, lr=LR, betas=BETAS, weight_decay=DECAY), sign),
}


@pytest.mark.parametrize("size", [0.1, 3.0], ids=["short gradients", "long"])  # MARS cuts what is longer than 1
@pytest.mark.parametrize("arm", EQUATIONS.values(), ids=list(EQUATIONS))
def test_an_arm_does_what_its_paper_says(arm, size):
    pytest.importorskip("pytorch_optimizer")
    make, move = arm
    grads = gradients(((4, 3), (5,)), size=size)
    torch.testing.assert_close(walked(make, grads=grads), equations(move, grads), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("shape", [(4, 3), (3, 7)])
def test_a_matrix_takes_the_steps_of_muon(shape):
    grads = gradients((shape,))
    mine = walked(of("Muon", weight_decay=DECAY), (shape,), grads)
    torch.testing.assert_close(mine, equations(orthogonal, grads, (shape,)), rtol=1e-9, atol=1e-12)
    if hasattr(torch.optim, "Muon"):  # that of torch works in bfloat16
        options = {"lr": LR, "weight_decay": DECAY, "momentum": 0.95, "adjust_lr_fn": "match_rms_adamw"}
        theirs = walked(lambda params: torch.optim.Muon(params, **options), (shape,), grads)
        assert (mine - theirs).norm() < 0.03 * (mine - mine[0]).norm()


@pytest.mark.parametrize("name", FAMILY)
def test_gradients_that_lie_in_the_same_place_in_each_step_are_not_held_on_to(name):
    """A recorded backward pass writes each gradient over the last one: an optimizer must have copied what it keeps."""
    pytest.importorskip("pytorch_optimizer")
    pytest.importorskip("schedulefree")
    hyper = {"topC": 2, "decay": 0.9} if TRAINED[name].has_memory else {}

    def over(params):
        optimizer = of(name, **hyper)(params)
        step, places = optimizer.step, [torch.empty_like(p) for p in params]

        def stepped():
            for p, place in zip(params, places):
                p.grad = place.copy_(p.grad)
            step()

        optimizer.step = stepped
        return optimizer

    assert torch.equal(walked(over), walked(of(name, **hyper)))


@pytest.mark.parametrize("name", FAMILY)
def test_vectors_are_not_decayed_where_the_task_says_so(name):
    """A group's own weight decay counts: with zero gradients a vector stays where it is, a matrix shrinks."""
    pytest.importorskip("pytorch_optimizer")
    pytest.importorskip("schedulefree")
    matrix, vector = parameters(((4, 3), (5,)))
    groups = [{"params": [matrix]}, {"params": [vector], "weight_decay": 0.0}]
    optimizer = settled(TRAINED[name], {"lr": LR, "weight_decay": DECAY}, groups)
    if hasattr(optimizer, "train"):
        optimizer.train()
    before = matrix.detach().clone(), vector.detach().clone()
    for _ in range(3):
        matrix.grad, vector.grad = torch.zeros_like(matrix), torch.zeros_like(vector)
        optimizer.step()
    assert torch.equal(vector.detach(), before[1])
    if name != "AggMo":  # coupled: no gradient of its own, but the penalty's
        expected = before[0] * (1 - LR * DECAY) ** 3
        tolerance = 5e-3 if "ScheduleFree" in name else 1e-9  # its point is a mixture of averages
        torch.testing.assert_close(matrix.detach(), expected, rtol=tolerance, atol=0)


@pytest.mark.parametrize("name", FAMILY)
def test_an_arm_trains_the_small_twins(name):
    pytest.importorskip("pytorch_optimizer")
    pytest.importorskip("schedulefree")
    lr = {"AggMo": 0.1, "Lion": 0.003}.get(name, 0.01)
    result = train(Trial("pycode-gpt@tiny", name, {"lr": lr}, settings={"weight_decay": 0.001}))
    assert result.summary["test"] < 3.6
    assert result.summary["initial_valid"] == pytest.approx(3.91, abs=0.01)


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "pytorch_optimizer", None)
    with pytest.raises(
        MissingPackageError, match=r"AdEMAMix needs pytorch_optimizer: `pip install \"critgrad\[family\]\"`"
    ):
        family.ademamix([nn.Parameter(torch.ones(1))])


def test_the_memory_is_one_over_all_groups():
    """Global scope: groups for weight decay do not cut the memory in parts."""

    def make(split):
        def made(params):
            groups = [{"params": params[:1]}, {"params": params[1:]}] if split else params
            return critgrad.AdamW_F(groups, lr=LR, topC=3, decay=0.9)

        return made

    torch.testing.assert_close(walked(make(True)), walked(make(False)), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("use", ["grow", "extrapolate", "agree"])
def test_what_was_tried_without_a_share_is_adamw(use):
    found = maker_of("recalling.py:Recalling", Path(__file__).parents[2] / "studies" / "untried")

    def make(share):
        values = {"lr": LR, "use": use, "share": share, "topC": 3, **ADAMW}
        return lambda params: Falling(found.build(params, values))

    torch.testing.assert_close(walked(make(0.0)), walked(lambda params: Falling(of("AdamW", **ADAMW)(params))))
    assert (walked(make(0.5)) - walked(make(0.0))).abs().max() > 1e-3


class Falling:
    """An optimizer whose learning rate falls."""

    def __init__(self, optimizer):
        self.optimizer = optimizer

    def step(self):
        self.optimizer.step()
        self.optimizer.param_groups[0]["lr"] *= 0.8


@pytest.mark.parametrize("name, betas", [("Lion", (0.5, 0.99)), ("Muon", (0.5, 0.95)), ("AggMo", (0.5, 0.9, 0.99))])
def test_one_beta_leaves_the_others_as_they_are(name, betas):
    made = settled(TRAINED[name], {"beta1": 0.5}, parameters([(2, 2)]))
    assert tuple(made.param_groups[0]["betas"]) == betas
    made = settled(TRAINED["Adam"], {"beta1": 0.5, "betas": [0.9, 0.95]}, parameters([(2, 2)]))
    assert made.param_groups[0]["betas"] == (0.5, 0.95)
