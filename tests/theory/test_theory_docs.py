"""The examples of docs/theory.md print what stands there."""

import doctest
from pathlib import Path


def test_docs_theory():
    page = Path(__file__).parents[2] / "docs" / "theory.md"
    result = doctest.testfile(str(page), module_relative=False)
    assert result.attempted >= 10
    assert result.failed == 0
