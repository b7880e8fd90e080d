"""A real browser for the tests of pages: headless Chromium, driven over its DevTools pipe by the standard library alone.

The browser is ``$CRITGRAD_CHROMIUM`` or the first of ``NAMES`` on the path (Debian: ``apt-get install chromium``). It
resolves no host name, so a page that wants the network fails here as it would offline, and the attempt is on record.

A test takes the fixture ``chromium`` (its conftest.py imports it from here), which skips where there is no browser:

    def test_the_page_has_a_title(chromium):
        page = chromium.open_page(Path("page.html"), width=390, dark=True)
        assert page.evaluate("document.title")
        assert not page.console_errors
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

VARIABLE = "CRITGRAD_CHROMIUM"
NAMES = ("chromium", "chromium-browser", "chromium-headless-shell", "google-chrome", "google-chrome-stable")
PATIENCE = 60.0  # seconds for an answer, on a busy machine

FLAGS = (
    "--headless",
    "--remote-debugging-pipe",
    "--no-sandbox",  # containers run as root, where Chromium's own sandbox cannot start
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--no-default-browser-check",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-extensions",
    "--disable-sync",
    "--hide-scrollbars",
    "--force-color-profile=srgb",
    "--host-resolver-rules=MAP * ~NOTFOUND",
)


def find_chromium() -> str | None:
    """The browser's path, or None. A variable that names no program is an error, not a skipped test."""
    named = os.environ.get(VARIABLE)
    if named:
        found = shutil.which(named)
        if found is None:
            raise FileNotFoundError(f"Invalid {VARIABLE}: {named}, expected the path of a Chromium")
        return found
    return next((found for name in NAMES if (found := shutil.which(name))), None)


MISSING = f"no browser: install Debian's chromium or set {VARIABLE} to one"


class Browser:
    """A running Chromium. Use ``browser()``, which ends it."""

    def __init__(self, program: str, profile: str) -> None:
        to_child, self._write = os.pipe()
        self._read, from_child = os.pipe()
        # The pipe's ends must be 3 and 4 in the child; out of the way first, or one could overwrite the other.
        high = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in (to_child, from_child)]
        quiet = os.open(os.devnull, os.O_RDWR)
        actions = [(os.POSIX_SPAWN_DUP2, high[0], 3), (os.POSIX_SPAWN_DUP2, high[1], 4)]
        actions += [(os.POSIX_SPAWN_DUP2, quiet, fd) for fd in (0, 1, 2)]
        self.pid = os.posix_spawn(
            program,
            [program, *FLAGS, f"--user-data-dir={profile}", "about:blank"],
            {**os.environ, "HOME": profile},
            file_actions=actions,
            setpgroup=0,
        )
        for end in (to_child, from_child, quiet, *high):
            os.close(end)
        self._next = 0
        self._rest = b""
        self._pages: dict[str, Page] = {}

    def send(self, method: str, params: dict[str, Any] | None = None, session: str | None = None) -> dict[str, Any]:
        """Call a method of the DevTools protocol and wait for its answer; events on the way go to their pages."""
        self._next += 1
        mine = self._next
        message: dict[str, Any] = {"id": mine, "method": method, "params": params or {}}
        if session is not None:
            message["sessionId"] = session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + PATIENCE
        while True:
            answer = self._receive(deadline, method)
            if answer.get("id") == mine:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']['message']}")
                return dict(answer["result"])

    def _receive(self, deadline: float, waiting_for: str) -> dict[str, Any]:
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._read], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                raise TimeoutError(f"Chromium gave no answer to {waiting_for} within {PATIENCE:g} s")
            data = os.read(self._read, 1 << 20)
            if not data:
                raise RuntimeError(f"Chromium ended before it answered {waiting_for}")
            self._rest += data
        text, self._rest = self._rest.split(b"\0", 1)
        message: dict[str, Any] = json.loads(text)
        page = self._pages.get(message.get("sessionId", ""))
        if page is not None and "method" in message:
            page.hear(message["method"], message["params"])
        return message

    def open_page(self, path: Path | str, width: int = 1280, height: int = 900, dark: bool = False) -> Page:
        """Open a file (or an address) in a new page of that size and colour scheme, and wait until it has loaded."""
        address = path.resolve().as_uri() if isinstance(path, Path) else path
        target = self.send("Target.createTarget", {"url": "about:blank"})["targetId"]
        session = self.send("Target.attachToTarget", {"targetId": target, "flatten": True})["sessionId"]
        page = self._pages[session] = Page(self, session, address)
        for domain in ("Page", "Runtime", "Log", "Network"):
            page.send(f"{domain}.enable")
        page.resize(width, height)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        page.send("Emulation.setEmulatedMedia", features=[scheme])
        page.send("Page.navigate", url=address)
        page.wait_for("document.readyState === 'complete' && location.href !== 'about:blank'")
        return page

    def close(self) -> None:
        """End the browser and everything it started."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        os.close(self._write)
        os.close(self._read)


class Page:
    """An open page. ``console_errors`` and ``requests`` grow as long as it is open."""

    def __init__(self, browser: Browser, session: str, address: str) -> None:
        self._browser = browser
        self._session = session
        self._address = address
        self.console_errors: list[str] = []  # errors and warnings of the console, uncaught exceptions
        self.requests: list[str] = []  # everything fetched but the page itself and data in it

    def send(self, method: str, **params: Any) -> dict[str, Any]:
        """Call a DevTools method on this page."""
        return self._browser.send(method, params, self._session)

    def hear(self, event: str, params: dict[str, Any]) -> None:
        """Note what went wrong and what was fetched."""
        if event == "Runtime.exceptionThrown":
            details = params["exceptionDetails"]
            self.console_errors.append(details.get("exception", {}).get("description") or details["text"])
        elif event == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert"):
            self.console_errors.append(" ".join(str(a.get("value", a.get("description"))) for a in params["args"]))
        elif event == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            self.console_errors.append(params["entry"]["text"])
        elif event == "Network.requestWillBeSent":
            url = params["request"]["url"]
            if url.split("#")[0] != self._address.split("#")[0] and not url.startswith(("data:", "blob:", "about:")):
                self.requests.append(url)

    def evaluate(self, script: str) -> Any:
        """The value of an expression (of its promise, if it is one), as JSON knows it."""
        answer = self.send("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in answer:
            details = answer["exceptionDetails"]
            raise RuntimeError(details.get("exception", {}).get("description") or details["text"])
        return answer["result"].get("value")

    def wait_for(self, condition: str) -> None:
        """Wait until an expression is true."""
        deadline = time.monotonic() + PATIENCE
        while not self.evaluate(condition):
            if time.monotonic() > deadline:
                raise TimeoutError(f"not true within {PATIENCE:g} s: {condition}; console: {self.console_errors}")
            self.evaluate("new Promise((done) => setTimeout(done, 20))")

    def resize(self, width: int, height: int) -> None:
        """Give the window's inside another size."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 700}
        self._browser.send("Emulation.setDeviceMetricsOverride", size, self._session)

    def click(self, selector: str) -> None:
        """Click the middle of an element as a mouse would, after scrolling to it."""
        where = self.evaluate(
            f"(() => {{ const e = document.querySelector({json.dumps(selector)}); if (!e) return null;"
            "e.scrollIntoView({block: 'center', behavior: 'instant'}); const r = e.getBoundingClientRect();"
            "return [r.x + r.width / 2, r.y + r.height / 2]; })()"
        )
        if where is None:
            raise LookupError(f"no element: {selector}")
        for kind in ("mousePressed", "mouseReleased"):
            self.send("Input.dispatchMouseEvent", type=kind, x=where[0], y=where[1], button="left", clickCount=1)

    def press(self, key: str, code: int) -> None:
        """Press a key that types nothing, such as ``ArrowRight`` (its old-style code is 39), where the focus is."""
        for kind in ("rawKeyDown", "keyUp"):
            self.send("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code)

    def screenshot(self, path: Path, whole: bool = True) -> Path:
        """Write what is seen (the whole page, or the window's inside) as a PNG."""
        data = self.send("Page.captureScreenshot", format="png", captureBeyondViewport=whole, **self._clip(whole))
        path.write_bytes(base64.b64decode(data["data"]))
        return path

    def _clip(self, whole: bool) -> dict[str, Any]:
        if not whole:
            return {}
        size = self.send("Page.getLayoutMetrics")["cssContentSize"]
        return {"clip": {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}}


@contextmanager
def browser() -> Iterator[Browser]:
    """A Chromium with an empty profile, ended and removed afterwards."""
    program = find_chromium()
    if program is None:
        raise FileNotFoundError(MISSING)
    with tempfile.TemporaryDirectory(prefix="critgrad-browser-", ignore_cleanup_errors=True) as profile:
        running = Browser(program, profile)
        try:
            yield running
        finally:
            running.close()


@pytest.fixture(scope="session")
def chromium() -> Iterator[Browser]:
    """One browser for all tests of a process."""
    if find_chromium() is None:
        pytest.skip(MISSING)
    with browser() as running:
        yield running
