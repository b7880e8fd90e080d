"""The paper's figures as analyses: a registry of records, one per name of ``critgrad analyze``."""

from ..protocol.paper_values import RUN_TIMES
from . import cost, inside, outcomes
from .base import Analysis, Options

_LARGE = ("snli-lstm", "cifar100-convnet", "ptb-lstm", "wikitext2-lstm", "multiwoz-bilstm")
_ANALYSES = (
    Analysis(
        "staleness",
        "Staleness",
        "How old the gradients in the memory are.",
        ("mnist-mlp", "mnist-logreg"),
        inside.staleness_trials,
        inside.staleness,
        of_one_optimizer=True,
    ),
    Analysis(
        "gt-vs-gc",
        "g_t against g_c",
        "Norms of the stored gradients beside that of the current one.",
        ("cifar10-convnet", "cifar100-convnet", "snli-lstm", "ptb-lstm", "multiwoz-roberta"),
        inside.norms_trials,
        inside.norms,
        of_one_optimizer=True,
    ),
    Analysis(
        "sensitivity",
        "Sensitivity",
        "How the outcome depends on the memory's size and on the decay of its priorities.",
        ("mnist-mlp", "cifar10-convnet", *_LARGE),
        outcomes.sensitivity_trials,
        outcomes.sensitivity,
        of_one_optimizer=True,
    ),
    Analysis(
        "noise",
        "Label noise",
        "Accuracy with a share of the labels flipped.",
        ("noise-logreg",),
        outcomes.noise_trials,
        outcomes.noise,
        varied=("flip_y",),
    ),
    Analysis(
        "runtime",
        "Run time",
        "What a larger memory costs, beside the paper's table.",
        tuple(RUN_TIMES),
        cost.runtime_trials,
        cost.runtime,
        timed=True,
    ),
    Analysis(
        "convex",
        "Convex tasks",
        "Training loss where there is but one minimum.",
        ("covtype-logreg", "rcv1-logreg", "mnist-logreg@convex", "reuters-logreg"),
        outcomes.convex_trials,
        outcomes.convex,
    ),
    Analysis(
        "spectrum",
        "Bytes per parameter",
        "The state that every optimizer keeps.",
        ("digits-mlp",),
        measure=cost.bytes_per_parameter,
    ),
    Analysis(
        "damping",
        "Damping",
        "What a damping memory (_F) does to the gradient.",
        ("digits-mlp", "cifar10-convnet", "ptb-lstm"),
        inside.damping_trials,
        inside.damping,
    ),
    Analysis(
        "ablation",
        "Ablations",
        "Selection, replacement and aggregation, varied one at a time.",
        ("cifar10-convnet", "ptb-lstm"),
        outcomes.ablation_trials,
        outcomes.ablation,
    ),
)
ANALYSES: dict[str, Analysis] = {analysis.name: analysis for analysis in _ANALYSES}

__all__ = ["ANALYSES", "Analysis", "Options"]
