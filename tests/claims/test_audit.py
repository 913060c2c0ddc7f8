"""The audit's arithmetic: what it says follows from printed numbers is what its formulas give."""

import pytest

from repro.claims.audit import audit
from repro.paper import table1, table2, table3, table4, theory, translation_models

NAMES = {"bubble": theory.bubble, "speedup": theory.speedup_over_k1}
FORMULAS = [
    (line, number, formula) for line in audit() for number, formula in line.formulas.items()
]


@pytest.mark.parametrize(("line", "number", "formula"), FORMULAS, ids=[f[2] for f in FORMULAS])
def test_a_number_is_what_its_formula_gives(line, number, formula):
    digits = len(number.partition(".")[2])
    assert f"{eval(formula, NAMES):.{digits}f}" == number
    assert number in f"{line.follows} {line.arithmetic}"


def test_what_the_audit_counts_is_in_the_tables():
    ideal = [theory.speedup_over_k2m1(cell.K, cell.M, "plain") for cell in table2()]
    above = [one.value > most + 0.005 for one, most in zip(table2(), ideal, strict=True)]
    assert sum(above) == 7
    transfer = [row for row in table4() if row.dataset != "ImageNet-2012"]
    assert [row.accuracy > row.previous_best for row in transfer].count(True) == 5
    sizes = {size.parameters for size in table1()}
    sizes |= {model.parameters for model in translation_models()}
    assert not sizes & {500e6, 2e9, 4e9, 8e9}
    ratios = {(cell.K, cell.value) for cell in (*table2(), *table3())}
    assert (4, 3.2) in ratios
    assert (8, 5.8) not in ratios
    assert [cell.model for cell in table2() if cell.value == 6.3] == ["transformer"]
    assert max(size.accelerators for size in table1()) == 128
    assert max(model.partitions or 0 for model in translation_models()) == 16
