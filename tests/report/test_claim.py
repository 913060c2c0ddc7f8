"""The rule of verdicts, as a table of cases."""

from math import inf, nan

import pytest

from repro.report.claim import Claim, number

INSIDE, OUTSIDE, CROSSING = (2.0, 1.9, 2.1), (3.0, 2.9, 3.1), (2.0, 0.9, 3.1)


@pytest.mark.parametrize(
    ("ours", "given", "verdict"),
    [
        # A printed number.
        ([number(2.0)], {"paper": 2.0}, "reproduced"),
        ([number(2.06)], {"paper": 2.0, "off": 0.05}, "not reproduced"),
        ([INSIDE], {"paper": 2.0, "off": 0.2}, "reproduced"),
        ([INSIDE], {"paper": 2.0, "off": 0.05}, "cannot tell"),
        ([INSIDE], {"paper": 2.05, "fidelity": "simulated"}, "consistent"),
        ([INSIDE], {"paper": 2.2, "fidelity": "emulated"}, "not reproduced"),
        # Settings that the paper leaves open.
        ([INSIDE, (2.2, 2.0, 2.4)], {"paper": 2.05, "fidelity": "simulated"}, "consistent"),
        ([INSIDE, OUTSIDE], {"paper": 2.0, "fidelity": "simulated"}, "cannot tell"),
        ([number(2.0)], {"paper": 2.0, "fitted": True}, "cannot tell"),
        ([number(3.0)], {"paper": 2.0, "fitted": True}, "not reproduced"),
        # A limit, and a direction, whose end is no effect at all.
        ([number(5.0)], {"most": (5.0,)}, "reproduced"),
        ([number(5.1)], {"most": (5.0,)}, "not reproduced"),
        ([(5.0, 4.0, 6.0)], {"most": (5.0,), "fidelity": "simulated"}, "cannot tell"),
        ([number(7.6)], {"most": (5.0, 10.0)}, "cannot tell"),
        ([number(12.0)], {"most": (5.0, 10.0)}, "not reproduced"),
        ([number(0.0)], {"least": 0.0}, "not reproduced"),
        ([INSIDE], {"least": 0.0, "smaller": True}, "trend"),
        ([(1.0, 0.0, 2.0)], {"least": 0.0, "smaller": True}, "cannot tell"),
        ([(-1.0, -2.0, -0.5)], {"least": 0.0, "smaller": True}, "not reproduced"),
        # Nothing that could be compared.
        ([], {"paper": 2.0}, "not tested here"),
        ([number(nan)], {"paper": 2.0}, "not tested here"),
        ([number(nan), number(2.0)], {"paper": 2.0}, "cannot tell"),
        ([(2.0, 1.0, nan)], {"least": 0.0, "smaller": True}, "not tested here"),
        ([(2.0, -inf, inf)], {"least": 0.0}, "cannot tell"),
        ([number(2.0)], {"least": 0.0, "smaller": True}, "not tested here"),
        ([INSIDE], {"least": 0.0, "smaller": True, "doubt": "a control fails"}, "not tested here"),
    ],
)
def test_the_rule(ours, given, verdict):
    assert Claim("Table 9", "speed", ours, **{"fidelity": "measured", **given}).verdict == verdict


@pytest.mark.parametrize("given", [{}, {"paper": nan}, {"paper": 2.0, "most": (3.0,)}])
def test_a_claim_without_a_printed_number_or_a_limit_is_refused(given):
    with pytest.raises(AssertionError, match="speed: a printed number, or a limit"):
        Claim("Table 9", "speed", [number(2.0)], "measured", **given)
