"""Downloads, from a server on this machine."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from data_helpers import PACKED, TEXT, Toy

from critgrad.lab.tasks import data
from critgrad.lab.tasks.data import download


class Handler(BaseHTTPRequestHandler):
    requests: list[str] = []

    def do_GET(self) -> None:
        self.requests.append(self.path)
        name = self.path.rsplit("/", 1)[-1]
        body = {"words.txt.gz": PACKED, "words.txt": TEXT, "wrong.txt": b"something else", "cut.txt": TEXT}.get(name)
        if body is None:
            self.send_error(404)
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        # The connection of "cut" ends in the middle, as a broken network would end it.
        self.wfile.write(body[: len(body) // 2] if name == "cut.txt" else body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    Handler.requests = []
    made = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{made.server_address[1]}"
    made.shutdown()
    made.server_close()
    thread.join()


def everything_below(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


@pytest.mark.parametrize("name", ["words.txt.gz", "words.txt"])
def test_a_missing_file_is_downloaded_once_in_the_packing_of_its_address(toy: Toy, server: str, name: str) -> None:
    toy.monkeypatch.delenv("CRITGRAD_OFFLINE")
    toy.register(f"{server}/{name}")
    assert data.load("toy").info["longest"] == 5
    assert everything_below(toy.data) == [f"toy/{name}"]
    assert data.fetch("toy") == (toy.data / "toy" / name,)
    assert Handler.requests == [f"/{name}"]


def test_offline_forbids_the_download_and_says_so(toy: Toy, server: str) -> None:
    toy.register(f"{server}/words.txt")
    with pytest.raises(data.DataMissing, match="CRITGRAD_OFFLINE") as caught:
        data.load("toy")
    assert f"{server}/words.txt" in str(caught.value)
    assert Handler.requests == []


@pytest.mark.parametrize("name", ["cut.txt", "absent.txt"])
def test_a_failed_download_leaves_nothing_and_says_why(toy: Toy, server: str, name: str) -> None:
    toy.monkeypatch.delenv("CRITGRAD_OFFLINE")
    toy.register(f"{server}/{name}")
    with pytest.raises(data.DataMissing, match="The download failed"):
        data.load("toy")
    assert everything_below(toy.data) == []


def test_a_download_with_other_content_is_refused_and_leaves_nothing(toy: Toy, server: str) -> None:
    toy.monkeypatch.delenv("CRITGRAD_OFFLINE")
    toy.register(f"{server}/wrong.txt")
    with pytest.raises(data.DataCorrupt, match=r"wrong\.txt"):
        data.fetch("toy")
    assert everything_below(toy.data) == []


def test_an_interrupted_download_leaves_nothing(toy: Toy, server: str) -> None:
    toy.monkeypatch.delenv("CRITGRAD_OFFLINE")
    toy.register(f"{server}/words.txt")

    def interrupted(url: str, out: object) -> None:
        raise KeyboardInterrupt

    toy.monkeypatch.setattr(download, "transfer", interrupted)
    with pytest.raises(KeyboardInterrupt):
        data.load("toy")
    assert everything_below(toy.data) == []


def test_a_data_folder_that_cannot_be_written_sends_the_download_to_the_cache(toy: Toy, server: str) -> None:
    toy.monkeypatch.delenv("CRITGRAD_OFFLINE")
    toy.monkeypatch.setattr(download, "writable", lambda folder: False)
    toy.register(f"{server}/words.txt")
    assert data.fetch("toy") == (toy.cache / "toy" / "words.txt",)


def test_of_two_sources_the_one_with_an_address_is_fetched(toy: Toy) -> None:
    # The mosaics have no address, the archive has one: without any file, the archive is what is asked for.
    toy.monkeypatch.delenv("CRITGRAD_OFFLINE")
    assert [entry.path for entry in data.check("cifar10")] == ["cifar10/cifar-10-binary.tar.gz"]


def test_what_has_no_files_needs_no_fetching() -> None:
    assert data.fetch("noise") == data.fetch("ptb@tiny") == ()
    assert data.check("noise@0.3") == ()
