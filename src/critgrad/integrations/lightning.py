"""For Lightning's ``Trainer``: the memory's numbers in its loggers."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from .loggers import scalars

if TYPE_CHECKING:
    Callback = object
else:
    try:
        Callback = importlib.import_module("lightning.pytorch").Callback
    except ImportError:
        try:
            Callback = importlib.import_module("pytorch_lightning").Callback
        except ImportError:  # said when a callback is made
            Callback = object


class MemoryCallback(Callback):
    """Logs ``critgrad.inspect(optimizer).scalars()`` to all loggers of the ``Trainer``.

    Args:
        every: steps between two looks; ``None`` is the trainer's own ``log_every_n_steps``.
    """

    def __init__(self, every: int | None = None) -> None:
        if Callback is object and not TYPE_CHECKING:
            raise ImportError("MemoryCallback needs Lightning: pip install critgrad[lightning]")
        self.every = every
        self._last_step = 0

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *unused: Any) -> None:
        """After the step, and before the gradients are cleared for the next one."""
        step = trainer.global_step
        if step == self._last_step or step % (self.every or trainer.log_every_n_steps) != 0:
            return  # between two steps when gradients are accumulated, or not due
        self._last_step = step
        for number, optimizer in enumerate(trainer.optimizers):
            prefix = "" if len(trainer.optimizers) == 1 else f"optimizer-{number}/"
            said = {prefix + name: value for name, value in scalars(optimizer).items()}
            for logger in trainer.loggers if said else ():
                logger.log_metrics(said, step=step)
