"""The page itself: the web files and the recorded runs, put together into one HTML file that loads nothing else."""

from __future__ import annotations

import base64
import json
import struct
import tempfile
import webbrowser
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..errors import LabError

# The recorded runs: a header in plain JSON, then all arrays packed and compressed as one. The page embeds both parts as they
# are, so this format is what the browser reads, too; ``benchmarks/playground_frames`` writes it.
DATA = Path(__file__).with_name("frames.bin")
MAGIC = b"critgrad playground 1\n"
WEB = Path(__file__).with_name("web")
SCRIPTS = ("data.js", "canvas.js", "map.js", "plots.js", "app.js")  # in the order in which they need each other
NAME = "critgrad-playground.html"


def read(path: Path = DATA) -> tuple[dict[str, Any], bytes]:
    """The header and the compressed body of a file of recorded runs."""
    data = path.read_bytes()
    if not data.startswith(MAGIC):
        raise LabError(f"Invalid frames file: {path}, expected one that benchmarks/playground_frames has written")
    start = len(MAGIC) + 4
    (size,) = struct.unpack("<I", data[len(MAGIC) : start])
    return json.loads(data[start : start + size]), data[start + size :]


def html(frames: Path = DATA) -> str:
    """The text of the page, with the runs of a frames file in it."""
    header, body = read(frames)
    parts = {
        "STYLE": (WEB / "style.css").read_text(encoding="utf-8"),
        # "</" would end the script element that the JSON stands in.
        "HEADER": json.dumps(header, separators=(",", ":")).replace("</", "<\\/"),
        "FRAMES": base64.b64encode(body).decode(),
        "SCRIPT": "\n".join((WEB / name).read_text(encoding="utf-8") for name in SCRIPTS),
    }
    text = (WEB / "page.html").read_text(encoding="utf-8")
    for name, part in parts.items():
        text = text.replace("{{" + name + "}}", part)
    return text


def build(out: Path, frames: Path = DATA) -> Path:
    """Write the page to ``out`` (a file, or a folder to put it in) and return the file."""
    if out.is_dir():
        out = out / NAME
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(html(frames), encoding="utf-8")
    return out


def main(out: Path | None = None, open_browser: bool = True, echo: Callable[[str], object] = print) -> Path:
    """Write the page (into a new temporary folder, unless ``out`` says where) and open it in the browser.

    ``echo`` is told the file in any case, so that it can be opened by hand where there is no browser to be found.
    """
    page = build(Path(tempfile.mkdtemp(prefix="critgrad-")) if out is None else out).resolve()
    if open_browser and not webbrowser.open(page.as_uri()):
        echo("no browser could be started: open the file in one")
    echo(str(page))
    return page
