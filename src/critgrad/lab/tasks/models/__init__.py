"""The networks of the tasks: plain modules that know nothing of data, loss or optimizer.

Those of tasks that the bank engine runs (``dense``, ``LeNet``) work under ``torch.func.functional_call`` and ``vmap``:
they draw no random numbers themselves and change nothing in place.
"""

from .convnet import DeepConvNet, LeNet
from .dense import MLP, LogisticRegression
from .dialogue import Seq2Seq
from .gpt import GPT
from .language import LanguageModel
from .residual import ResNet
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
