"""Hugging Face Trainer: a small RoBERTa made from its configuration, on random tokens, with the memory in the logs.

python examples/hf_trainer.py --steps 50
"""

import argparse
import tempfile

import torch
from transformers import RobertaConfig, RobertaForCausalLM, Trainer, TrainingArguments

import critgrad
from critgrad.integrations.hf import MemoryCallback

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=50)
parser.add_argument("--hidden", type=int, default=64)
parser.add_argument("--output", default=None, help="folder for checkpoints")
args = parser.parse_args()

torch.manual_seed(0)
config = RobertaConfig(
    vocab_size=200,
    hidden_size=args.hidden,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=4 * args.hidden,
    max_position_embeddings=40,
    type_vocab_size=1,
    is_decoder=True,
)
model = RobertaForCausalLM(config)
tokens = torch.randint(3, 200, (256, 1)) + torch.arange(32) % 7  # sequences with a rule to be learnt
data = [{"input_ids": row.clamp(max=199), "labels": row.clamp(max=199)} for row in tokens]

trainer = Trainer(
    model=model,
    args=TrainingArguments(
        output_dir=args.output or tempfile.mkdtemp(),
        max_steps=args.steps,
        per_device_train_batch_size=8,
        logging_steps=max(args.steps // 5, 1),
        save_steps=args.steps,
        report_to=[],
    ),
    train_dataset=data,
    # The Trainer makes two parameter groups, with and without weight decay; they share one memory.
    optimizer_cls_and_kwargs=(critgrad.AdamW_C, {"lr": 1e-3, "topC": 5, "decay": 0.7}),
)
MemoryCallback().put_first(trainer)
trainer.train()
for entry in trainer.state.log_history:
    if "loss" in entry:
        print({key: round(float(entry[key]), 4) for key in ("step", "loss", "critical/live", "critical/mean_age")})
