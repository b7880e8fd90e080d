"""torch.distributed.checkpoint: saved on some ranks, loaded on others. What two ranks claim is in dist_resume.py."""

import shutil

import dist_checkpoint as checkpoint
import dist_killed
import dist_launch
import dist_problem as problem
import dist_resume
import pytest
import torch
from torch.distributed.checkpoint import CheckpointException


def whole(model):
    return model


@pytest.fixture(scope="session")
def resumed(world, worlds_folder):
    """Two ranks, after one process and four ranks have saved and another two have been killed."""
    import filelock

    with filelock.FileLock(worlds_folder / "saved.lock"):
        if not (worlds_folder / "one").exists():
            for case in checkpoint.FROM_ONE:
                kind, flat = checkpoint.parse(case)
                checkpoint.first_half(kind, whole, worlds_folder / "saving" / case, flat)
            shutil.move(worlds_folder / "saving", worlds_folder / "one")
        world("dist_four", 4)
        codes = worlds_folder / "killed.txt"
        if not codes.exists():
            ended = dist_launch.run("dist_killed", 2, worlds_folder / "dist_killed")
            codes.write_text(" ".join(str(code) for code in ended))
        return world("dist_resume", 2)


@pytest.mark.parametrize("claim", dist_resume.CLAIMS)
def test_on_two_ranks(claim, resumed):
    assert claim in resumed, "not reached"
    assert not resumed[claim], resumed[claim]


def test_a_killed_rank_ends_the_job(resumed, worlds_folder):
    survivor, killed = (int(code) for code in (worlds_folder / "killed.txt").read_text().split())
    assert killed == dist_killed.CODE
    log = (worlds_folder / "dist_killed" / "log-0").read_text()
    assert "FAIL train_until_killed" in log, (survivor, log[-2000:])


@pytest.mark.parametrize("case", checkpoint.CASES)
def test_two_ranks_to_one_resumed_equals_uninterrupted(case, resumed, worlds_folder):
    kind, flat = checkpoint.parse(case)
    model, decisions = checkpoint.second_half(kind, whole, worlds_folder / "dist_resume" / case, flat)
    checkpoint.assert_resumed_equals_uninterrupted(kind, model, decisions)


def test_a_layer_without_gradients_needs_a_partial_load_where_the_base_keeps_state_as_with_torchs_own(tmp_path):
    kind = "fisher-unused-partial"
    checkpoint.first_half(kind, whole, tmp_path / "ours", flat=False)
    model, opt = checkpoint.make(kind, whole, seed=99)
    with pytest.raises(CheckpointException, match=r"Missing key in checkpoint.*unused"):
        checkpoint.load(model, opt, tmp_path / "ours", flat=False)

    base = problem.net(unused=True)
    adam = torch.optim.AdamW(base.parameters())
    problem.backward(base, problem.data(1)[0])
    adam.step()
    checkpoint.save(base, adam, tmp_path / "torch", flat=False)
    again = problem.net(unused=True)
    with pytest.raises(CheckpointException, match=r"Missing key in checkpoint.*unused"):
        checkpoint.load(again, torch.optim.AdamW(again.parameters()), tmp_path / "torch", flat=False)


@pytest.mark.parametrize("damage", ["truncated", "without metadata", "of another model"])
def test_a_damaged_distributed_checkpoint_raises_and_a_good_one_loads_after_it(damage, tmp_path):
    kind = "fisher"
    good, bad = tmp_path / "good", tmp_path / "bad"
    checkpoint.first_half(kind, whole, good, flat=False)
    shutil.copytree(good, bad)
    if damage == "truncated":
        (file,) = bad.glob("*.distcp")
        file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    elif damage == "without metadata":
        (bad / ".metadata").unlink()
    else:
        other = torch.nn.Linear(3, 2)
        checkpoint.save(other, torch.optim.Adam(other.parameters()), bad, flat=False)
    model, opt = checkpoint.make(kind, whole, seed=99)
    with pytest.raises(CheckpointException):
        checkpoint.load(model, opt, bad, flat=False)
    checkpoint.load(model, opt, good, flat=False)
    decisions = problem.train(model, opt, problem.data(2 * checkpoint.HALF)[checkpoint.HALF :])
    checkpoint.assert_resumed_equals_uninterrupted(kind, model, decisions)
