"""Figure 1's tables on made-up trainings that follow a power law exactly, or do not."""

from math import isnan
from pathlib import Path

import pytest
from recorded import fill_with
from trainings import trained

from experiments.figure1 import report, runs
from repro.harness.results import Results, load
from repro.harness.spec import RunSpec
from repro.report.style import styled

WIDTHS, SIZES = runs.WIDTHS["laptop"], runs.SMALL_SIZES["laptop"]


def made_up(path: Path, b: float) -> Results:
    """Error = 200 P^-b % and BLEU = P^b / 10, with P = 1000, 2000 and so on; seeds add 1 %."""

    def made(run: RunSpec, _number: int):
        if run.model == "amoebanet-b":
            place = WIDTHS.index(run.model_args["D"])
        else:
            place = [size.L * size.H for size in SIZES].index(
                run.model_args["L"] * run.model_args["H"]
            )
        P = 1000 * 2**place
        noise = 1 + 0.01 * run.seed
        return trained({"accuracy": 1 - 2 * P**-b * noise, "bleu": P**b / 10 * noise}, P)

    fill_with(path, runs.experiment("laptop"), made)
    return load(path)


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    return made_up(tmp_path_factory.mktemp("results"), 0.25)


def test_the_exponent_is_found_with_an_interval(results: Results):
    table = report.laws(results)
    assert list(table.data["measured", "b"]) == pytest.approx([0.25, 0.25])
    assert list(table.data["", "n"]) == [12, 12]
    for end, sign in (("low", -1), ("high", 1)):
        for value in table.data["measured", f"b: {end}"]:
            assert 0 < sign * (value - 0.25) < 0.05
    assert list(table.data["", "verdict"]) == ["trend (smaller models)"] * 2
    assert len(table.shown.columns) <= 7


def test_no_trend_where_quality_falls_with_size(tmp_path: Path):
    table = report.laws(made_up(tmp_path, -0.05))
    assert list(table.data["", "verdict"]) == ["not reproduced (smaller models): reversed"] * 2


def test_no_law_through_a_quality_of_zero():
    assert isnan(report.power_law([(10, 1.0), (20, 0.0), (30, 2.0)], 1).b)
    assert isnan(report.power_law([(10, 1.0), (20, 2.0)], 1).b)
    law = report.power_law([(10, 100.0), (100, 10.0), (1000, 1.0)], -1)
    assert (law.b, law.a) == pytest.approx((1.0, 1000.0))


def test_one_figure_with_two_halves(results: Results):
    with styled():
        ((name, figure, _),) = report.figures(results, results.runs)
        assert name == "sizes"
        assert figure is not None
        assert [axes.get_title("left") for axes in figure.axes] == ["(a) images", "(b) translation"]
