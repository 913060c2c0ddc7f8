"""How numbers look: at most three significant digits, and one form of an interval."""

from repro.harness.text import TIMES, digits, percent, ranged, ratio, size


def test_a_number_has_three_digits_and_a_count_all():
    numbers = {0.0231: "0.0231", 1.12345e-8: "1.12e-08", 9.996: "10.0", 999.6: "1,000"}
    numbers |= {1339.6: "1,340", 5.32e9: "5.32B", -0.0: "0", 25005: "25,005"}
    assert {value: digits(value) for value in numbers} == numbers
    assert percent(0.149502) == "15.0 %", "not rounded twice"
    assert percent(-1e-17) == "0 %"
    assert [size(nbytes) for nbytes in (17, 1.5e11)] == ["17 B", "140 GiB"]


def test_an_interval_is_in_parentheses_behind_the_unit():
    assert ranged(1.392, 1.351, 1.4249, "s") == "1.39 s (1.35 to 1.42)"
    assert ratio(0.995, 0.98, 1.01) == f"0.995{TIMES} (0.980 to 1.01) ~"
