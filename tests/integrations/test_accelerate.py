import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

pytest.importorskip("accelerate", reason="accelerate is not installed: pip install critgrad[accelerate]")

import accelerate

import critgrad
from critgrad.integrations import scalars


def parts(cls, seed: int = 0):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 2))
    opt = cls(model.parameters(), lr=1e-2, topC=3, decay=0.9)
    schedule = torch.optim.lr_scheduler.OneCycleLR(opt, max_lr=1e-2, total_steps=40, cycle_momentum=False)
    generator = torch.Generator().manual_seed(1)
    x, y = torch.randn(24, 5, generator=generator), torch.randn(24, 2, generator=generator)
    return model, opt, DataLoader(TensorDataset(x, y), batch_size=4), schedule


def epoch(accelerator, model, opt, loader, schedule) -> None:
    for x, y in loader:
        with accelerator.accumulate(model):
            accelerator.backward(nn.functional.mse_loss(model(x), y))
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 0.5)
            opt.step()
            schedule.step()
            opt.zero_grad()


@pytest.mark.parametrize("name", ["Adam_C", "SGD_C", "AdamW_F"])
def test_prepare_accumulate_clip_save_and_load_equal_the_uninterrupted_run(name, tmp_path):
    cls = getattr(critgrad, name)
    accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=2)
    whole = accelerator.prepare(*parts(cls))
    epoch(accelerator, *whole)
    accelerator.save_state(str(tmp_path))
    epoch(accelerator, *whole)
    accelerator.free_memory()

    accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=2)
    resumed = accelerator.prepare(*parts(cls, seed=5))
    accelerator.load_state(str(tmp_path))
    assert scalars(resumed[1])["critical/live"] == 3
    epoch(accelerator, *resumed)
    for a, b in zip(resumed[0].parameters(), whole[0].parameters(), strict=True):
        assert torch.equal(a, b)
    assert critgrad.inspect(resumed[1].optimizer).memories[0].steps == 6  # 12 batches, two to a step
