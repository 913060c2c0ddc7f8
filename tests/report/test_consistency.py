"""The table of distances between trainings, from made-up records."""

from dataclasses import replace
from typing import Any

import pytest
from recorded import changed_runs, fill_with

from experiments.consistency import report
from experiments.consistency.runs import BASE_M, LIMIT
from repro.harness import catalog
from repro.harness.job import Measured
from repro.harness.results import Results, Run, load
from repro.harness.schema import LearnRound
from repro.report.style import styled

WEIGHTS = [3.0, 4.0]  # of norm 5


def training(shift: float, digest: str = "same", loss: float = 2.0) -> Measured:
    """A training whose first weight is off by `shift`."""
    return Measured(
        LearnRound(
            balance=[1],
            setup_s=0.1,
            unit="images/s",
            labels={},
            loss=[3.0, loss],
            metrics={"loss": loss},
            parameters=2,
            seconds=1.0,
            examples=64,
            digest=digest,
            weights=[WEIGHTS[0] + shift, WEIGHTS[1]],
        )
    )


@pytest.fixture(scope="module")
def usual(tmp_path_factory: pytest.TempPathFactory) -> Results:
    """Trainings at scale laptop that are all the same."""
    path = tmp_path_factory.mktemp("consistency")
    plan = catalog.find("consistency").build("laptop")
    fill_with(path, plan, lambda _run, _round: training(0.0))
    return load(path)


def changed(
    usual: Results, replicas: float = 1e-7, batch_norm: float = 0.5, **stages: Any
) -> Results:
    """How far the weights of D=2 are off, those of M=1 with batch norm, and what K=4 gives."""

    def measured(run: Run) -> Measured:
        if run.D == 2:
            return training(replicas, digest="other")
        if run.M != BASE_M:
            shift = batch_norm if run.model == "amoebanet-b" else 1e-6
            return training(shift * (1 + run.spec.seed / 10), digest="other")
        return training(0.0, **stages) if run.K == 4 else training(0.0)

    def change(run: Run) -> Run:
        return replace(run, rounds=(replace(run.rounds[0], record=measured(run).record),))

    return changed_runs(usual, change)


def lines(results: Results) -> dict[tuple[str, str], dict[str, str]]:
    """The lines of the table as they are shown, by model and change."""
    (table,) = report.tables(results)
    return {
        (line["model"].split(",")[0], line["change"]): line
        for line in table.shown.to_dict("records")
    }


def test_every_change_has_a_line_for_each_model(usual):
    shown = lines(changed(usual))
    changes = ["K=2", "K=4", "D=2 with M=2", "M=1, no dropout"]
    assert list(shown) == [
        (model, change) for model in ("AmoebaNet-B", "translation") for change in changes
    ]
    assert shown["translation", "K=4"]["seeds"] == "2"
    assert shown["translation", "M=1, no dropout"]["seeds"] == "5"


def test_equal_bits_are_reproduced(usual):
    line = lines(changed(usual))["AmoebaNet-B", "K=4"]
    assert (line["identical"], line["verdict"]) == ("2 of 2", "reproduced")
    assert line["relative distance"] == "0"


@pytest.mark.parametrize("tampered", [{"digest": "other"}, {"loss": 2.0000001}])
def test_one_other_bit_or_loss_is_not_reproduced(usual, tampered):
    shown = lines(changed(usual, **tampered))
    assert shown["translation", "K=4"]["verdict"] == "not reproduced"
    assert shown["translation", "K=4"]["identical"] == "0 of 2"
    assert shown["translation", "K=2"]["verdict"] == "reproduced"


@pytest.mark.parametrize(("factor", "verdict"), [(0.9, "within 1e-06"), (1.1, "not within 1e-06")])
def test_replicas_are_held_to_the_limit_of_relative_distance(usual, factor, verdict):
    line = lines(changed(usual, replicas=5 * LIMIT * factor))["translation", "D=2 with M=2"]
    assert line["verdict"] == verdict
    assert line["relative distance"] == f"{LIMIT * factor:.1e}"


@pytest.mark.parametrize(
    ("distance", "verdict"),
    [(0.5, "trend: batch norm makes M matter"), (1e-6, "not shown at this size")],
)
def test_batch_norm_matters_where_its_interval_lies_above(usual, distance, verdict):
    shown = lines(changed(usual, batch_norm=distance))
    assert shown["AmoebaNet-B", "M=1, no dropout"]["verdict"] == verdict
    assert shown["translation", "M=1, no dropout"]["verdict"] == "without batch norm"


def test_the_distance_is_relative_and_has_an_interval(usual):
    (table,) = report.tables(changed(usual))
    rows = table.data.set_index(["model", "change"])
    row = rows.loc[("amoebanet-b", "M=1, no dropout")]
    assert row["relative distance"] == pytest.approx(0.12)  # 0.1 to 0.14 of five seeds
    assert row["relative distance: low"] < 0.12 < row["relative distance: high"]
    assert row["greatest relative distance"] == pytest.approx(0.14)
    assert row["greatest difference"] == pytest.approx(0.7)


def test_the_figure_shows_what_is_not_identical(usual):
    results = changed(usual)
    with styled():
        ((name, figure, _),) = report.figures(results, results.runs)
        assert figure is not None
        labels = [[line.get_label() for line in axes.lines] for axes in figure.axes]
    assert name == "distances"
    assert labels == [["D=2 with M=2", "M=1, no dropout"]] * 2
