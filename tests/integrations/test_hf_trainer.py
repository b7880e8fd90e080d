import copy

import pytest
import torch

pytest.importorskip("transformers", reason="transformers is not installed: pip install critgrad[transformers]")
pytest.importorskip("accelerate", reason="the Trainer needs accelerate: pip install critgrad[transformers]")

import transformers

import critgrad
from critgrad.integrations.hf import MemoryCallback

OPTIONS = {"lr": 1e-2, "topC": 3, "decay": 0.9}


@pytest.fixture(scope="module")
def roberta():
    config = transformers.RobertaConfig(
        vocab_size=50,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=20,
        type_vocab_size=1,
        is_decoder=True,
        hidden_dropout_prob=0.1,  # resuming must bring the generator back, too
    )
    torch.manual_seed(0)
    return transformers.RobertaForCausalLM(config)


@pytest.fixture(scope="module")
def dataset():
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(3, 50, (24, 8), generator=generator)
    return [{"input_ids": row, "labels": row} for row in tokens]


def trainer(model, dataset, folder, optimizer=None, cls=None, **options):
    arguments = transformers.TrainingArguments(
        output_dir=str(folder),
        per_device_train_batch_size=2,
        gradient_accumulation_steps=2,
        max_steps=6,
        save_steps=3,
        logging_steps=2,
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
        seed=0,
        weight_decay=0.01,
        dataloader_pin_memory=False,
        lr_scheduler_type="linear",
        **options,
    )
    ways = {}
    if optimizer is not None:
        ways["optimizers"] = (optimizer, None)
    if cls is not None:
        ways["optimizer_cls_and_kwargs"] = cls
    return transformers.Trainer(model=model, args=arguments, train_dataset=dataset, **ways)


def weights(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()])


@pytest.mark.parametrize("way", ["instance", "class"])
@pytest.mark.parametrize("name", ["Adam_C", "AdamW_F"])
def test_a_run_resumed_from_its_checkpoint_equals_the_uninterrupted_one(way, name, roberta, dataset, tmp_path):
    cls = getattr(critgrad, name)

    def run(folder, resume=None):
        model = copy.deepcopy(roberta)
        if way == "instance":
            one = trainer(model, dataset, folder, optimizer=cls(model.parameters(), **OPTIONS))
        else:
            one = trainer(model, dataset, folder, cls=(cls, dict(OPTIONS)))
        one.train(resume_from_checkpoint=resume)
        return one

    whole = run(tmp_path)
    assert not torch.equal(weights(whole.model), weights(roberta))
    memory = critgrad.inspect(whole.optimizer.optimizer).memories
    assert len(memory) == 1  # one memory over both groups, weight decay or none
    assert memory[0].steps == 6  # steps of the optimizer, not micro-batches
    resumed = run(tmp_path, resume=str(tmp_path / "checkpoint-3"))
    assert torch.equal(weights(resumed.model), weights(whole.model))
    assert len(whole.optimizer.param_groups) == (1 if way == "instance" else 2)


def test_the_callback_logs_the_memory_beside_the_loss(roberta, dataset, tmp_path):
    one = trainer(copy.deepcopy(roberta), dataset, tmp_path, cls=(critgrad.Adam_C, dict(OPTIONS)))
    seen = []

    class Reporter(transformers.TrainerCallback):
        def on_log(self, args, state, control, logs=None, **objects):
            seen.append(dict(logs))

    one.add_callback(Reporter())
    MemoryCallback().put_first(one)
    one.train()
    logged = [entry for entry in one.state.log_history if "loss" in entry]
    assert [entry["step"] for entry in logged] == [2, 4, 6]
    assert [entry["critical/live"] for entry in logged] == [2, 3, 3]
    assert all(entry["critical/gradient_norm"] <= 1.001 for entry in logged)  # the Trainer clips to 1 first
    assert [entry["critical/live"] for entry in seen if "loss" in entry] == [2, 3, 3]
    assert "critical/live" not in one.state.log_history[-1]  # the summary at the end


def test_the_callback_is_silent_with_an_optimizer_that_has_no_memory(roberta, dataset, tmp_path):
    one = trainer(copy.deepcopy(roberta), dataset, tmp_path)
    one.add_callback(MemoryCallback())
    one.train()
    assert not any(key.startswith("critical/") for entry in one.state.log_history for key in entry)


def test_the_base_optimizers_checkpoint_goes_on_with_an_empty_memory(roberta, dataset, tmp_path):
    trainer(copy.deepcopy(roberta), dataset, tmp_path, cls=(torch.optim.AdamW, {"lr": 1e-2})).train()
    one = trainer(copy.deepcopy(roberta), dataset, tmp_path, cls=(critgrad.AdamW_C, dict(OPTIONS)))
    one.train(resume_from_checkpoint=str(tmp_path / "checkpoint-3"))
    assert critgrad.inspect(one.optimizer.optimizer).memories[0].steps == 3
