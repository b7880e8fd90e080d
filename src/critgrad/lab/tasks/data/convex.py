"""The convex tasks' rows: CoverType, the RCV1 rows that there are, and Reuters-21578 as TF-IDF."""

from __future__ import annotations

import io
import json
import math
import re
from collections import Counter
from collections.abc import Iterable

import numpy as np

from ...errors import LabError
from .dataset import Parts
from .files import Open

Row = tuple[list[int], list[float]]

SEED = 100
N_ROWS = 5000
RCV1_FEATURES = 47153
WORD = re.compile(r"\b\w\w+\b")
MIN_DOCUMENTS = 3


def draw(n: int, size: int = N_ROWS) -> np.ndarray:
    """Draw rows with the paper's seed: one index array, for features and labels alike."""
    return np.random.RandomState(SEED).permutation(n)[:size]


def cuts(n: int) -> dict[str, slice]:
    """80 / 10 / 10 of the drawn rows, in drawn order."""
    a, b = n * 8 // 10, n * 9 // 10
    return {"train": slice(0, a), "valid": slice(a, b), "test": slice(b, n)}


def covtype_rows(x: np.ndarray, y: np.ndarray) -> Parts:
    """Standardise drawn rows by the mean and deviation of the training rows.

    The sums are taken over integers and are therefore exact: every machine gets the same bits, and the same hash.
    """
    x, parts = x.astype(np.int64), cuts(len(y))
    train = x[parts["train"]]
    n = len(train)
    total, squares = train.sum(0), (train * train).sum(0)
    variance = (n * squares - total * total) / n**2
    std = np.where(variance > 0, np.sqrt(variance), 1.0)  # a soil type that no training row has stays 0 there
    z = ((x - total / n) / std).astype(np.float32)
    arrays = {f"{part}_x": z[rows] for part, rows in parts.items()}
    arrays |= {f"{part}_y": (y[rows] - 1).astype(np.uint8) for part, rows in parts.items()}
    note = f"{len(y):,} rows drawn with seed 100 (one index for rows and labels), split 80/10/10 in drawn order, "
    return Parts(arrays, {"classes": 7, "features": 54}, note + "standardised on the training rows.")


def covtype_npz(read: Open) -> Parts:
    """CoverType with its 44 one-hot columns kept as two indices."""
    with np.load(io.BytesIO(read("covtype/covtype.npz")), allow_pickle=False) as file:
        rows = draw(len(file["y"]))
        wilderness = np.eye(4, dtype=np.int16)[file["wilderness"][rows]]
        soil = np.eye(40, dtype=np.int16)[file["soil"][rows]]
        return covtype_rows(np.hstack([file["numeric"][:, rows].T, wilderness, soil]), file["y"][rows])


def covtype_csv(read: Open) -> Parts:
    """CoverType from UCI's own file: 54 columns and the class, separated by commas."""
    lines = read("covtype/covtype.data").splitlines()
    rows = np.array([lines[row].split(b",") for row in draw(len(lines))]).astype(np.int64)
    return covtype_rows(rows[:, :54], rows[:, 54])


def csr(prefix: str, rows: Iterable[Row]) -> dict[str, np.ndarray]:
    """Store sparse rows as three arrays: row i has the entries ``rows[i]`` to ``rows[i + 1]``."""
    columns: list[int] = []
    values: list[float] = []
    ends = [0]
    for row_columns, row_values in rows:
        columns += row_columns
        values += row_values
        ends.append(len(columns))
    return {
        f"{prefix}_values": np.array(values, np.float32),
        f"{prefix}_columns": np.array(columns, np.int32),
        f"{prefix}_rows": np.array(ends, np.int64),
    }


def libsvm(text: str) -> tuple[list[Row], np.ndarray]:
    """Read LIBSVM lines, ``label index:value ...``; indices count from 1 there and from 0 here."""
    rows: list[Row] = []
    labels: list[int] = []
    for number, line in enumerate(text.splitlines(), 1):
        try:
            label, *entries = line.split("#", 1)[0].split()
            pairs = [entry.split(":") for entry in entries]
            rows.append(([int(column) - 1 for column, _ in pairs], [float(value) for _, value in pairs]))
            labels.append(int(float(label)))
        except ValueError as error:
            raise LabError(f"Invalid LIBSVM line {number}: {line[:60]!r}") from error
    return rows, np.array(labels)


def rcv1(read: Open) -> Parts:
    """CCAT against the rest, on the rows that are there."""
    train, train_y = libsvm(read("rcv1/rcv1_ccat_train.svm").decode())
    test, test_y = libsvm(read("rcv1/rcv1_ccat_test.svm").decode())
    cut = len(train) - round(len(train) / 10)
    arrays = csr("train_x", train[:cut]) | csr("valid_x", train[cut:]) | csr("test_x", test)
    labels = {"train_y": train_y[:cut], "valid_y": train_y[cut:], "test_y": test_y}
    arrays |= {name: (y > 0).astype(np.uint8) for name, y in labels.items()}
    note = (
        f"{len(train) + len(test):,} rows of RCV1-v2: test is the {len(test)} held-out rows, valid the last tenth of "
    )
    return Parts(arrays, {"classes": 2, "features": RCV1_FEATURES}, note + f"the other {len(train):,}.")


def tfidf(documents: list[str], n_train: int, min_documents: int = MIN_DOCUMENTS) -> tuple[list[Row], list[str]]:
    """Return rows of unit length and the vocabulary; what is counted is counted on the first ``n_train`` rows.

    Weight = count x (ln((1 + n) / (1 + df)) + 1), over lower-case words of two letters or more that stand in at
    least ``min_documents`` training documents.
    """
    counts = [Counter(WORD.findall(document.lower())) for document in documents]
    frequency = Counter(word for count in counts[:n_train] for word in count)
    words = sorted(word for word, df in frequency.items() if df >= min_documents)
    column = {word: i for i, word in enumerate(words)}
    idf = {word: math.log((1 + n_train) / (1 + frequency[word])) + 1 for word in words}
    rows: list[Row] = []
    for count in counts:
        known = sorted((column[word], number * idf[word]) for word, number in count.items() if word in column)
        norm = math.sqrt(math.fsum(value * value for _, value in known)) or 1.0
        rows.append(([c for c, _ in known], [value / norm for _, value in known]))
    return rows, words


def reuters(read: Open) -> Parts:
    """Reuters-21578, earn against the rest, among the documents that have a body and topics."""
    documents = [json.loads(line) for line in read("reuters21578/reuters21578.jsonl").splitlines()]
    usable = [document for document in documents if document["topics"] and document["body"]]
    chosen = [usable[row] for row in draw(len(usable))]
    parts = cuts(len(chosen))
    rows, words = tfidf([f"{d['title']}\n{d['body']}" for d in chosen], parts["train"].stop)
    y = np.array(["earn" in document["topics"] for document in chosen], np.uint8)
    arrays: dict[str, np.ndarray] = {}
    for part, take in parts.items():
        arrays |= csr(f"{part}_x", rows[take]) | {f"{part}_y": y[take]}
    note = (
        f"{len(chosen):,} of the {len(usable):,} documents with body and topics, drawn with seed 100, split 80/10/10 in "
        f"drawn order; TF-IDF of the words in at least {MIN_DOCUMENTS} training documents; earn is 1."
    )
    return Parts(arrays, {"classes": 2, "features": len(words)}, note)
