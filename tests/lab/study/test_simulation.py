"""The table of docs/study.md: recomputed at a small size, and held to what it promises."""

from pathlib import Path

import pytest

from critgrad.lab.stats.signed_rank import power
from critgrad.lab.stats.simulate import band
from critgrad.lab.study import simulate as sim

PAGE = Path(__file__).parents[3] / "docs" / "study.md"
COLUMNS = ("called", "covered", "found", "planned", "called_once", "covered_once")
SMALL = 300


def documented() -> dict[tuple[str, int], dict[str, float]]:
    table = PAGE.read_text().split("<!-- simulate:begin -->\n")[1].split("<!-- simulate:end -->")[0].strip()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]
    return {(row[0], int(row[1])): dict(zip(COLUMNS, (float(cell) / 100 for cell in row[2:]))) for row in rows}


def test_the_table_has_a_line_for_every_setting():
    assert list(documented()) == [(world.name, n) for world in sim.WORLDS for n in sim.REPLICATES]


@pytest.mark.parametrize("world", sim.WORLDS, ids=lambda world: world.name)
def test_the_table_keeps_what_is_promised(world):
    most = band(0.05, sim.STUDIES, 0.999)[1]
    for n in sim.REPLICATES:
        line = documented()[world.name, n]
        assert line["called"] <= most
        assert line["covered"] >= 0.944
        assert line["found"] == pytest.approx(line["planned"], abs=0.1)
        assert line["planned"] == pytest.approx(power(1.0, n), abs=0.001)
        # One search with many seeds: right where the search has no luck, and only there.
        assert (line["covered_once"] > 0.94) == (world.luck == 0)


@pytest.mark.slow
@pytest.mark.parametrize("world", sim.WORLDS, ids=lambda world: world.name)
def test_a_small_simulation_agrees_with_the_table(world):
    line, again = documented()[world.name, 8], sim.shares(world, 8, SMALL)
    for name in ("called", "covered", "found", "called_once", "covered_once"):
        low, high = band(line[name], SMALL, 0.999)
        assert low <= getattr(again, name) <= high, name


@pytest.mark.slow
def test_a_wrong_rule_would_not_agree():
    """Intervals that ignore the search are what the table says of them, far outside the band of the right ones."""
    again = sim.shares(sim.WORLDS[2], 8, SMALL)
    assert not band(0.95, SMALL, 0.999)[0] <= again.covered_once
    assert again.covered >= band(0.95, SMALL, 0.999)[0]


@pytest.mark.slow
def test_whole_studies_find_what_was_planted_and_nothing_else():
    itself = sim.through_runs(4)
    assert [claim.replicates for claim in itself] == [6] * 4
    assert sum(claim.word in ("better", "worse") for claim in itself) == 0
    planted = sim.through_runs(2, shift=30.0)
    assert [claim.word for claim in planted] == ["better"] * 2
    assert all(claim.low < 30.0 < claim.high for claim in planted)
