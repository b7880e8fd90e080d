import csv
import logging
import warnings
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

pytest.importorskip("lightning.pytorch", reason="lightning is not installed: pip install critgrad[lightning]")

import lightning.pytorch as pl
from lightning.fabric import Fabric
from lightning.pytorch.loggers import CSVLogger

import critgrad
from critgrad.integrations.lightning import MemoryCallback

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


@pytest.fixture(autouse=True)
def _quiet():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


class Module(pl.LightningModule):
    def __init__(self, cls, seed: int = 0):
        super().__init__()
        torch.manual_seed(seed)
        self.net = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 2))
        self.cls = cls

    def training_step(self, batch, index):
        return nn.functional.mse_loss(self.net(batch[0]), batch[1])

    def configure_optimizers(self):
        opt = self.cls(self.net.parameters(), lr=1e-2, topC=3, decay=0.9)
        return {"optimizer": opt, "lr_scheduler": torch.optim.lr_scheduler.StepLR(opt, 2)}


def loader():
    generator = torch.Generator().manual_seed(1)
    x, y = torch.randn(16, 5, generator=generator), torch.randn(16, 2, generator=generator)
    return DataLoader(TensorDataset(x, y), batch_size=4)


def trainer(folder, epochs: int, **options):
    return pl.Trainer(
        max_epochs=epochs,
        accelerator="cpu",
        devices=1,
        default_root_dir=str(folder),
        enable_progress_bar=False,
        enable_model_summary=False,
        log_every_n_steps=2,
        gradient_clip_val=1.0,
        **{"logger": False, "enable_checkpointing": False, **options},
    )


@pytest.mark.parametrize("name", ["Adam_C", "SGD_C", "AdamW_F"])
def test_a_run_resumed_from_its_checkpoint_equals_the_uninterrupted_one(name, tmp_path):
    cls = getattr(critgrad, name)
    whole = Module(cls)
    trainer(tmp_path, 4).fit(whole, loader())
    half = trainer(tmp_path, 2)
    half.fit(Module(cls), loader())
    half.save_checkpoint(tmp_path / "half.ckpt")
    resumed = Module(cls, seed=5)
    last = trainer(tmp_path, 4)
    last.fit(resumed, loader(), ckpt_path=str(tmp_path / "half.ckpt"))
    for a, b in zip(resumed.parameters(), whole.parameters(), strict=True):
        assert torch.equal(a, b)
    assert critgrad.inspect(last.optimizers[0]).memories[0].steps == 16


def test_the_callback_logs_the_memory_to_the_trainers_loggers(tmp_path):
    logger = CSVLogger(str(tmp_path))
    one = trainer(tmp_path, 2, logger=logger, callbacks=[MemoryCallback()], accumulate_grad_batches=2)
    one.fit(Module(critgrad.Adam_C), loader())
    logger.save()
    with Path(logger.experiment.metrics_file_path).open() as file:
        rows = [row for row in csv.DictReader(file) if row.get("critical/live")]
    assert [int(row["step"]) for row in rows] == [2, 4]  # steps of the optimizer, every other one
    assert [float(row["critical/live"]) for row in rows] == [2, 3]
    assert all(float(row["critical/gradient_norm"]) > 0 for row in rows)


def test_the_callback_is_silent_with_an_optimizer_that_has_no_memory(tmp_path):
    class Plain(Module):
        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=1e-2)

    logger = CSVLogger(str(tmp_path))
    trainer(tmp_path, 1, logger=logger, callbacks=[MemoryCallback()]).fit(Plain(None), loader())
    logger.save()
    file = Path(logger.experiment.metrics_file_path)
    assert not file.exists() or "critical" not in file.read_text()


def test_fabric_setup_step_save_and_load_equal_the_uninterrupted_run(tmp_path):
    fabric = Fabric(accelerator="cpu", devices=1)

    def make(seed):
        module = Module(critgrad.AdamW_F, seed)
        return fabric.setup(module.net, critgrad.AdamW_F(module.net.parameters(), lr=1e-2, topC=3))

    def epoch(model, opt):
        for x, y in loader():
            opt.zero_grad()
            fabric.backward(nn.functional.mse_loss(model(x), y))
            fabric.clip_gradients(model, opt, max_norm=1.0)
            opt.step()

    model, opt = make(0)
    epoch(model, opt)
    fabric.save(tmp_path / "state.ckpt", {"model": model, "opt": opt})
    epoch(model, opt)
    again, opt_again = make(5)
    fabric.load(tmp_path / "state.ckpt", {"model": again, "opt": opt_again})
    epoch(again, opt_again)
    for a, b in zip(again.parameters(), model.parameters(), strict=True):
        assert torch.equal(a, b)
    assert critgrad.integrations.scalars(opt_again)["critical/live"] == 3
