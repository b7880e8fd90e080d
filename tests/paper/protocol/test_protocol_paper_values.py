"""The paper's tables as data: counts, and values typed in once more by hand."""

from __future__ import annotations

import pytest

from critgrad.paper.protocol import paper_values as paper


def best(task: str, optimizer: str) -> dict:
    return next(dict(row.hyper) for row in paper.best_of(task) if row.optimizer == optimizer)


def test_nine_tasks_have_eight_rows_each_in_the_order_of_the_tables():
    tasks = dict.fromkeys(row.task for row in paper.BEST)
    assert len(tasks) == 9
    assert len(paper.BEST) == 72
    for task in tasks:
        assert tuple(row.optimizer for row in paper.best_of(task)) == paper.OPTIMIZERS


def test_rows_have_the_arguments_of_their_optimizer():
    own = {"Adam": {"beta1", "beta2"}, "RMSprop": {"alpha"}, "SGDM": {"momentum"}, "SGD": set()}
    for row in paper.BEST:
        family = row.optimizer.removesuffix("_C")
        memory = {"topC", "decay", "aggr"} if family != row.optimizer else set()
        assert set(row.hyper) == {"lr", *own[family], *memory}, row


def test_spot_values_of_the_best_hyper_parameters():
    assert best("cifar10-convnet", "Adam_C") == {
        "lr": 1e-4, "topC": 5, "decay": 0.7, "beta1": 0.99, "beta2": 0.99, "aggr": "mean"
    }  # fmt: skip
    assert best("cifar100-convnet", "RMSprop_C") == {
        "lr": 1e-5,
        "topC": 20,
        "decay": 0.7,
        "alpha": 0.99,
        "aggr": "mean",
    }
    assert best("cifar100-convnet", "SGD_C") == {"lr": 0.01, "topC": 5, "decay": 0.9, "aggr": "sum"}
    assert best("wikitext2-lstm", "Adam") == {"lr": 1e-4, "beta1": 0.9, "beta2": 0.9999}
    assert best("multiwoz-roberta", "RMSprop") == {"lr": 1e-5, "alpha": 0.99}
    assert best("snli-conv", "SGDM_C") == {"lr": 0.01, "topC": 5, "decay": 0.7, "momentum": 0.9, "aggr": "sum"}


def test_the_language_rows_without_momentum_are_sgd():
    for task in ("ptb-lstm", "wikitext2-lstm"):
        assert best(task, "SGD_C") == {"lr": 0.1, "topC": 2, "decay": 0.95, "aggr": "sum"}
        assert best(task, "SGDM_C")["momentum"] == 0.9


def test_spot_values_of_the_test_table():
    spots = {
        ("multiwoz-roberta", "SGDM_C"): (2.4, 0.01),
        ("multiwoz-bilstm", "SGD"): (14.26, 0.61),
        ("ptb-lstm", "Adam"): (153.54, 1.65),
        ("wikitext2-lstm", "SGD_C"): (356.88, 8.34),
        ("snli-infersent", "SGDM"): (79.15, 0.3),
        ("snli-lstm", "SGDM_C"): (76.69, 1.04),
        ("cifar100-convnet", "SGDM_C"): (59.07, 0.2),
        ("cifar10-convnet", "SGD_C"): (64.89, 0.66),
    }
    for (task, optimizer), value in spots.items():
        found = paper.performance(task, optimizer)
        assert found is not None
        assert (found.value, found.spread) == value
    assert paper.performance("mnist-mlp", "Adam") is None
    assert paper.performance("ptb-lstm@b420", "Adam") is None


def test_the_base_is_at_the_grids_top_learning_rate_in_eight_of_nine_tasks_for_sgd():
    rows = [row for row in paper.BEST if row.optimizer == "SGD"]
    assert sum("lr high" in paper.at_grid_edge(row.hyper) for row in rows) == 8


def test_the_grid_has_the_papers_counts():
    assert sum(len(paper.grid(name)) for name in paper.OPTIMIZERS if not name.endswith("_C")) == 80
    assert sum(len(paper.grid(name)) for name in paper.OPTIMIZERS if name.endswith("_C")) == 720
    with pytest.raises(ValueError, match="NAdam"):
        paper.grid("NAdam")


def test_run_times_have_eleven_rows_of_six_and_grow_with_topC():
    assert len(paper.RUN_TIMES) == 11
    assert len(paper.RUN_TIME_TOPC) == 6
    assert all(len(row) == 6 for row in paper.RUN_TIMES.values())
    assert paper.RUN_TIMES["ptb-lstm"] == (0.08, 0.4, 0.6, 0.9, 2, 6)
    assert paper.RUN_TIMES["multiwoz-roberta"] == (15, 25, 35, 50, None, None)


def test_variants_share_their_tasks_rows_and_others_are_refused():
    assert paper.best_of("ptb-lstm@b420") == paper.best_of("ptb-lstm")
    assert paper.best_of("sgd-bilstm@tiny") == paper.best_of("multiwoz-bilstm")  # its twin
    assert paper.performance("sgd-bilstm", "Adam") is None  # which the paper has not run
    with pytest.raises(ValueError, match="mnist-mlp"):
        paper.best_of("mnist-mlp")
