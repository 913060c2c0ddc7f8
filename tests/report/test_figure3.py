"""Figure 3's tables on made-up trainings: larger is better, and small languages gain most."""

from pathlib import Path

import pytest
from recorded import fill_with
from trainings import trained

from experiments.figure3 import report, runs
from experiments.figure3.languages import printed_gain
from experiments.figure3.languages import trained as trainings
from experiments.translation import PAPER_SIZES, SIZES, TOY, size_of
from repro.harness.results import Results, load
from repro.harness.spec import RunSpec
from repro.report.style import styled
from repro.report.table import Table

PAIRS = {language: 20_000 // (place + 1) for place, language in enumerate(TOY)}


def made_up(path: Path, *, for_size: float, for_depth: float, for_transfer: float) -> Results:
    """Baselines have BLEU 20; every place among sizes and languages adds to a multilingual one."""

    def made(run: RunSpec, _number: int):
        assert run.training is not None
        languages = run.training.data
        if len(languages) == 1:
            (language,) = languages
            values = {"bleu": 20.0 + run.seed, f"bleu {language}": 20.0 + run.seed}
            return trained(values, pairs=str(PAIRS[language]))
        place = SIZES.index(size_of(run))
        bleu = {
            f"bleu {language}": 18.0
            + run.seed
            + for_size * place
            + for_transfer * TOY.index(language)
            + (for_depth if place == runs.DEEP else 0)
            for language in languages
        }
        return trained(bleu, 1000 * (place + 1), pairs=str(sum(PAIRS.values())))

    fill_with(path, runs.experiment("laptop"), made)
    return load(path)


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    path = tmp_path_factory.mktemp("results")
    return made_up(path, for_size=1.0, for_depth=2.0, for_transfer=0.5)


def column(table: Table, *name: str) -> list:
    return list(table.data[name])


def test_tiers_are_thirds_by_recorded_pairs(results: Results):
    (place,) = trainings(results)
    assert place.tier("high") == [*TOY[:3]]
    assert place.tier("low") == [*TOY[6:]]
    assert place.sizes == [*SIZES]


def test_claims_that_do_not_hold_are_not_shown(tmp_path: Path):
    opposite = made_up(tmp_path, for_size=-1.0, for_depth=-2.0, for_transfer=-0.5)
    verdicts = column(report.claims(opposite), "", "verdict")
    assert verdicts[:3] == ["not reproduced (smaller models): reversed"] * 3


def test_the_paper_s_points_in_thirds():
    smallest, largest = PAPER_SIZES[0], PAPER_SIZES[-1]
    assert printed_gain(smallest, "high") == pytest.approx(-4.3)
    assert printed_gain(largest, "low") == pytest.approx((10.1 + 12.1) / 2)


def test_one_figure_ours_beside_the_paper_s(results: Results):
    with styled():
        ((name, figure, _),) = report.figures(results, results.runs)
        assert name == "gains"
        assert figure is not None
        assert [axes.get_title("left") for axes in figure.axes] == [
            "measured, toy languages",
            "quoted",
        ]
