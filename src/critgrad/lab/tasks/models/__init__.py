"""The networks of the tasks: plain modules that know nothing of data, loss or optimizer.

Those of tasks that the bank engine runs (``MLP``, ``LeNet``) work under ``torch.func.functional_call`` and ``vmap``:
they draw no random numbers themselves and change nothing in place.
"""

from .dialogue import Seq2Seq
from .gpt import GPT
from .images import MLP, DeepConvNet, LeNet, LogisticRegression, ResNet
from .language import LanguageModel
from .sentence import ENCODERS, PairClassifier

__all__ = [
    "ENCODERS",
    "GPT",
    "MLP",
    "DeepConvNet",
    "LanguageModel",
    "LeNet",
    "LogisticRegression",
    "PairClassifier",
    "ResNet",
    "Seq2Seq",
]
