"""The file of the recorded runs: a header in plain JSON, then all arrays packed and compressed as one.

The page embeds both parts as they are, so this format is what the browser reads, too.
"""

from __future__ import annotations

import json
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import LabError
from .codec import Codes, pack, unpack

DATA = Path(__file__).with_name("frames.bin")
MAGIC = b"critgrad playground 1\n"


def write(path: Path, header: dict[str, Any], arrays: dict[str, Codes]) -> None:
    """Write the file; ``header["arrays"]`` lists names and shapes, in the order of the body."""
    for name, shape in header["arrays"]:
        if arrays[name].shape != tuple(shape):
            raise LabError(f"Invalid array {name}: shape {arrays[name].shape}, expected {tuple(shape)}")
    text = json.dumps(header, separators=(",", ":")).encode()
    body = zlib.compress(b"".join(pack(arrays[name]) for name, _ in header["arrays"]), 9)
    path.write_bytes(MAGIC + struct.pack("<I", len(text)) + text + body)


def read(path: Path = DATA) -> tuple[dict[str, Any], bytes]:
    """The header and the compressed body."""
    data = path.read_bytes()
    if not data.startswith(MAGIC):
        raise LabError(f"Invalid frames file: {path}, expected one by `python -m critgrad.lab.playground.frames`")
    start = len(MAGIC) + 4
    (size,) = struct.unpack("<I", data[len(MAGIC) : start])
    return json.loads(data[start : start + size]), data[start + size :]


def arrays_of(header: dict[str, Any], body: bytes) -> dict[str, Codes]:
    """The arrays of a file that was read."""
    data, at = zlib.decompress(body), 0
    arrays: dict[str, Codes] = {}
    for name, shape in header["arrays"]:
        size = 2 * int(np.prod(shape))
        arrays[name] = unpack(data[at : at + size], tuple(shape))
        at += size
    return arrays
