"""Other people's optimizers with a memory, and the table of docs/compatibility.md that says which work."""

import compat
import pytest
import torch

import critgrad

CASES = [(candidate, way) for candidate in compat.CANDIDATES for way in compat.WAYS]
NAMES = [f"{candidate.package}-{candidate.name}-{way}" for candidate, way in CASES]


@pytest.fixture(autouse=True)
def _quiet():
    import logging

    compat.quiet()
    yield
    logging.disable(logging.NOTSET)


def documented(candidate) -> tuple[str, list[str]]:
    """The version that the table was written with, and what it says of each way."""
    for line in compat.PAGE.read_text().split(compat.BEGIN)[1].split(compat.END)[0].splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 4 and cells[0].split()[0] == candidate.package and cells[1] == f"`{candidate.name}`":
            return cells[0].split()[1], cells[2:]
    raise AssertionError(f"no row for {candidate.package} {candidate.name}: run tests/integrations/compat.py --write")


@pytest.mark.parametrize("candidate, way", CASES, ids=NAMES)
def test_an_optimizer_does_what_the_table_says(candidate, way):
    if candidate.installed() is None:
        pytest.skip(f"{candidate.package} is not installed")
    version, cells = documented(candidate)
    found = compat.verdict(candidate, way)
    said = cells[compat.WAYS.index(way)]
    if found.startswith("no: does not run on this machine"):
        pytest.skip(found)
    assert found.startswith("yes") == said.startswith("yes"), f"{found}; the table of version {version} says: {said}"


def test_the_schedule_free_wrapper_takes_an_optimizer_with_a_memory_inside():
    package = pytest.importorskip("schedulefree", reason="schedulefree is not installed")
    candidate = next(c for c in compat.CANDIDATES if c.name == "ScheduleFreeWrapper")
    runs = []
    for topC in (0, 3):
        params = compat.parameters(candidate)
        inner = critgrad.SGD_C(params, lr=1e-2, topC=topC)
        opt = package.ScheduleFreeWrapper(inner)
        opt.train()
        compat.run(opt, params, range(12))
        runs.append(params)
    assert critgrad.inspect(inner).memories[0].steps == 12
    assert compat.distance(*runs) > 1e-3


def test_lookahead_takes_an_optimizer_with_a_memory_inside():
    package = pytest.importorskip("pytorch_optimizer", reason="pytorch_optimizer is not installed")
    candidate = next(c for c in compat.CANDIDATES if c.name == "Lookahead")

    def make(params):
        return package.Lookahead(critgrad.AdamW_C(params, lr=1e-2, **compat.OPTIONS))

    whole, first = compat.parameters(candidate), compat.parameters(candidate)
    compat.run(make(whole), whole, range(12))
    opt = make(first)
    compat.run(opt, first, range(6))
    again = make(first)
    again.load_state_dict(opt.state_dict())
    compat.run(again, first, range(6, 12))
    assert compat.distance(first, whole) < compat.TOLERANCE
    assert torch.isfinite(first[0]).all()
