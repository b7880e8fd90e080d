"""For the Hugging Face ``Trainer``: the memory's numbers beside the loss, wherever the ``Trainer`` reports to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .loggers import scalars

if TYPE_CHECKING:
    TrainerCallback = object
else:
    try:
        from transformers import TrainerCallback
    except ImportError:  # said when a callback is made
        TrainerCallback = object


class MemoryCallback(TrainerCallback):
    """Adds ``critgrad.inspect(optimizer).scalars()`` to everything that the ``Trainer`` logs during training.

    ``trainer.add_callback(MemoryCallback())`` puts them into ``trainer.state.log_history``. A ``Trainer`` asks its own
    reporters (TensorBoard, W&B, ...) before added callbacks; ``MemoryCallback().put_first(trainer)`` comes before them.
    """

    def __init__(self) -> None:
        if TrainerCallback is object and not TYPE_CHECKING:
            raise ImportError("MemoryCallback needs transformers: pip install critgrad[transformers]")
        self._kept: dict[str, float] = {}

    def put_first(self, trainer: Any) -> MemoryCallback:
        """Add this callback to ``trainer`` before its reporters, so that they log the memory too."""
        trainer.callback_handler.callbacks.insert(0, self)
        return self

    def on_optimizer_step(self, args: Any, state: Any, control: Any, **objects: Any) -> None:
        """Look while the gradients are still there, if this step is going to be logged."""
        step = state.global_step + 1
        due = state.logging_steps and step % state.logging_steps == 0
        if due or (step == 1 and args.logging_first_step):
            self._kept = scalars(objects.get("optimizer"))

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **objects: Any) -> None:
        """Add to what is being logged, and to what has just been written into the history."""
        if logs is None or "loss" not in logs:  # an evaluation, or the summary at the end
            return
        said = self._kept or scalars(objects.get("optimizer"))
        self._kept = {}
        logs.update(said)
        if state.log_history:
            state.log_history[-1].update(said)
