"""``summary`` and ``python -m critgrad.theory``."""

import runpy
import sys

import pytest

from critgrad import theory
from critgrad.theory.__main__ import main


def test_it_says_what_a_user_wants_to_know():
    text = theory.summary(topC=5, decay=0.7, aggr="sum")
    for part in ("2 * lr", "at most 11 steps", "0.0994", "2.233", "beta=0.6 at 0.8 * lr"):
        assert part in text


def test_fisher_has_bounds_of_damping_and_no_delay():
    text = theory.summary(topC=10, decay=0.99, aggr="fisher", rho=0.25)
    for part in ("between 0.2 * lr", "1 for smooth functions", "5 times SGD's bound", "delays nothing"):
        assert part in text
    assert "no certificate with momentum" in theory.summary(aggr="fisher", momentum=0.9)


def test_it_says_when_there_is_no_bound():
    assert "no bound: decay=1" in theory.summary(decay=1.0)
    text = theory.summary(decay=0.9, norm_decay=0.8)
    assert "outrun decay=0.9" in text
    assert "none for smooth functions" in text
    capped = theory.summary(decay=0.9, norm_decay=0.8, max_age=30)
    assert "at most 30 steps" in capped
    assert "none" not in capped


@pytest.mark.parametrize("aggr", ["sum", "mean", "mid", "min", "median", "max", "fisher"])
@pytest.mark.parametrize("topC", [0, 1, 7])
@pytest.mark.parametrize("options", [{}, {"momentum": 0.9}, {"kappa": 0.5}, {"decay": 0.0}])
def test_every_combination_has_a_summary(aggr, topC, options):
    lines = theory.summary(topC=topC, aggr=aggr, **options).splitlines()
    assert f'aggr="{aggr}", topC={topC}' in lines[0]
    assert len(lines) >= 4
    assert not any("nan" in line for line in lines)


def test_the_command_prints_the_summary(monkeypatch, capsys):
    monkeypatch.delitem(sys.modules, "critgrad.theory.__main__")
    monkeypatch.setattr(sys, "argv", ["theory", "--topC", "5", "--decay", "0.7", "--aggr", "sum"])
    runpy.run_module("critgrad.theory", run_name="__main__")  # what python -m does
    assert capsys.readouterr().out.strip() == theory.summary(topC=5, decay=0.7, aggr="sum")


def test_the_command_takes_every_option(capsys):
    main(
        [
            "--topC",
            "10",
            "--decay",
            "0.99",
            "--aggr",
            "mean",
            "--kappa",
            "0.5",
            "--momentum",
            "0.9",
            "--max-age",
            "40",
            "--norm-ratio",
            "3",
        ]
    )
    expected = theory.summary(10, 0.99, "mean", kappa=0.5, momentum=0.9, max_age=40, norm_ratio=3.0)
    assert capsys.readouterr().out.strip() == expected


def test_a_bad_value_is_an_error_of_the_command_line(capsys):
    with pytest.raises(SystemExit):
        main(["--decay", "1.5"])
    assert "Invalid decay: 1.5, expected 0 <= decay <= 1" in capsys.readouterr().err
