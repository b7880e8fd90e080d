"""A whole loop: a Lightning module and its Trainer. `make_optimizer` goes into configure_optimizers."""

import logging
import warnings

import lightning.pytorch as pl
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
warnings.filterwarnings("ignore", module="lightning")


def data(count, seed):
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(count, 10, generator=draw)
    return TensorDataset(x, torch.sin(x.sum(1, keepdim=True)) + 0.1 * torch.randn(count, 1, generator=draw))


TRAIN, VALID, TEST = data(512, 1), data(512, 2), data(512, 3)


class Regression(pl.LightningModule):
    def __init__(self, make_optimizer, report):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(10, 64), nn.Tanh(), nn.Linear(64, 1))
        self.make_optimizer, self.report = make_optimizer, report

    def training_step(self, batch, index):
        return self.error(batch)

    def on_train_epoch_end(self):
        with torch.no_grad():
            valid, test = (self.error([part.to(self.device) for part in d.tensors]).item() for d in (VALID, TEST))
        self.report(valid=valid, test=test)

    def error(self, batch):
        x, y = batch
        return nn.functional.mse_loss(self.net(x), y)

    def configure_optimizers(self):
        return self.make_optimizer(self.parameters())


def train(make_optimizer, seed, epochs, report):
    pl.seed_everything(seed, verbose=False)
    trainer = pl.Trainer(
        max_epochs=epochs,
        devices=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Regression(make_optimizer, report), DataLoader(TRAIN, batch_size=32, shuffle=True))
