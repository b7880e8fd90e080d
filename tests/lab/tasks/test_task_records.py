import pytest
import torch

pytest.importorskip("numpy")

from critgrad.lab.errors import LabError
from critgrad.lab.tasks import TASKS, TRAIN_LOSS, problem_of, task_of
from critgrad.lab.tasks.data import DATASETS

NAMES = [
    *("digits-mlp", "mnist-logreg", "mnist-mlp", "covtype-logreg", "rcv1-logreg", "reuters-logreg", "noise-logreg"),
    *("cifar10-convnet", "cifar100-convnet", "ptb-lstm", "wikitext2-lstm", "snli-infersent", "snli-conv", "snli-lstm"),
    *("multiwoz-bilstm", "sgd-bilstm", "multiwoz-roberta", "pycode-gpt", "cifar10-resnet"),
]
MODERN = ("pycode-gpt", "cifar10-resnet")

# task: batch size, epochs, clipping, penalty (part of the loss)
SETTINGS = {
    "digits-mlp": (32, 30, None, 0.0),
    "mnist-logreg": (64, 10, None, 0.0),
    "mnist-mlp": (64, 10, None, 0.0),
    "covtype-logreg": (25, 25, None, 0.01),
    "rcv1-logreg": (25, 25, None, 0.01),
    "reuters-logreg": (25, 25, None, 0.01),
    "noise-logreg": (64, 20, None, 0.0),
    "cifar10-convnet": (64, 100, 10.0, 0.0),
    "cifar100-convnet": (64, 100, 10.0, 0.0),
    "ptb-lstm": (20, 50, 0.25, 0.0),
    "wikitext2-lstm": (20, 50, 0.25, 0.0),
    "snli-infersent": (128, 20, 5.0, 0.0),
    "snli-conv": (128, 20, 5.0, 0.0),
    "snli-lstm": (128, 20, 5.0, 0.0),
    "multiwoz-bilstm": (64, 15, 5.0, 0.0),
    "sgd-bilstm": (64, 15, 5.0, 0.0),
    "multiwoz-roberta": (4, 3, 1.0, 0.0),
    "pycode-gpt": (32, 4, 1.0, 0.0),
    "cifar10-resnet": (256, 8, 1.0, 0.0),
}


def test_there_are_nineteen_tasks_with_data_for_each():
    assert list(TASKS) == NAMES
    assert {task.dataset for task in TASKS.values()} == set(DATASETS)


@pytest.mark.parametrize("name", NAMES)
def test_a_record_has_the_settings_of_the_plan(name):
    task = TASKS[name]
    assert (task.batch_size, task.epochs, task.clip, task.options.get("l2", 0.0)) == SETTINGS[name]
    modern = (0.1, True, "cosine", 0.05)
    recipe = (task.weight_decay, task.decay_matrices_only, task.schedule, task.warmup)
    assert recipe == (modern if name in MODERN else (0.0, False, "constant", 0.0))
    assert task.differs
    assert task.summary


def test_variants_and_settings_are_applied_in_order():
    task = task_of("ptb-lstm@b420@tiny", {"hidden": 24})
    assert (task.name, task.dataset, task.options["hidden"]) == ("ptb-lstm@b420@tiny", "ptb@tiny", 24)
    assert task.batch_size == TASKS["ptb-lstm"].tiny["batch_size"]  # the twin is too short for 420 columns
    assert task_of("ptb-lstm@b420", {"batch_size": 10}).batch_size == 10
    convex = task_of("mnist-logreg@convex")
    assert (convex.metric, convex.epochs) == (TRAIN_LOSS, 25)


def test_the_noise_level_chooses_the_data():
    assert task_of("noise-logreg").dataset == "noise"
    assert task_of("noise-logreg", {"flip_y": 0.3}).dataset == "noise@0.3"
    assert task_of("noise-logreg", {"flip_y": 1}).dataset == "noise@1"
    assert problem_of("noise-logreg", {"flip_y": 0.3}).data.info["flip_y"] == 0.3
    assert task_of("noise-logreg@tiny").dataset == "noise@tiny"
    assert problem_of("noise-logreg@tiny", {"flip_y": 0.3}).data.info["flip_y"] == 0.3
    with pytest.raises(ValueError, match=r"flip_y: 1\.5"):
        task_of("noise-logreg", {"flip_y": 1.5})


@pytest.mark.parametrize(
    "name, settings, message",
    [
        ("mnist", {}, "Invalid task: 'mnist', expected one of digits-mlp"),
        ("ptb-lstm@b421", {}, "Invalid variant of ptb-lstm: 'b421', expected one of tiny, b420"),
        ("digits-mlp", {"hiden": 3}, "Invalid setting of digits-mlp: 'hiden', expected one of .*hidden"),
        ("digits-mlp", {"epochs": 0}, "Invalid epochs of digits-mlp: 0"),
        ("digits-mlp", {"batch_size": 2.5}, "Invalid batch_size of digits-mlp: 2.5"),
        ("digits-mlp", {"hidden": "wide"}, "Invalid hidden of digits-mlp: 'wide', expected an int >= 1"),
        ("digits-mlp", {"hidden": True}, "Invalid hidden of digits-mlp: True, expected an int >= 1"),
        ("digits-mlp", {"clip": "hard"}, "Invalid clip of digits-mlp: 'hard', expected a number >= 0"),
        ("digits-mlp", {"weight_decay": -1}, "Invalid weight_decay of digits-mlp: -1, expected a number >= 0"),
        ("digits-mlp", {"tf32": 1}, "Invalid tf32 of digits-mlp: 1, expected True or False"),
        ("noise-logreg", {"flip_y": "many"}, "Invalid flip_y of noise-logreg: 'many', expected a number >= 0"),
        ("ptb-lstm", {"bptt": 0}, "Invalid bptt of ptb-lstm: 0, expected an int >= 1"),
        ("ptb-lstm", {"dropout": 1}, "Invalid dropout of ptb-lstm: 1, expected a number from 0 to less than 1"),
        ("multiwoz-bilstm", {"decoded": -1}, "Invalid decoded of multiwoz-bilstm: -1, expected an int >= 0"),
    ],
)
def test_a_wrong_name_or_setting_is_named(name, settings, message):
    with pytest.raises(ValueError, match=message):
        task_of(name, settings)


@pytest.mark.parametrize(
    "name, settings, message",
    [
        ("digits-mlp@tiny", {"model": "lenet"}, "Invalid model of digits-mlp@tiny: 'lenet', expected logreg or mlp"),
        ("pycode-gpt@tiny", {"heads": 3}, "Invalid heads of pycode-gpt@tiny: 3, expected a divisor of 16"),
        ("multiwoz-roberta@tiny", {"heads": 3}, "Invalid heads of multiwoz-roberta@tiny: 3, expected a divisor of"),
        ("multiwoz-bilstm@tiny", {"hidden": 7}, "Invalid hidden: 7, expected an even number"),
    ],
)
def test_settings_that_make_no_model_are_named(name, settings, message):
    with pytest.raises(LabError, match=message):
        problem_of(name, settings).build()


@pytest.mark.parametrize("name", NAMES)
def test_an_epoch_can_be_made_shorter_and_never_longer(name):
    whole = problem_of(f"{name}@tiny")
    short = problem_of(f"{name}@tiny", {"epoch_steps": 2})
    assert (short.steps, len(short.plan(0, 1))) == (2, 2)
    assert len(list(short.batches(short.plan(0, 1)))) == 2
    assert torch.equal(short.plan(0, 1), whole.plan(0, 1)[:2])
    assert problem_of(f"{name}@tiny", {"epoch_steps": 10**6}).steps == whole.steps
    with pytest.raises(ValueError, match="epoch_steps"):
        problem_of(f"{name}@tiny", {"epoch_steps": 0})
