"""The noise study's synthetic data: scikit-learn's ``make_classification``, in the one setting that the paper uses.

Written here so that a run needs numpy alone; a test compares it with scikit-learn bit for bit.
"""

from __future__ import annotations

import numpy as np

from .dataset import Parts

SEED = 1403
N_SAMPLES = 500
N_FEATURES = 10
N_INFORMATIVE = 7
CLASS_SEP = 0.5
SHIFT = 0.4


def make_classification(flip_y: float, n_samples: int = N_SAMPLES, seed: int = SEED) -> tuple[np.ndarray, np.ndarray]:
    """Two Gaussian clouds at two corners of a cube in 7 dimensions, 3 features of pure noise, labels partly redrawn.

    The draws come in scikit-learn's order from the same stream, or the data would not be the paper's. For the same
    reason the points are those of every noise level, but their order, and so the split, is another at each.
    """
    rng = np.random.RandomState(seed)
    corners = rng.permutation(2**N_INFORMATIVE)[:2]
    bits = corners[:, None] >> np.arange(N_INFORMATIVE)[::-1] & 1
    centroids = bits * (2.0 * CLASS_SEP) - CLASS_SEP

    x = np.zeros((n_samples, N_FEATURES))
    y = np.zeros(n_samples, dtype=np.int64)
    x[:, :N_INFORMATIVE] = rng.standard_normal((n_samples, N_INFORMATIVE))
    half = n_samples - n_samples // 2
    for label, rows in enumerate((slice(0, half), slice(half, n_samples))):
        mixing = 2 * rng.uniform(size=(N_INFORMATIVE, N_INFORMATIVE)) - 1
        y[rows] = label
        x[rows, :N_INFORMATIVE] = np.dot(x[rows, :N_INFORMATIVE], mixing) + centroids[label]
    x[:, N_INFORMATIVE:] = rng.standard_normal((n_samples, N_FEATURES - N_INFORMATIVE))

    # A flipped label is drawn anew, so half of them stay what they were: flip_y = 1 is pure chance, not inversion.
    flip = rng.uniform(size=n_samples) < flip_y
    y[flip] = rng.randint(2, size=int(flip.sum()))

    rows_order = np.arange(n_samples)
    rng.shuffle(rows_order)
    columns = np.arange(N_FEATURES)
    rng.shuffle(columns)
    return (x + SHIFT)[rows_order][:, columns], y[rows_order]


def noise(flip_y: float = 0.0, n_samples: int = N_SAMPLES) -> Parts:
    """The data at one noise level, split 80/20."""
    x, y = make_classification(flip_y, n_samples)
    cut = n_samples * 4 // 5
    x32, y8 = x.astype(np.float32), y.astype(np.uint8)
    arrays: dict[str, np.ndarray] = {
        "train_x": x32[:cut],
        "train_y": y8[:cut],
        "valid_x": x32[cut:],
        "valid_y": y8[cut:],
    }
    arrays |= {"test_x": x32[cut:], "test_y": y8[cut:]}
    info = {"classes": 2, "features": N_FEATURES, "flip_y": flip_y}
    note = (
        f"make_classification of {n_samples} rows with flip_y {flip_y:g} and balanced classes (the paper does not give "
        "its class_imbalance), 80/20 in generated order; test is the same rows as valid."
    )
    return Parts(arrays, info, note)
