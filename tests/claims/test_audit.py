"""The audit's arithmetic: what it says follows from printed numbers is what its formulas give."""

import pytest

from repro.claims.all_claims import audit
from repro.paper import theory

NAMES = {"bubble": theory.bubble, "speedup": theory.speedup_over_k1}
FORMULAS = [
    (line, number, formula) for line in audit() for number, formula in line["formulas"].items()
]


@pytest.mark.parametrize(("line", "number", "formula"), FORMULAS, ids=[f[2] for f in FORMULAS])
def test_a_number_is_what_its_formula_gives(line, number, formula):
    digits = len(number.partition(".")[2])
    assert f"{eval(formula, NAMES):.{digits}f}" == number
    assert number in f"{line['follows']} {line['arithmetic']}"
