"""The tables of fine-tuning, from made-up records."""

from dataclasses import replace

import pytest
from recorded import at_scale, changed_runs, fill_with

from experiments.table4 import report
from experiments.table4.runs import DIGITS, STEPS
from repro.harness import catalog
from repro.harness.job import Measured
from repro.harness.results import Results, Run, load
from repro.harness.schema import LearnRound

SEEDS = (0.01, -0.01, 0.02, -0.02, 0.0)  # what a seed adds to every accuracy
TITLES = [task.title for task in DIGITS]


def training(accuracy: float, **metrics: float) -> Measured:
    """A training that ends with an accuracy."""
    return Measured(
        LearnRound(
            balance=[1],
            setup_s=0.1,
            unit="images/s",
            labels={},
            loss=[1.0],
            metrics={"loss": 1.0, "accuracy": accuracy, **metrics},
            parameters=2,
            seconds=1.0,
            examples=64,
            digest="",
        )
    )


@pytest.fixture(scope="module")
def usual(tmp_path_factory: pytest.TempPathFactory) -> Results:
    """Trainings at scale laptop that are all alike."""
    path = tmp_path_factory.mktemp("table4")
    plan = catalog.find("table4").build("laptop")
    fill_with(path, plan, lambda _run, _round: training(0.7))
    return load(path)


def changed(usual: Results, gains: tuple[float, ...] = (0.1,) * 4) -> Results:
    """From scratch 0.7, and fine-tuned better by the gain of its task."""
    arguments = [task.data_args for task in DIGITS]

    def measured(run: Run) -> Measured:
        given, noise = run.spec.training, SEEDS[run.spec.seed]
        assert given is not None
        if given.pretraining is None:
            few_updates = run.spec.steps == STEPS["laptop"][1]
            return training((0.5 if few_updates else 0.7) + noise)
        gain = gains[arguments.index(given.data_args)]
        # The gain differs a little from seed to seed.
        return training(0.7 + gain + 1.5 * noise, **{"pretraining accuracy": 0.9 + noise})

    def change(run: Run) -> Run:
        return replace(run, rounds=(replace(run.rounds[0], record=measured(run).record),))

    return changed_runs(usual, change)


def ours(results: Results) -> dict[str, dict[str, str]]:
    """The lines of our table as they are shown, by task."""
    shown = report.tables(results)[0].shown.to_dict("records")
    return {line["task"]: line for line in shown}


TREND = "trend (smaller models)"
REVERSED = "not reproduced (smaller models): reversed"
NOT_SHOWN = "not reproduced (smaller models): no direction shown"


@pytest.mark.parametrize(
    ("gains", "verdicts", "together"),
    [
        ((0.1, 0.1, 0.1, 0.1), ["helps"] * 4, TREND),
        ((0.1, 0.1, 0.0, 0.1), ["helps", "helps", "not shown", "helps"], TREND),
        (
            (0.1, 0.1, -0.1, 0.1),
            ["helps", "helps", "worse", "helps"],
            REVERSED,
        ),
        (
            (0.1, 0.0, 0.0, 0.1),
            ["helps", "not shown", "not shown", "helps"],
            NOT_SHOWN,
        ),
    ],
)
def test_the_verdict_follows_the_numbers(usual, gains, verdicts, together):
    lines = ours(changed(usual, gains))
    assert [lines[title]["verdict"] for title in TITLES] == verdicts
    assert lines[report.ALL_TASKS]["verdict"] == together


def test_fewer_than_five_seeds_show_nothing(usual):
    results = changed(usual)
    runs = [run for run in results.runs if run.spec.seed < 4]
    lines = ours(Results(runs, results.folders))
    assert lines[TITLES[0]]["seeds"] == "4"
    assert lines[report.ALL_TASKS]["verdict"].startswith("not tested here: too few")


def test_tiny_runs_have_neither_verdict_nor_paper(usual):
    tiny = changed_runs(changed(usual), lambda run: at_scale(run, "smoke"))
    (table,) = report.tables(tiny)
    assert "verdict" not in table.shown.columns
