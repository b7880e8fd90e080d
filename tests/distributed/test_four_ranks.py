"""HSDP, tensor parallelism and other two-dimensional meshes on four ranks; the claims are in dist_four.py."""

import dist_four
import pytest


@pytest.mark.parametrize("claim", dist_four.CLAIMS)
def test_on_four_ranks(claim, world):
    failures = world("dist_four", 4)
    assert claim in failures, "not reached"
    assert not failures[claim], failures[claim]
