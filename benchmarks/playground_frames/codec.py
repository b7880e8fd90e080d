"""Small exact integers for the frames: numbers become 16-bit codes, codes become bytes that compress well.

The page undoes ``pack`` and the two scales in ``web/data.js``, twenty lines that must say the same as these.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

TOP = 65535  # the largest code

# Losses, norms and priorities span decades: their codes are steps of their logarithm. Code 0 is "zero, or less than
# the smallest value", so a step is a factor of 1.00084 and the rounding error at most 0.05 %.
LOG_LOW, LOG_HIGH = -16.0, 8.0
LOG_ERROR = 10 ** ((LOG_HIGH - LOG_LOW) / (TOP - 1) / 2) - 1

Codes = NDArray[np.uint16]


def linear_codes(values: NDArray[Any], low: float, high: float) -> Codes:
    """Codes of values in ``[low, high]``."""
    return np.round((np.asarray(values) - low) / (high - low) * TOP).astype(np.uint16)


def linear_values(codes: NDArray[Any], low: float, high: float) -> NDArray[np.float64]:
    """What ``linear_codes`` wrote down."""
    return low + codes.astype(np.float64) / TOP * (high - low)


def log_codes(values: NDArray[Any]) -> Codes:
    """Codes of values that are zero or more."""
    values = np.asarray(values, dtype=np.float64)
    if values.size and not (values.min() >= 0 and values.max() <= 10**LOG_HIGH):
        raise ValueError(f"Invalid values: {values.min()} to {values.max()}, expected 0 to {10**LOG_HIGH:g}")
    logs = np.log10(np.maximum(values, 10 ** (LOG_LOW - 1)))
    return np.round(1 + (logs - LOG_LOW) / (LOG_HIGH - LOG_LOW) * (TOP - 1)).clip(0, TOP).astype(np.uint16)


def log_values(codes: NDArray[Any]) -> NDArray[np.float64]:
    """What ``log_codes`` wrote down."""
    logs = LOG_LOW + (codes.astype(np.float64) - 1) / (TOP - 1) * (LOG_HIGH - LOG_LOW)
    return np.where(codes == 0, 0.0, 10.0**logs)


def polar_codes(vectors: NDArray[Any]) -> tuple[Codes, Codes]:
    """Codes of the lengths and the angles of vectors in the plane (last axis)."""
    x, y = vectors[..., 0], vectors[..., 1]
    return log_codes(np.hypot(x, y)), linear_codes(np.arctan2(y, x), -math.pi, math.pi)


def polar_values(lengths: NDArray[Any], angles: NDArray[Any]) -> NDArray[np.float64]:
    """What ``polar_codes`` wrote down."""
    r, a = log_values(lengths), linear_values(angles, -math.pi, math.pi)
    return np.stack([r * np.cos(a), r * np.sin(a)], axis=-1)


def pack(codes: NDArray[Any]) -> bytes:
    """Differences along the last axis (time), all low bytes before all high ones: most of them repeat."""
    codes = np.asarray(codes, dtype=np.uint16)
    first = np.zeros((*codes.shape[:-1], 1), dtype=np.uint16)
    steps = np.diff(codes, axis=-1, prepend=first)  # modulo 65536
    return (steps & 255).astype(np.uint8).tobytes() + (steps >> 8).astype(np.uint8).tobytes()


def unpack(data: bytes, shape: tuple[int, ...]) -> Codes:
    """What ``pack`` wrote down."""
    planes = np.frombuffer(data, dtype=np.uint8).reshape(2, *shape).astype(np.uint16)
    return np.cumsum(planes[0] + (planes[1] << 8), axis=-1, dtype=np.uint16)
