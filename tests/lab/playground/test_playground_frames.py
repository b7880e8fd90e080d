"""The recorded runs are what the library does, and mean what the page says of them."""

from __future__ import annotations

import json
import math
import random
import struct

import numpy as np
import pytest
import torch
from playground_frames import codec, frames
from playground_frames.optimizers import DECAYS, OPTIMIZERS, TOPCS
from playground_frames.run import FRAMES, REACH
from playground_frames.surfaces import SURFACES

import critgrad
from critgrad.lab.playground import page

ALL = list(frames.settings())
BY_NAME = {optimizer.name: optimizer for optimizer in OPTIMIZERS}
# Rastrigin's box throws neighbours apart: after some forty steps a change in the last bit can be seen. A machine that
# rounds a cosine otherwise must not fail the test, so runs on it are compared at their beginning.
SAFE = {"rastrigin": 20}

CLASSES = {
    "SGD": torch.optim.SGD,
    "SGDM": lambda params, **options: torch.optim.SGD(params, momentum=0.9, **options),
    "Adam": torch.optim.Adam,
    "SGD_C": critgrad.SGD_C,
    "SGDM_C": lambda params, **options: critgrad.SGD_C(params, momentum=0.9, **options),
    "Adam_C": critgrad.Adam_C,
    "SGD_F": critgrad.SGD_F,
    "SGDM_F": lambda params, **options: critgrad.SGD_F(params, momentum=0.9, **options),
    "Adam_F": critgrad.Adam_F,
}


def pick(surface, optimizer, lr=1, topC=5, decay=0.9):
    surface = next(s for s in SURFACES if s.key == surface)
    opt = BY_NAME[optimizer]
    memory = (topC, decay) if opt.memory is not None else (0, 0.0)
    return frames.FrameSetting(surface, opt, surface.lrs[opt.family][lr], *memory)


def walk(setting, steps):
    """The positions of a run by the class of that name, as a user would write it."""
    surface = setting.surface
    w = torch.nn.Parameter(torch.tensor(surface.start, dtype=torch.float64))
    memory = {"topC": setting.topC, "decay": setting.decay} if setting.topC else {}
    opt = CLASSES[setting.optimizer.name]([w], lr=setting.lr, **memory)
    noises, out = surface.noises(FRAMES), []
    for t in range(steps):
        out.append(w.tolist())
        opt.zero_grad()
        surface.loss(w[0], w[1]).backward()
        w.grad += noises[t]
        opt.step()
    return np.array(out)


def assert_same(recorded, fresh, surface, upto):
    """Equal to the rounding of the codes, over the first frames."""
    quantum = 2 * REACH * surface.half_width / codec.TOP
    one, other = [
        {name: getattr(run, name)[:upto] for name in ("position", "loss", "gradient", "direction", "priority", "age")}
        for run in (recorded, fresh)
    ]
    np.testing.assert_allclose(one["position"], other["position"], rtol=0, atol=0.51 * quantum)
    np.testing.assert_array_equal(one["age"], other["age"])
    floor = 10**codec.LOG_LOW
    for name in ("loss", "priority"):
        np.testing.assert_allclose(one[name], other[name], rtol=1.01 * codec.LOG_ERROR, atol=floor)
    for name in ("gradient", "direction"):
        # An angle is off by half a step of 2 pi / 65535 at most, a length by LOG_ERROR.
        bound = (1.01 * codec.LOG_ERROR + 1.01 * math.pi / codec.TOP) * np.linalg.norm(other[name], axis=1) + floor
        assert (np.linalg.norm(one[name] - other[name], axis=1) <= bound).all(), name


def test_the_grid_is_as_large_as_promised():
    with_memory = [s for s in ALL if s.topC]
    assert len({s.surface.key for s in ALL}) == 5
    assert len({s.optimizer.name for s in with_memory}) == 6
    assert (len(TOPCS), len(DECAYS)) == (4, 3)
    assert len(with_memory) == 5 * 6 * 4 * 4 * 3
    assert len(ALL) == len(with_memory) + 5 * 3 * 4
    assert any(s.optimizer.memory and s.optimizer.memory["aggr"] == "fisher" for s in ALL)


def test_the_file_was_written_with_the_present_lists(frames):
    from playground_frames.frames import header

    assert frames.header == json.loads(json.dumps(header())), "run python -m playground_frames"


@pytest.mark.parametrize("seed", range(10))
def test_a_recorded_frame_equals_a_fresh_run(frames, seed):
    draw = random.Random(seed)
    setting = draw.choice([s for s in ALL if s.surface is SURFACES[seed % 5]])
    recorded = frames[setting]
    t = draw.randrange(min(len(recorded.loss), SAFE.get(setting.surface.key, FRAMES)))
    assert_same(recorded, setting.simulate(t + 1), setting.surface, t + 1)


@pytest.mark.slow
def test_many_whole_runs_equal_fresh_ones(frames):
    for setting in random.Random(0).sample(ALL, 20):
        recorded, fresh = frames[setting], setting.simulate()
        upto = SAFE.get(setting.surface.key, FRAMES)
        if upto == FRAMES:
            assert len(recorded.loss) == len(fresh.loss)
        assert_same(recorded, fresh, setting.surface, upto)


@pytest.mark.parametrize("name", CLASSES)
def test_the_class_of_that_name_walks_the_same_way(frames, name):
    setting = pick("beale", name, lr=0)
    recorded = frames[setting].position[:40]
    quantum = 2 * REACH * setting.surface.half_width / codec.TOP
    np.testing.assert_allclose(recorded, walk(setting, 40), rtol=0, atol=0.51 * quantum)


@pytest.mark.parametrize("name", ["SGD_C", "Adam_C", "Adam_F"])
def test_a_slot_holds_the_gradient_of_the_frame_that_its_age_says(name):
    setting = pick("noisy-quadratic", name)
    run = setting.simulate(30)
    surface, w = setting.surface, torch.nn.Parameter(torch.tensor(setting.surface.start, dtype=torch.float64))
    opt = CLASSES[name]([w], lr=setting.lr, topC=5, decay=0.9)
    for t in range(29):
        opt.zero_grad()
        (surface.loss(w[0], w[1]) + w @ surface.noises(FRAMES)[t]).backward()
        opt.step()
    assert len(set(run.age[29])) == 5
    np.testing.assert_allclose(opt.state[w]["critical_slots"].numpy(), run.gradient[29 - run.age[29]], rtol=1e-12)


def test_priorities_are_norms_decayed_by_age():
    run = pick("noisy-quadratic", "SGD_F", decay=0.7).simulate(40)
    for t in range(1, 40):
        live = run.age[t] > 0
        norms = np.linalg.norm(run.gradient[t - run.age[t][live]], axis=1)
        np.testing.assert_allclose(run.priority[t][live], norms * 0.7 ** run.age[t][live], rtol=1e-12)


def test_directions_are_what_the_memory_makes_of_the_gradient():
    summed, damped = (pick("noisy-quadratic", name).simulate(30) for name in ("SGD_C", "SGD_F"))
    for t in range(1, 30):
        g, G = summed.gradient[t], summed.gradient[t - summed.age[t][summed.age[t] > 0]]
        np.testing.assert_allclose(summed.direction[t], g + G.mean(axis=0), rtol=1e-10)
        g, G = damped.gradient[t], damped.gradient[t - damped.age[t][damped.age[t] > 0]]
        K = G @ G.T
        w = np.linalg.solve(K + 0.3 * np.trace(K) * np.eye(len(K)), G @ g)
        np.testing.assert_allclose(damped.direction[t], g - G.T @ w, rtol=1e-9)
        assert np.linalg.norm(damped.direction[t]) < np.linalg.norm(g)


def test_without_a_memory_the_direction_is_the_gradient(frames):
    run = frames[pick("rosenbrock", "Adam")]
    np.testing.assert_array_equal(run.direction, run.gradient)
    assert run.age.shape == (FRAMES, 0)


def test_two_optimizers_meet_the_same_noise():
    surface = next(s for s in SURFACES if s.noise)
    noises = []
    for name in ("SGD", "Adam_F"):
        run = pick(surface.key, name).simulate(20)
        noises.append(run.gradient - run.position * [1, 20])
    np.testing.assert_allclose(*noises, atol=1e-12)
    assert noises[0].std() > 1


def test_a_run_that_diverges_ends_where_it_left(frames):
    setting = pick("noisy-quadratic", "SGDM_C", lr=3)
    run = frames[setting]
    assert 1 < len(run.loss) < FRAMES
    assert np.abs(run.position).max() <= REACH * setting.surface.half_width
    assert np.abs(walk(setting, len(run.loss) + 1)[-1]).max() > REACH * setting.surface.half_width


@pytest.mark.parametrize("surface", SURFACES, ids=lambda s: s.key)
def test_a_surface_is_zero_at_its_minima_and_starts_in_the_picture(surface):
    for minimum in surface.minima:
        at = torch.tensor(minimum, dtype=torch.float64, requires_grad=True)
        loss = surface.loss(at[0], at[1])
        loss.backward()
        assert abs(loss.item()) < 1e-12
        assert at.grad.abs().max() < 1e-9
    for point in (surface.start, *surface.minima):
        assert all(abs(v - c) < surface.half_width for v, c in zip(point, surface.center))
    grid = surface.grid(3)
    assert grid.min() >= 0
    x, y = surface.center[0] + surface.half_width, surface.center[1] - surface.half_width
    torch.testing.assert_close(grid[0, 2], surface.loss(*torch.tensor([x, y], dtype=torch.float64)))


def test_no_two_optimizers_share_a_colour():
    okabe_ito = ["#000000", "#999999", "#E69F00", "#56B4E9", "#009E73", "#F0E442", "#0072B2", "#D55E00", "#CC79A7"]
    assert sorted(o.color for o in OPTIMIZERS) == sorted(okabe_ito)


def test_codes_come_back_within_their_rounding():
    values = np.array([0.0, 1e-20, 1e-16, 3e-7, 1.0, 12345.678, 1e8])
    back = codec.log_values(codec.log_codes(values))
    assert (back[:2] == 0).all()
    np.testing.assert_allclose(back[2:], values[2:], rtol=codec.LOG_ERROR * 1.001)
    line = np.linspace(-3, 5, 1001)
    np.testing.assert_allclose(
        codec.linear_values(codec.linear_codes(line, -3, 5), -3, 5), line, atol=4.001 / codec.TOP
    )
    codes = np.random.default_rng(0).integers(0, 65536, (4, 7)).astype(np.uint16)
    np.testing.assert_array_equal(codec.unpack(codec.pack(codes), (4, 7)), codes)


@pytest.mark.parametrize("bad", [[-1.0], [1e9], [math.nan]])
def test_values_off_the_scale_are_refused(bad):
    with pytest.raises(ValueError, match="expected 0 to 1e\\+08"):
        codec.log_codes(np.array(bad))


def test_another_file_is_refused_by_name(tmp_path):
    other = tmp_path / "other.bin"
    other.write_bytes(struct.pack("<I", 7))
    with pytest.raises(ValueError, match=r"other\.bin.*playground_frames"):
        page.read(other)


def test_the_recording_command_writes_a_file_that_reads_back(tmp_path, monkeypatch):
    few = [pick("saddle", "SGD_F", topC=2), pick("noisy-quadratic", "SGDM_C", lr=3)]
    monkeypatch.setattr(frames, "settings", lambda: iter(few))
    out = tmp_path / "few.bin"
    assert frames.main(["--out", str(out)]) == 0
    back = frames.Frames(out)
    for setting in few:
        assert_same(back[setting], setting.simulate(), setting.surface, FRAMES)
