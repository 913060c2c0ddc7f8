"""Which evidence earns which verdict."""

from dataclasses import replace
from math import inf, nan

import pytest

from repro.claims.all_claims import all_claims
from repro.claims.claim import Claim, Evidence, judge

LOW, HIGH = 1.8, 2.2
CLAIM = Claim("a/b", "Table 9", "arXiv v5", "a cell", 2.0, "", LOW, HIGH, "10 %", "table9")
OURS = Evidence(2.1, "counted", ("run",), papers_size=True)
OUTSIDE = replace(OURS, value=2.3)
DIRECTION = replace(CLAIM, value=nan, low=0.0, high=inf, direction=True)
SMALL = Evidence(1.0, "measured", ("run",), 0.5, 1.5)


@pytest.mark.parametrize(
    ("ours", "verdict"),
    [
        (OURS, "reproduced"),
        (replace(OURS, fidelity="measured"), "reproduced"),
        (replace(OURS, fidelity="simulated"), "consistent"),
        (replace(OURS, fidelity="emulated"), "consistent"),
        (OUTSIDE, "not reproduced"),
        (replace(OUTSIDE, fidelity="simulated"), "not reproduced"),
        (replace(OURS, fitted="by this cell"), "fitted: by this cell"),
        (replace(OUTSIDE, fitted="by this cell"), "not reproduced"),
        (replace(OURS, papers_size=False), "not tested here: our models are smaller"),
        (replace(OURS, value=nan, why="does not fit"), "not tested here: does not fit"),
        (None, "not tested here: no result: ./run_all.sh table9"),
    ],
)
def test_a_number_earns(ours, verdict):
    assert str(judge(CLAIM, ours)) == verdict


@pytest.mark.parametrize(
    ("ours", "others", "verdict"),
    [
        (2.1, {"M=8": 1.9, "M=32": 2.0}, "reproduced"),
        (2.1, {"M=8": nan}, "reproduced"),
        (2.1, {"M=8": 3.0}, "not identified: comes out with M=16"),
        (3.0, {"M=8": 2.0, "M=32": 2.1}, "not identified: comes out with M=8; M=32"),
        (3.0, {"M=8": 2.0, "M=32": 3.0}, "fitted: comes out only with M=8"),
        (3.0, {"M=8": 4.0}, "not reproduced"),
    ],
)
def test_what_the_paper_does_not_print_is_varied(ours, others, verdict):
    varied = replace(OURS, value=ours, setting="M=16", others=others)
    assert str(judge(CLAIM, varied)) == verdict


@pytest.mark.parametrize(
    ("ours", "verdict"),
    [
        (SMALL, "trend (smaller models)"),
        (replace(SMALL, papers_size=True), "reproduced"),
        (replace(SMALL, low=-0.5), "not reproduced (smaller models): no direction shown"),
        (
            replace(SMALL, value=-1.0, low=-2.0, high=-0.5),
            "not reproduced (smaller models): reversed",
        ),
        (
            replace(SMALL, low=nan, high=nan),
            "not tested here: too few rounds or seeds for an interval",
        ),
    ],
)
def test_a_direction_needs_its_whole_interval(ours, verdict):
    assert str(judge(DIRECTION, ours)) == verdict


def test_no_effect_at_all_is_no_direction():
    lower = replace(CLAIM, value=nan, low=-inf, high=0.0, direction=True, any_size=True)
    simulated = Evidence(-1.0, "simulated", ("run",))
    assert str(judge(lower, simulated)) == "consistent"
    assert str(judge(lower, replace(simulated, value=0.0))) == "not reproduced"


def test_what_holds_for_every_model_may_be_shown_with_a_small_one():
    small = replace(OURS, fidelity="measured", papers_size=False)
    assert str(judge(replace(CLAIM, any_size=True), small)) == "reproduced"


def test_agreement_says_nothing_where_no_effect_would_agree_too():
    claim = replace(CLAIM, no_effect=1.9)
    assert str(judge(claim, OURS)) == "not tested here: 1.9, no effect, would agree too"
    assert str(judge(claim, OUTSIDE)) == "not reproduced"


def test_a_formula_stands_beside_a_simulation():
    claim = replace(CLAIM, formulas={"the ideal": 2.0, "another": 5.0})
    simulated = replace(OURS, fidelity="simulated")
    assert str(judge(claim, simulated)) == "consistent: the ideal agrees too"
    outside = replace(simulated, value=3.0)
    assert str(judge(claim, outside)) == "not reproduced: the ideal agrees"


def test_every_claim_agrees_with_its_own_printed_number():
    for claim in all_claims():
        # A sentence without a number has only a limit. Constant throughput at M=1 is read as 1.
        assert claim.value != claim.value or claim.agrees(claim.value), claim.id
        assert claim.low <= claim.high, claim.id
        assert claim.tolerance, claim.id
        assert claim.experiment or claim.needs, claim.id
