"""No test leaves a sweep behind."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sweep_helpers import started


@pytest.fixture(autouse=True)
def _end_sweeps() -> Iterator[None]:
    yield
    while started:
        process = started.pop()
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()
