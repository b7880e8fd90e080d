"""The numbers of docs/scaling.md: the formulas equal what optimizers hold, and the page is what the script writes."""

import importlib.util
from pathlib import Path

import pytest
import torch
from torch import nn

import critgrad

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "scaling.py"


@pytest.fixture(scope="module")
def scaling():
    spec = importlib.util.spec_from_file_location("scaling", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("aggr", ["mean", "fisher"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8", "float8"])
@pytest.mark.parametrize("topC", [5, 20])
def test_the_computed_bytes_are_what_an_optimizer_holds(scaling, aggr, dtype, topC):
    weight = nn.Parameter(torch.zeros(64, 256))  # whole blocks: a last, partial one has a scale of its own
    opt = critgrad.Adam_C([weight], aggr=aggr, topC=topC, memory_dtype=dtype)
    weight.grad = torch.ones_like(weight)
    opt.step()
    tables = topC * (4 + 4 + 8) + 16 + (8 * topC * topC if aggr == "fisher" else 0)
    computed = scaling.slot_bytes(weight.numel(), topC, dtype) + scaling.sum_bytes(weight.numel(), aggr)
    assert critgrad.inspect(opt).bytes == computed + tables
    assert tables < 10 * 1024


def test_the_page_is_what_the_script_writes(scaling):
    page = scaling.PAGE.read_text()
    assert scaling.filled(page) == page


def test_the_plans_numbers_are_the_tables(scaling):
    def per_rank(parameters, ranks):
        return scaling.gib(
            (scaling.slot_bytes(parameters, 5, "bfloat16") + scaling.sum_bytes(parameters, "mean")) / ranks
        )

    page = scaling.PAGE.read_text()
    for parameters, ranks in ((7e9, 64), (70e9, 64), (70e9, 1024)):
        assert f"{per_rank(parameters, ranks)} GiB" in page, per_rank(parameters, ranks)
    assert scaling.numbers_sent(20, "fisher", "bfloat16") * 8 == 336
    assert scaling.numbers_sent(20, "fisher", "bfloat16") <= 2 * 20 + 3
