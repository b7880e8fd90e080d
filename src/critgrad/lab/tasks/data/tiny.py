"""A synthetic twin of every data set: the same arrays and types, a few hundred rows, and something to learn.

Tests and demos train on them within a second. They prove that the plumbing works and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any

import numpy as np

from .convex import csr
from .dataset import Parts, vocabulary
from .noise import noise

SEED = 20
SIZES = {"train": 320, "valid": 80, "test": 80}
STREAM = {"train": 6000, "valid": 1500, "test": 1500}
N_WORDS = 50


def words(special: tuple[str, ...], n: int) -> np.ndarray:
    """A vocabulary of ``n`` words, the special ones first."""
    return vocabulary([*special, *(f"w{i}" for i in range(len(special), n))])


def images(shape: tuple[int, ...], classes: int, top: int, info: dict[str, Any], size: int = 1) -> Parts:
    """One random picture per class, seen through noise."""
    rng = np.random.default_rng(SEED)
    template = rng.uniform(0, top, (classes, *shape))
    arrays: dict[str, np.ndarray] = {}
    for part, n in SIZES.items():
        y = rng.permutation(np.arange(n * size) % classes)
        seen = template[y] + rng.normal(0, 0.25 * top, (len(y), *shape))
        arrays[f"{part}_x"] = np.clip(np.rint(seen), 0, top).astype(np.uint8)
        arrays[f"{part}_y"] = y.astype(np.uint8)
    return Parts(arrays, {"classes": classes, **info}, "Synthetic: class templates with noise.")


def rows(features: int, classes: int) -> Parts:
    """Gaussian features, labels by the largest of ``classes`` noisy linear scores."""
    rng = np.random.default_rng(SEED)
    weight = rng.standard_normal((features, classes))
    arrays: dict[str, np.ndarray] = {}
    for part, n in SIZES.items():
        x = rng.standard_normal((n, features)).astype(np.float32)
        scores = x @ weight + rng.normal(0, 1.0, (n, classes))
        arrays |= {f"{part}_x": x, f"{part}_y": scores.argmax(1).astype(np.uint8)}
    return Parts(arrays, {"classes": classes, "features": features}, "Synthetic: a noisy linear model.")


def sparse(features: int = 500, entries: int = 20) -> Parts:
    """Rows of unit length with a few entries; each class prefers its own half of the columns."""
    rng = np.random.default_rng(SEED)
    arrays: dict[str, np.ndarray] = {}
    for part, n in SIZES.items():
        y = rng.integers(0, 2, n)
        made = []
        for label in y:
            preference = np.full(features, 1.0)
            preference[label * features // 2 : (label + 1) * features // 2] = 2.0
            columns = np.sort(rng.choice(features, entries, replace=False, p=preference / preference.sum()))
            values = rng.uniform(0.5, 1.5, entries)
            made.append((columns.tolist(), (values / np.sqrt((values * values).sum())).tolist()))
        arrays |= csr(f"{part}_x", made) | {f"{part}_y": y.astype(np.uint8)}
    return Parts(arrays, {"classes": 2, "features": features}, "Synthetic: sparse rows of two topics.")


def lm() -> Parts:
    """A Markov chain in which each word has three likely successors."""
    rng = np.random.default_rng(SEED)
    successors = np.array([rng.choice(N_WORDS, 3, replace=False) for _ in range(N_WORDS)])
    arrays: dict[str, np.ndarray] = {}
    for part, n in STREAM.items():
        choice = rng.choice(3, n, p=[0.7, 0.2, 0.1])
        stray = np.where(rng.uniform(size=n) < 0.05, rng.integers(0, N_WORDS, n), -1)
        stream, word = np.empty(n, np.int32), 0
        for i in range(n):
            stream[i] = word
            word = int(stray[i]) if stray[i] >= 0 else int(successors[word, choice[i]])
        arrays[part] = stream
    arrays["vocab"] = words(("<eos>",), N_WORDS)
    return Parts(arrays, {"vocab_size": N_WORDS, "eos": 0}, "Synthetic: a Markov chain of 50 words.")


def snli(length: int = 20) -> Parts:
    """The hypothesis repeats the premise's words, changes half of them, or takes the opposite of each (word ^ 1)."""
    rng = np.random.default_rng(SEED)
    arrays: dict[str, np.ndarray] = {}
    for part, n in SIZES.items():
        y = rng.permutation(np.arange(n) % 3)
        premise = np.zeros((n, length), np.int32)
        hypothesis = np.zeros((n, length), np.int32)
        for i, label in enumerate(y):
            k = int(rng.integers(4, 9))
            said = rng.integers(2, N_WORDS, k)
            other = np.where(rng.uniform(size=k) < 0.5, rng.integers(2, N_WORDS, k), said)
            premise[i, :k] = said
            hypothesis[i, :k] = (said, other, said ^ 1)[label]
        arrays |= {f"{part}_premise": premise, f"{part}_hypothesis": hypothesis, f"{part}_y": y.astype(np.uint8)}
    arrays["vocab"] = words(("<pad>", "<unk>"), N_WORDS)
    info: dict[str, Any] = {"vocab_size": N_WORDS, "classes": 3, "length": length, "pad": 0, "unk": 1}
    info["labels"] = ["entailment", "neutral", "contradiction"]
    return Parts(arrays, info, "Synthetic: repeated, half changed or opposite words.")


def phrases(rng: np.random.Generator, n: int, low: int) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Sentences of 3 to 6 words and their answers: the same words, each replaced by its partner."""
    partner = np.arange(N_WORDS)
    partner[low:] = low + (np.arange(N_WORDS - low) + 7) % (N_WORDS - low)
    asked = [rng.integers(low, N_WORDS, int(rng.integers(3, 7))) for _ in range(n)]
    return asked, [partner[sentence] for sentence in asked]


def dialogue(source_length: int = 12, target_length: int = 8) -> Parts:
    """Answers that map each word of the question to its partner."""
    rng = np.random.default_rng(SEED)
    special = ("<pad>", "<unk>", "<sos>", "<eos>", "<user>", "<system>")
    arrays: dict[str, np.ndarray] = {}
    for part, n in SIZES.items():
        source, target = np.zeros((n, source_length), np.int32), np.zeros((n, target_length), np.int32)
        for i, (asked, answered) in enumerate(zip(*phrases(rng, n, len(special)))):
            source[i, : len(asked) + 1] = [special.index("<user>"), *asked]
            target[i, : len(answered) + 1] = [*answered, special.index("<eos>")]
        arrays |= {f"{part}_source": source, f"{part}_target": target}
    arrays["vocab"] = words(special, N_WORDS)
    info = {"vocab_size": N_WORDS, "pad": 0, "unk": 1, "sos": 2, "eos": 3}
    info |= {"source_length": source_length, "target_length": target_length}
    return Parts(arrays, info, "Synthetic: each word of the answer is the partner of a word of the question.")


def causal(length: int = 24) -> Parts:
    """The same mapping, as ``<s> context </s> response </s>`` in one row."""
    rng = np.random.default_rng(SEED)
    bos, pad, eos = 0, 1, 2
    arrays: dict[str, np.ndarray] = {}
    for part, n in SIZES.items():
        tokens, response = np.full((n, length), pad, np.int32), np.empty(n, np.int32)
        for i, (asked, answered) in enumerate(zip(*phrases(rng, n, 4))):
            row = [bos, *asked, eos, *answered, eos]
            tokens[i, : len(row)] = row
            response[i] = len(asked) + 2
        arrays |= {f"{part}_tokens": tokens, f"{part}_response": response}
    info = {"vocab_size": N_WORDS, "pad": pad, "bos": bos, "eos": eos, "unk": 3, "length": length}
    return Parts(arrays, info, "Synthetic: each token of the response is the partner of a token of the context.")


DIGITS = {"features": 64, "shape": [8, 8], "scale": 1 / 16}
MNIST = {"features": 784, "shape": [28, 28], "scale": 1 / 255, "mean": 0.1307, "std": 0.3081}
CIFAR = {"shape": [3, 32, 32], "scale": 1 / 255, "mean": [0.5, 0.5, 0.5], "std": [0.25, 0.25, 0.25]}

TINY: Mapping[str, Callable[..., Parts]] = MappingProxyType(
    {
        "digits": partial(images, (64,), 10, 16, DIGITS),
        "mnist": partial(images, (784,), 10, 255, MNIST),
        "cifar10": partial(images, (3, 32, 32), 10, 255, CIFAR),
        "cifar100": partial(images, (3, 32, 32), 100, 255, CIFAR, size=2),
        "covtype": partial(rows, 54, 7),
        "rcv1": sparse,
        "reuters": sparse,
        "noise": partial(noise, n_samples=200),  # at any of its levels
        "ptb": lm,
        "wikitext2": lm,
        "snli": snli,
        "multiwoz": dialogue,
        "sgd": dialogue,
        "multiwoz-roberta": causal,
        "pycode": lm,
    }
)
