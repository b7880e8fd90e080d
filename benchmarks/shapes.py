"""Parameter shapes of the models that the benchmarks step: shapes only, no model is run."""

from __future__ import annotations

import math

Shape = tuple[int, ...]


def digits() -> list[Shape]:
    """64 -> 32 -> 10: a model that is trained by the thousand."""
    return [(32, 64), (32,), (10, 32), (10,)]


def mlp() -> list[Shape]:
    """784 -> 32 -> 10, as for MNIST."""
    return [(32, 784), (32,), (10, 32), (10,)]


def lstm() -> list[Shape]:
    """The paper's PTB language model: embedding 64, one LSTM layer of 128, 10,000 words."""
    recurrent = [(512, 64), (512, 128), (512,), (512,)]
    return [(10_000, 64), *recurrent, (10_000, 128), (10_000,)]


def transformer(width: int = 512, layers: int = 6) -> list[Shape]:
    """The layers of a small encoder: fused q/k/v, output, two feed-forward matrices, two norms each."""
    layer = [
        (3 * width, width),
        (3 * width,),
        (width, width),
        (width,),
        (4 * width, width),
        (4 * width,),
        (width, 4 * width),
        (width,),
        *[(width,)] * 4,
    ]
    return layer * layers


def roberta_base() -> list[Shape]:
    """RoBERTa-base with its language-model head; the decoder is tied to the embedding and only has a bias."""
    words, width, inner, positions = 50_265, 768, 3072, 514
    norm = [(width,), (width,)]
    dense = [(width, width), (width,)]
    embeddings = [(words, width), (positions, width), (1, width), *norm]
    layer = [*dense * 3, *dense, *norm, (inner, width), (inner,), (width, inner), (width,), *norm]
    head = [*dense, *norm, (words,)]
    return [*embeddings, *layer * 12, *head]


def tiny() -> list[Shape]:
    return [(32,)] * 1000


MODELS = {
    "digits": digits,
    "mlp": mlp,
    "lstm": lstm,
    "transformer": transformer,
    "roberta": roberta_base,
    "tiny": tiny,
}


def count(shapes: list[Shape]) -> int:
    return sum(math.prod(shape) for shape in shapes)
