"""DDP, FSDP2, FSDP1 and ZeroRedundancyOptimizer on two ranks; the claims are in dist_two.py."""

import dist_two
import pytest


@pytest.mark.parametrize("claim", dist_two.CLAIMS)
def test_on_two_ranks(claim, world):
    failures = world("dist_two", 2)
    assert claim in failures, "not reached"
    assert not failures[claim], failures[claim]
