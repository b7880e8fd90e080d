"""Images: the bundled digits, MNIST's IDX files, CIFAR's mosaics and CIFAR's original binary archives."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Callable

import numpy as np

from ...errors import LabError, MissingPackageError
from .dataset import Parts
from .files import Open

N_VALID = 300
N_TEST = 300
IDX_UBYTE = 8
SIDE = 32
PIXELS = 3 * SIDE * SIDE


def digits(read: Open) -> Parts:
    """The bundled digits, split 1,197 / 300 / 300 by a fixed permutation."""
    with np.load(io.BytesIO(read("digits.npz")), allow_pickle=False) as file:
        images, labels = file["images"], file["labels"]
    # RandomState, not default_rng: numpy promises that its stream never changes.
    order = np.random.RandomState(0).permutation(len(labels))
    cut = len(labels) - N_VALID - N_TEST
    rows = {"train": order[:cut], "valid": order[cut : cut + N_VALID], "test": order[cut + N_VALID :]}
    arrays = {f"{part}_x": images[take] for part, take in rows.items()}
    arrays |= {f"{part}_y": labels[take] for part, take in rows.items()}
    info = {"classes": 10, "features": 64, "shape": [8, 8], "scale": 1 / 16}
    return Parts(arrays, info, "All 1,797 images, split 1,197 / 300 / 300 at random over images, not over writers.")


def idx(data: bytes) -> np.ndarray:
    """Read an IDX file of unsigned bytes: two zeros, the type, the rank, the sizes, the values."""
    if len(data) < 4 or data[:2] != b"\0\0" or data[2] != IDX_UBYTE:
        raise LabError(f"Invalid IDX header: {data[:4]!r}, expected two zero bytes and type 0x08 (unsigned byte)")
    rank = data[3]
    shape = [int(size) for size in np.frombuffer(data, ">u4", rank, offset=4)]
    values = np.frombuffer(data, np.uint8, offset=4 + 4 * rank)
    if values.size != int(np.prod(shape)):
        raise LabError(f"Invalid IDX file: {values.size} values, expected {shape} of them")
    return values.reshape(shape).copy()


def split_last(x: np.ndarray, y: np.ndarray, n_valid: int) -> dict[str, np.ndarray]:
    """Cut the last ``n_valid`` training rows off for validation."""
    cut = len(y) - n_valid
    return {"train_x": x[:cut], "train_y": y[:cut], "valid_x": x[cut:], "valid_y": y[cut:]}


def mnist(read: Open) -> Parts:
    """MNIST as rows of 784 pixels."""
    x, y = idx(read("mnist/train-images-idx3-ubyte")), idx(read("mnist/train-labels-idx1-ubyte"))
    test_x, test_y = idx(read("mnist/t10k-images-idx3-ubyte")), idx(read("mnist/t10k-labels-idx1-ubyte"))
    arrays = split_last(x.reshape(len(x), -1), y, 10_000)
    arrays |= {"test_x": test_x.reshape(len(test_x), -1), "test_y": test_y}
    info = {"classes": 10, "features": 784, "shape": [28, 28], "scale": 1 / 255, "mean": 0.1307, "std": 0.3081}
    return Parts(arrays, info, "All 70,000 images; valid is the last 10,000 of the training file.")


def mosaic(data: bytes) -> np.ndarray:
    """Cut a lossless picture of images, row by row, into [N, 3, 32, 32]."""
    try:
        from PIL import Image
    except ImportError as error:
        raise MissingPackageError(
            "Reading the CIFAR mosaics needs Pillow: `pip install Pillow`, or put the original "
            "cifar-10-binary.tar.gz / cifar-100-binary.tar.gz, or a prepared npz, into the data folder."
        ) from error
    picture = np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))
    height, width = picture.shape[:2]
    if height % SIDE or width % SIDE:
        raise LabError(f"Invalid mosaic: {width} x {height} pixels, expected multiples of {SIDE}")
    tiles = picture.reshape(height // SIDE, SIDE, width // SIDE, SIDE, 3).transpose(0, 2, 4, 1, 3)
    return np.ascontiguousarray(tiles).reshape(-1, 3, SIDE, SIDE)


def records(data: bytes, labels: int) -> tuple[np.ndarray, np.ndarray]:
    """Read CIFAR's binary records: ``labels`` bytes, of which the last counts, and 3,072 pixels, channels first."""
    size = labels + PIXELS
    if len(data) % size:
        raise LabError(f"Invalid CIFAR file: {len(data)} bytes, expected a multiple of {size}")
    rows = np.frombuffer(data, np.uint8).reshape(-1, size)
    return rows[:, labels:].reshape(-1, 3, SIDE, SIDE).copy(), rows[:, labels - 1].copy()


def members(data: bytes, names: tuple[str, ...]) -> list[bytes]:
    """Take members out of a tar by their file names; nothing is written to disk."""
    found: dict[str, bytes] = {}
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        for member in archive:
            stream = archive.extractfile(member) if member.isfile() else None
            if stream is not None:
                found[member.name.rsplit("/", 1)[-1]] = stream.read()
    absent = [name for name in names if name not in found]
    if absent:
        raise LabError(f"Invalid archive: {', '.join(absent)} not in it, found {', '.join(sorted(found))}")
    return [found[name] for name in names]


#: Mean and standard deviation of the 50,000 training images, per channel.
STATISTICS = {
    10: {"mean": [0.4914, 0.4822, 0.4465], "std": [0.2470, 0.2435, 0.2616]},
    100: {"mean": [0.5071, 0.4865, 0.4409], "std": [0.2673, 0.2564, 0.2762]},
}


def cifar_parts(x: np.ndarray, y: np.ndarray, test: tuple[np.ndarray, np.ndarray], classes: int, order: str) -> Parts:
    """Split and describe; the same for both sets and both origins."""
    arrays = split_last(x, y, 10_000) | {"test_x": test[0], "test_y": test[1]}
    info = {"classes": classes, "shape": [3, SIDE, SIDE], "scale": 1 / 255, **STATISTICS[classes]}
    return Parts(arrays, info, f"All 60,000 images in {order} order; valid is the last 10,000 of train.")


def cifar_mosaics(folder: str, classes: int, order: str) -> Callable[[Open], Parts]:
    """Return the reader of one CIFAR set from its six mosaics and its labels."""

    def reader(read: Open) -> Parts:
        with np.load(io.BytesIO(read(f"{folder}/labels.npz")), allow_pickle=False) as file:
            y, test_y = file["train"], file["test"]
        x = np.concatenate([mosaic(read(f"{folder}/train_{k}.webp")) for k in range(1, 6)])
        return cifar_parts(x, y, (mosaic(read(f"{folder}/test.webp")), test_y), classes, order)

    return reader


def cifar10_archive(read: Open) -> Parts:
    """CIFAR-10 from cifar-10-binary.tar.gz."""
    names = *(f"data_batch_{k}.bin" for k in range(1, 6)), "test_batch.bin"
    *train, test = [records(member, 1) for member in members(read("cifar10/cifar-10-binary.tar"), names)]
    x, y = (np.concatenate(column) for column in zip(*train))
    return cifar_parts(x, y, test, 10, "the original")


def cifar100_archive(read: Open) -> Parts:
    """CIFAR-100 with its fine labels from cifar-100-binary.tar.gz."""
    train, test = (records(m, 2) for m in members(read("cifar100/cifar-100-binary.tar"), ("train.bin", "test.bin")))
    return cifar_parts(*train, test, 100, "the original")
