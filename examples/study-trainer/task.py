"""A whole loop: the Trainer of a small BERT on made-up sentences. `make_optimizer` is all that a study asks of it."""

import tempfile

import torch
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    set_seed,
)

WORDS, LENGTH = 60, 12


def sentences(count, seed):
    """A sentence is positive where it has more small words than large ones."""
    draw = torch.Generator().manual_seed(seed)
    tokens = torch.randint(1, WORDS, (count, LENGTH), generator=draw)
    labels = ((tokens < WORDS // 2).sum(1) > LENGTH // 2).long()
    return [{"input_ids": row, "labels": label} for row, label in zip(tokens, labels)]


TRAIN, VALID, TEST = sentences(256, 1), sentences(256, 2), sentences(256, 3)


class ReportEpochs(TrainerCallback):
    """After each epoch: the loss on both sets."""

    def __init__(self, trainer, report):
        self.trainer, self.report = trainer, report

    def on_epoch_end(self, args, state, control, **more):
        valid, test = (self.trainer.predict(data).metrics["test_loss"] for data in (VALID, TEST))
        self.report(valid=valid, test=test)


def train(make_optimizer, seed, epochs, report):
    set_seed(seed)
    config = BertConfig(
        vocab_size=WORDS,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=LENGTH,
    )
    model = BertForSequenceClassification(config)
    optimizer = make_optimizer(model.parameters())
    steps = epochs * (len(TRAIN) // 32)
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, steps)
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            num_train_epochs=epochs,
            per_device_train_batch_size=32,
            per_device_eval_batch_size=256,
            seed=seed,
            save_strategy="no",
            logging_strategy="no",
            disable_tqdm=True,
            report_to=[],
        )
        trainer = Trainer(model=model, args=arguments, train_dataset=TRAIN, optimizers=(optimizer, scheduler))
        trainer.add_callback(ReportEpochs(trainer, report))
        trainer.train()
