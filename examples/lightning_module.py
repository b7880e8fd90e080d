"""Lightning: the optimizer in configure_optimizers, the memory in the logger.

python examples/lightning_module.py --epochs 5
"""

import argparse
import tempfile

import lightning.pytorch as pl
import torch
from lightning.pytorch.loggers import CSVLogger
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import critgrad
from critgrad.integrations.lightning import MemoryCallback


class Regression(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(10, 64), nn.Tanh(), nn.Linear(64, 1))

    def training_step(self, batch, index):
        x, y = batch
        loss = nn.functional.mse_loss(self.net(x), y)
        self.log("loss", loss)
        return loss

    def configure_optimizers(self):
        return critgrad.Adam_C(self.parameters(), lr=3e-3, topC=5, decay=0.7)


parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=5)
parser.add_argument("--output", default=None)
args = parser.parse_args()

pl.seed_everything(0, verbose=False)
x = torch.randn(512, 10)
y = torch.sin(x.sum(1, keepdim=True))
folder = args.output or tempfile.mkdtemp()
trainer = pl.Trainer(
    max_epochs=args.epochs,
    accelerator="auto",
    devices=1,
    logger=CSVLogger(folder),
    callbacks=[MemoryCallback()],
    log_every_n_steps=8,
    default_root_dir=folder,
    enable_progress_bar=False,
)
trainer.fit(Regression(), DataLoader(TensorDataset(x, y), batch_size=32, shuffle=True))
print(f"loss {float(trainer.callback_metrics['loss']):.4f}; {critgrad.inspect(trainer.optimizers[0])}")
