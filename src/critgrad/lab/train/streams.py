"""Random numbers by name: initialisation, data order and dropout each have a stream of their own.

A stream is keyed by the trial's seed and its purpose, never by the optimizer, so that two optimizers with the same seed
start from the same weights, see the same batches and drop the same units (common random numbers).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import torch


def stream_seed(seed: int, *purpose: object) -> int:
    """A seed for one purpose; neighbouring seeds share nothing.

    >>> stream_seed(0, "order", 1) == stream_seed(0, "order", 2)
    False
    """
    text = ":".join(map(str, (*purpose, seed)))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:7], "big")


def stream(seed: int, *purpose: object, device: torch.device | str = "cpu") -> torch.Generator:
    """A generator for one purpose."""
    return torch.Generator(device=device).manual_seed(stream_seed(seed, *purpose))


@contextmanager
def global_stream(seed: int, *purpose: object) -> Iterator[None]:
    """Seed torch's global generators for a while (layers draw their weights from them), then put them back."""
    with torch.random.fork_rng(devices=range(torch.cuda.device_count()) if torch.cuda.is_initialized() else []):
        # Not torch.manual_seed: it looks for every kind of accelerator each time, a share of a tiny run's time.
        torch.default_generator.manual_seed(stream_seed(seed, *purpose))
        if torch.cuda.is_initialized():
            torch.cuda.manual_seed_all(stream_seed(seed, *purpose))
        yield
