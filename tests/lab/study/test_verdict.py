"""The words of a study and what is said beside them."""

import math

import pytest
from made_up import arm, arms

from critgrad.lab.stats.verdicts import seeds_needed
from critgrad.lab.study.answer import Claim
from critgrad.lab.study.verdict import claims_of, default_margin, plan_lines, sentence

UP = [0.9, 1.0, 1.1, 1.2, 0.8, 1.05, 0.95, 1.15, 1.02, 0.97]  # ten differences, all for the arm
MIXED = [0.9, -1.0, 1.1, -1.2, 0.8, -1.05, 0.95, -1.15, 1.3, -0.7]


def ask(differences, *, direction="max", margin=0.0, planned=None, more=0, **of_arm) -> Claim:
    """The first of ``1 + more`` claims; the others are about arms that do not differ in sign by more than luck."""
    sign = 1 if direction == "max" else -1
    base = [10.0 + i for i in range(len(differences))]
    sides = [arm("mine", [b + sign * d for b, d in zip(base, differences)], **of_arm), arm("rival", base)]
    others = [arm(f"other{i}", [b + d for b, d in zip(base, MIXED)]) for i in range(more)]
    asked = [("mine", ("rival",)), *((other.name, ("rival",)) for other in others)]
    return claims_of(arms(*sides, *others), asked, direction, margin, planned or len(differences))[0]


@pytest.mark.parametrize("direction", ["min", "max"])
def test_a_positive_difference_speaks_for_the_arm_whatever_the_direction(direction):
    claim = ask(UP, direction=direction)
    assert (claim.word, claim.remark) == ("better", "")
    assert claim.difference == pytest.approx(1.015, abs=0.01)
    assert claim.mean == pytest.approx(sum(UP) / 10)
    assert claim.low > 0
    assert claim.p == pytest.approx(2 / 2**10)
    assert ask([-d for d in UP], direction=direction).word == "worse"


def test_same_is_an_interval_inside_the_margin():
    assert ask(MIXED, margin=1.5).word == "same"
    assert ask(MIXED, margin=0.5).word == "open"
    assert ask([0.0] * 6).word == "same"  # the same runs, whatever the margin


def test_better_comes_before_same_and_says_that_it_is_small():
    claim = ask(UP, margin=2.0)
    assert claim.word == "better"
    assert claim.remark == "a difference smaller than the margin of 2"


@pytest.mark.parametrize("claims, replicates", [(1, 6), (3, 7), (6, 8), (12, 9), (25, 10)])
def test_so_many_replicates_do_for_so_many_claims(claims, replicates):
    assert seeds_needed(claims) == replicates
    enough, short = (ask(UP[:n], more=claims - 1) for n in (replicates, replicates - 1))
    assert enough.word == "better"
    assert short.word == "open"
    assert f"{replicates - 1} replicates are too few for {claims} claim" in short.remark
    assert f"at least {replicates} are needed" in short.remark
    sides = arms(arm("a", UP), arm("b", UP))
    assert not plan_lines({}, [("a", ("b",))] * claims, "max", replicates)
    (warning,) = plan_lines(sides, [("a", ("b",))] * claims, "max", replicates - 1)
    assert f"{replicates - 1} replicates are too few" in warning


def test_better_before_correction_stands_in_the_remark():
    claim = ask([*UP[:7], -0.05], more=7)
    assert claim.p < 0.05 <= claim.p_holm
    assert claim.word == "open"
    assert "better before correction for 8 claims" in claim.remark
    small = ask([*UP[:7], -0.05], more=7, margin=5.0)
    assert small.word == "same"
    assert small.remark == "better before correction for 8 claims"


def test_an_open_claim_says_how_many_replicates_a_fresh_study_would_want():
    claim = ask([*MIXED[:8], 1.9, 1.4], margin=1.0)
    assert claim.word == "open"
    assert "a study with a fresh seed would want" in claim.remark
    assert "for `better`" in claim.remark
    assert "for `same`" in claim.remark
    assert (
        "no number would do for `same` (it seems larger than the margin of 0.001)"
        in ask([*UP[:5], -3.0], margin=1e-3).remark
    )
    assert "for `worse`" in ask([*(-d for d in UP[:5]), 3.0]).remark


def test_what_counts_as_untrained_is_said_with_its_reason():
    claim = ask([-5.0] * 8, untrained={2: "failed", 5: "failed", 7: "not finite"})
    assert claim.word == "worse"
    assert claim.remark == "mine: 3 of 8 replicates have runs that count as untrained (failed, not finite)"


def test_choices_near_an_end_are_said_from_more_than_a_third_on():
    assert ask(UP[:9], near_end={"lr": 3}).remark == ""
    assert ask(UP[:9], near_end={"lr": 4}).remark == "mine: lr chosen near an end of its range in 4 of 9 replicates"


def test_the_best_rival_is_chosen_by_validation_in_each_replicate():
    sides = arms(
        arm("mine", [5.0] * 6),
        arm("one", [1.0] * 6, valids=[9, 9, 9, 1, 1, math.nan]),
        arm("two", [2.0] * 6, valids=[5, 5, math.nan, 5, 5, 5]),
    )
    (claim,) = claims_of(sides, [("mine", ("one", "two"))], "max", 0.0, 6)
    assert claim.rivals == ("one", "one", "one", "two", "two", "two")
    assert claim.differences == (4.0, 4.0, 4.0, 3.0, 3.0, 3.0)
    (low,) = claims_of(sides, [("mine", ("one", "two"))], "min", 0.0, 6)
    assert low.rivals == ("two", "two", "one", "one", "one", "two")


def test_replicates_are_paired_by_number_and_missing_ones_are_said():
    sides = arms(arm("mine", [3.0, 4.0, 5.0], first=2), arm("rival", [1.0, 1.5, 2.5, 2.0]))
    (claim,) = claims_of(sides, [("mine", ("rival",))], "max", 0.0, 10)
    assert claim.differences == (1.5, 1.5, 3.0)
    assert claim.word == "open"
    assert claim.remark.startswith("not final: 3 of 10 replicates")
    (none,) = claims_of(arms(arm("mine", []), arm("rival", [1.0])), [("mine", ("rival",))], "max", 0.0, 10)
    assert (none.word, none.replicates, none.remark) == ("open", 0, "no replicate is whole yet")
    assert sentence(none) == "mine against rival: no replicate is whole yet"


def test_the_margin_is_one_percent_of_what_the_first_arm_learns():
    assert default_margin(arm("first", [2.0, 1.0, 3.0, math.nan]), 5.0) == pytest.approx(0.04)
    assert default_margin(arm("first", [5.0, 5.0]), 5.0) == 0.0
    assert default_margin(arm("first", [5.0]), math.nan) == 0.0


def test_check_says_what_the_plan_can_see_once_three_replicates_are_there():
    few, some = (arms(arm("a", UP[:n]), arm("b", MIXED[:n])) for n in (2, 3))
    assert plan_lines(few, [("a", ("b",))], "max", 10) == ()
    (line,) = plan_lines(some, [("a", ("b",))], "max", 10)
    assert line.startswith("a against b: differences from ")
    assert "with 10 replicates; spread from the first 3" in line
    assert plan_lines({}, [("a", ("b",))], "max", 10) == ()


@pytest.mark.parametrize(
    "word, ends, said",
    [
        ("better", (0.012, 0.008, 0.016), "free is better than adamw by 0.0120 ± 0.0040 (10 replicates, 8 trials each)"),
        ("worse", (-0.5, -0.9, -0.3), "free is worse than adamw by 0.50 (0.30 to 0.90; 10 replicates, 8 trials each)"),
        ("same", (0.0, -0.1, 0.1), "free is as good as adamw: the difference is 0.00 ± 0.10 (10 replicates, 8 trials each)"),
        ("open", (0.2, -0.1, 0.5), "free against adamw is open: the difference is +0.20 ± 0.30 (10 replicates, 8 trials each)"),
    ],
)  # fmt: skip
def test_sentences_are_plain(word, ends, said):
    assert sentence(Claim("free", ("adamw",), word, "", ends[0], ends[0], *ends[1:], 0.01, 0.01, 10), 8) == said


def test_a_list_of_rivals_is_named_in_the_sentence():
    claim = Claim("free", ("sgd", "adam", "adamw"), "better", "", 1.0, 1.0, 0.5, 1.5, 0.01, 0.01, 1)
    assert sentence(claim) == "free is better than the best of sgd, adam and adamw by 1.00 ± 0.50 (1 replicate)"
