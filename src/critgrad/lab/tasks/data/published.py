"""The published files (``published.json``): path, hash of the published form, hash of the content, address, origin.

The hash of the content was taken from the unpacked file. Where an address gives the content in another packing, the
content's hash is what it is held to; where only an archive's hash is known, nothing but that archive is accepted.
"""

from __future__ import annotations

import json
from typing import Any

from .files import PACKAGE, File

_KNOWN: dict[str, dict[str, Any]] = json.loads((PACKAGE / "published.json").read_text(encoding="utf-8"))


def files(name: str) -> tuple[File, ...]:
    """The files of that name, in the order in which their reader wants them."""
    return tuple(File(**file, origin=_KNOWN[name]["origin"]) for file in _KNOWN[name]["files"])
