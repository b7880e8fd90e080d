"""What holds for all tests: one thread, the same examples each time, and in CI no test that silently does not run."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
import torch

# Runs are compared bit for bit: the order of a sum must not depend on what else the machine does.
torch.set_num_threads(1)

try:
    from hypothesis import settings
    from hypothesis.internal.conjecture import providers
except ImportError:  # not on every machine with a GPU; tests that draw skip themselves there
    pass
else:
    # A change is judged by the examples that its author saw. hypothesis would also draw from the constants of whatever modules
    # happen to be imported, so that an edit elsewhere, or the order of the tests, made others.
    settings.register_profile("the same everywhere", derandomize=True, deadline=None, database=None)
    settings.load_profile("the same everywhere")
    providers._get_local_constants = lambda: providers._local_constants

ALLOWED_SKIPS = Path(__file__).with_name("allowed_skips.txt")
_skipped: list[str] = []


def pytest_report_header(config: pytest.Config) -> str:
    return f"torch {torch.__version__}, skips reviewed in {ALLOWED_SKIPS.name}"


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.skipped and isinstance(report.longrepr, tuple):
        _skipped.append(f"{report.nodeid}: {report.longrepr[2]}")


def pytest_collectreport(report: pytest.CollectReport) -> None:
    if report.skipped and isinstance(report.longrepr, tuple):
        _skipped.append(f"{report.nodeid}: {report.longrepr[2]}")


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """In CI a skip that nobody has reviewed is a failure."""
    if not os.environ.get("CI") or hasattr(session.config, "workerinput"):
        return
    lines = [line.strip() for line in ALLOWED_SKIPS.read_text().splitlines()]
    allowed = [re.compile(line) for line in lines if line and not line.startswith("#")]
    unexpected = sorted({skip for skip in _skipped if not any(pattern.search(skip) for pattern in allowed)})
    if unexpected:
        print("\nskipped in CI without standing in tests/allowed_skips.txt:", *unexpected, sep="\n  ")
        session.exitstatus = 1
