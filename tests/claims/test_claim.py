"""Which evidence earns which verdict, and the audit's arithmetic."""

from dataclasses import replace
from functools import partial
from math import inf, nan
from typing import get_args

import pytest

from repro.claims.all_claims import KS, all_claims, audit, chosen
from repro.claims.claim import Claim, Evidence, Fidelity, judge
from repro.paper import theory

ENDS = {"": (1.8, 2.2)}
CLAIM = Claim("a/b", "Table 9", "arXiv v5", "a cell", 2.0, "", ENDS, "10 %", "table9")
OURS = Evidence(2.1, "counted", ("run",), papers_size=True)
SIMULATED = replace(OURS, fidelity="simulated")
OUTSIDE = replace(OURS, value=2.3)
DIRECTION = replace(CLAIM, value=nan, readings={"": (0.0, inf)}, direction=True)
ALIKE = replace(DIRECTION, readings={"": (-0.5, 0.5)})
SMALL = Evidence(1.0, "measured", ("run",), 0.5, 1.5)
TRAINED = replace(DIRECTION, training=True)
KNOWN = partial(replace, CLAIM)
VARIED = partial(replace, OURS, setting="M=16")
TWICE = KNOWN(readings={"at most 5": (-inf, 5.0), "at most 10": (-inf, 10.0)})
FORMULA = KNOWN(formulas={"the ideal": 2.0, "another": 5.0})
LOWER = replace(DIRECTION, readings={"": (-inf, 0.0)}, any_size=True)
MISPRINTED = "misprinted: by the audit 2.31, with which ours, 2.3, agrees"
BELOW = Evidence(-1.0, "simulated", ("run",))


@pytest.mark.parametrize(
    ("claim", "ours", "verdict"),
    [
        # The fidelity of a number, and its absence.
        (CLAIM, OURS, "reproduced"),
        (CLAIM, replace(OURS, fidelity="measured"), "reproduced"),
        (CLAIM, SIMULATED, "consistent"),
        (CLAIM, replace(OURS, fidelity="emulated"), "consistent"),
        (CLAIM, OUTSIDE, "not reproduced"),
        (CLAIM, replace(OUTSIDE, fidelity="simulated"), "not reproduced"),
        (CLAIM, replace(OURS, papers_size=False), "not tested here: our models are smaller"),
        (CLAIM, replace(OURS, value=nan, why="does not fit"), "not tested here: does not fit"),
        (CLAIM, None, "not tested here: no result: ./run_all.sh table9"),
        # What is known of the claim.
        (KNOWN(fitted="by this cell"), OURS, "fitted: by this cell"),
        (KNOWN(fitted="by this cell"), OUTSIDE, "not reproduced"),
        (KNOWN(implied="12 x another"), OURS, "implied: 12 x another"),
        (KNOWN(implied="12 x another", fitted="by it"), OURS, "implied: 12 x another"),
        (KNOWN(implied="12 x another"), OUTSIDE, "not reproduced: 12 x another"),
        (KNOWN(meant=2.31), OUTSIDE, MISPRINTED),
        (KNOWN(meant=9.0), OURS, "reproduced"),
        (KNOWN(no_effect=1.9), OURS, "not tested here: 1.9, no effect, would agree too"),
        (KNOWN(no_effect=1.9), OUTSIDE, "not reproduced"),
        (KNOWN(any_size=True), replace(OURS, papers_size=False), "reproduced"),
        # A word with two readings.
        (TWICE, replace(OURS, value=4.0), "reproduced"),
        (TWICE, replace(OURS, value=8.0), "not identified: comes out with at most 10"),
        (TWICE, replace(OURS, value=12.0), "not reproduced"),
        # What chose a setting is fitted where that setting alone gives it.
        (KNOWN(fitted="by it"), VARIED(others={"M=8": [3.0]}), "fitted: by it"),
        # A formula beside a simulation.
        (FORMULA, SIMULATED, "arithmetic: the ideal agrees with the claim"),
        (FORMULA, replace(SIMULATED, value=3.0), "not reproduced: the ideal agrees with the claim"),
        (FORMULA, OURS, "reproduced"),
        # A direction needs its whole interval, trainings that have ended, and an effect.
        (DIRECTION, SMALL, "trend (smaller models)"),
        (DIRECTION, replace(SMALL, papers_size=True), "reproduced"),
        (DIRECTION, replace(SMALL, low=-0.5), "cannot tell: the interval crosses an end"),
        (
            DIRECTION,
            replace(SMALL, value=-1.0, low=-2.0, high=-0.5),
            "not reproduced (smaller models): reversed",
        ),
        (ALIKE, replace(SMALL, value=-1.0, low=-2.0, high=-0.6), "not reproduced (smaller models)"),
        (
            DIRECTION,
            replace(SMALL, low=nan, high=nan),
            "not tested here: too few rounds or seeds for an interval",
        ),
        (TRAINED, SMALL, "not tested here: no check that the trainings have converged"),
        (TRAINED, replace(SMALL, converged=True), "trend (smaller models)"),
        (LOWER, BELOW, "consistent"),
        (LOWER, replace(BELOW, value=0.0), "not reproduced"),
    ],
)
def test_evidence_earns(claim, ours, verdict):
    assert str(judge(claim, ours)) == verdict


@pytest.mark.parametrize(
    ("ours", "others", "verdict"),
    [
        (2.1, {"M=8": [1.9], "M=32": [2.0]}, "reproduced"),
        (2.1, {"M=8": [nan]}, "reproduced"),
        (2.1, {"M=8": [3.0]}, "not identified: comes out with M=16"),
        (3.0, {"M=8": [2.0], "M=32": [2.1]}, "not identified: comes out with M=8; M=32"),
        (3.0, {"M=8": [2.0], "M=32": [3.0]}, "fitted: comes out only with M=8"),
        (3.0, {"M=8": [2.0], "M=32": [2.1, 1.9, 2.3]}, "not identified: comes out with M=8"),
        (2.1, {"M=8": [2.1, 1.9, 2.3]}, "cannot tell: the interval crosses an end with M=8"),
        (3.0, {"M=8": [4.0]}, "not reproduced"),
    ],
)
def test_what_the_paper_does_not_print_is_varied(ours, others, verdict):
    assert str(judge(CLAIM, VARIED(value=ours, others=others))) == verdict


@pytest.mark.parametrize("fidelity", get_args(Fidelity))
@pytest.mark.parametrize("end", ENDS[""])
@pytest.mark.parametrize("off", [-0.1, 0.1])
def test_a_bar_across_a_limit_never_decides(fidelity, end, off):
    ours = replace(OURS, value=end + off, low=end + off - 0.15, high=end + off + 0.15)
    for changed in ({}, {"implied": "a"}, {"fitted": "a"}, {"formulas": {"a": 2.0}}):
        claim = replace(CLAIM, **changed)
        assert judge(claim, replace(ours, fidelity=fidelity)).word == "cannot tell"


def test_what_a_formula_gives_for_every_k_and_m_is_never_consistent():
    always = [claim for claim in all_claims() if any(map(claim.agrees, claim.formulas.values()))]
    assert {f"bubble/K={K}/below theory" for K in KS} <= {claim.id for claim in always}
    for claim in always:
        for fidelity in get_args(Fidelity):
            for value in (claim.value, *claim.formulas.values()):
                ours = Evidence(value, fidelity, ("run",), papers_size=True)
                assert judge(claim, ours).word != "consistent", claim.id


def test_one_number_is_held_against_a_claim():
    """The mean of those that are known best; one that says nothing stands last."""
    at = "table2/transformer/K=8/M=32"
    small, large = (
        Evidence(value, "measured", (f"{value}",), value, value) for value in (5.0, 6.0)
    )
    simulated = Evidence(7.0, "simulated", ("c",), papers_size=True)
    assert chosen([(at, small), (at, simulated)]) == {at: simulated}
    measured = [replace(each, papers_size=True) for each in (small, large)]
    (both,) = chosen([(at, each) for each in (simulated, *measured, small)]).values()
    assert (both.value, both.low, both.high, both.runs) == (5.5, 5.0, 6.0, ("5.0", "6.0"))


def test_every_claim_agrees_with_its_own_printed_number():
    for claim in all_claims():
        # A sentence without a number has only a limit. Constant throughput at M=1 is read as 1.
        assert claim.value != claim.value or claim.agrees(claim.value), claim.id
        assert all(low <= high for low, high in claim.readings.values()), claim.id
        assert claim.tolerance, claim.id
        assert claim.experiment or claim.needs or claim.formulas, claim.id


NAMES = {"bubble": theory.bubble, "speedup": theory.speedup_over_k1}
FORMULAS = [
    (line, number, formula) for line in audit() for number, formula in line["formulas"].items()
]


@pytest.mark.parametrize(("line", "number", "formula"), FORMULAS, ids=[f[2] for f in FORMULAS])
def test_what_follows_by_the_audit_is_what_its_formula_gives(line, number, formula):
    digits = len(number.partition(".")[2])
    assert f"{eval(formula, NAMES):.{digits}f}" == number
    assert number in f"{line['follows']} {line['arithmetic']}"
