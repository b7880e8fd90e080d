"""The paper's tasks, and ours: a registry of records (``TASKS``) and the problems they make."""

from .base import ACCURACY, BLEU, PERPLEXITY, TRAIN_LOSS, Batch, Metric, Problem, Scores, SummingProblem, Task
from .registry import TASKS, problem_of, task_of

__all__ = [
    "ACCURACY",
    "BLEU",
    "PERPLEXITY",
    "TASKS",
    "TRAIN_LOSS",
    "Batch",
    "Metric",
    "Problem",
    "Scores",
    "SummingProblem",
    "Task",
    "problem_of",
    "task_of",
]
