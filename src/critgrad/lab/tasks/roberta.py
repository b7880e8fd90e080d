"""RoBERTa as a causal language model of dialogue answers; needs ``transformers``, imported when a model is built."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..errors import LabError, MissingFileError, MissingPackageError
from .base import Batch, Model, Scores, SummingProblem, Task
from .data import Dataset
from .language import NOT_COUNTED, perplexity


class RobertaProblem(SummingProblem):
    """Rows of tokens, ``<s> context </s> answer </s>`` and padding; only the answer's tokens count, in loss and metric.

    Weights are random, or those of the folder that the option ``pretrained`` names; every result says which.
    """

    piece_rows = 16

    def __init__(self, task: Task, data: Dataset, device: torch.device) -> None:
        super().__init__(task, data, device)
        self.vocabulary, self.pad = int(data.info["vocab_size"]), int(data.info["pad"])
        self.splits = {split: self._split(split) for split in ("train", "valid", "test")}
        self.about_weights = {"weights": "random"}
        if task.options["pretrained"] is not None:
            self.about_weights = _about(Path(task.options["pretrained"]))

    def _split(self, split: str) -> Batch:
        """Tokens, and for each position the token that follows, if it counts."""
        tokens = torch.as_tensor(self.data.arrays[f"{split}_tokens"]).to(self.device, torch.int64)
        first = torch.as_tensor(self.data.arrays[f"{split}_response"]).to(self.device, torch.int64)
        position = torch.arange(tokens.shape[1], device=self.device)
        counted = (position >= first[:, None]) & (tokens != self.pad)
        targets = F.pad(tokens.masked_fill(~counted, NOT_COUNTED)[:, 1:], (0, 1), value=NOT_COUNTED)
        return tokens, targets

    @property
    def worst(self) -> float:
        return float(self.vocabulary)

    def build(self) -> nn.Module:
        try:
            from transformers import RobertaConfig, RobertaForCausalLM
        except ImportError as error:
            raise MissingPackageError(
                f"{self.task.name} needs transformers: pip install 'critgrad[transformers]'"
            ) from error
        o = self.task.options
        if o["hidden"] % o["heads"]:
            raise LabError(
                f"Invalid heads of {self.task.name}: {o['heads']}, expected a divisor of hidden, {o['hidden']}"
            )
        if o["pretrained"] is not None:
            model = RobertaForCausalLM.from_pretrained(
                o["pretrained"], local_files_only=True, is_decoder=True, use_cache=False
            )
            return nn.Module.to(model.float(), self.device)
        config = RobertaConfig(
            vocab_size=self.vocabulary,
            max_position_embeddings=514,
            type_vocab_size=1,
            layer_norm_eps=1e-5,
            hidden_size=o["hidden"],
            num_hidden_layers=o["layers"],
            num_attention_heads=o["heads"],
            intermediate_size=o["intermediate"],
            hidden_dropout_prob=o["dropout"],
            attention_probs_dropout_prob=o["dropout"],
            pad_token_id=self.pad,
            is_decoder=True,
            use_cache=False,
        )
        return nn.Module.to(RobertaForCausalLM(config), self.device)

    def loss(self, model: Model, batch: Batch, noise: Tensor | None, carry: Any) -> tuple[Tensor, Any]:
        tokens, targets = batch
        return F.cross_entropy(self._logits(model, tokens), targets.flatten(), ignore_index=NOT_COUNTED), None

    def _logits(self, model: Any, tokens: Tensor) -> Tensor:
        # Padding stands on the right, where no earlier token looks: a causal model needs no mask against it, and
        # transformers would read the mask's values on the host.
        return model(input_ids=tokens).logits.flatten(0, 1)

    def score(self, model: Model, batch: Batch) -> Tensor:
        tokens, targets = batch
        flat = targets.flatten()
        loss = F.cross_entropy(self._logits(model, tokens), flat, ignore_index=NOT_COUNTED, reduction="sum")
        count = (flat != NOT_COUNTED).sum().to(loss.dtype)
        return torch.stack([loss, loss.detach(), count])

    def finish(self, totals: Tensor) -> Scores:
        loss, _, n = totals.tolist()
        return Scores(loss / n, perplexity(loss / n, self.worst))

    def details(self) -> dict[str, Any]:
        return dict(self.about_weights)


def _about(folder: Path) -> dict[str, str]:
    """Which pretrained weights a folder holds: results of other weights must be told apart."""
    files = sorted([*folder.glob("*.safetensors"), *folder.glob("pytorch_model*.bin")])
    if not (folder / "config.json").is_file() or not files:
        raise MissingFileError(f"No pretrained model at {folder}; expected config.json and model.safetensors in it")
    total = hashlib.sha256()
    for path in files:
        with open(path, "rb") as file:
            while block := file.read(1 << 22):
                total.update(block)
    return {"weights": f"pretrained: {folder.resolve().name}", "weights_sha256": total.hexdigest()}
