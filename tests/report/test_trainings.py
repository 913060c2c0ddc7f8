"""The exhibits of trainings on made-up records: Tables 4, Figures 1 and 3, and consistency."""

from collections.abc import Callable, Mapping
from math import isnan
from pathlib import Path

import pandas as pd
import pytest
from recorded import at_scale, changed_runs, fill_with

from experiments.consistency import report as consistency
from experiments.consistency.runs import BASE_M, LIMIT
from experiments.figure1 import report as figure1
from experiments.figure1.runs import SIZES_OF
from experiments.figure3 import report as figure3
from experiments.figure3.runs import DEEP
from experiments.table4 import report as table4
from experiments.table4.runs import DIGITS, STEPS
from experiments.translation import SIZES, TOY, size_of
from repro.harness import catalog
from repro.harness.job import Measured
from repro.harness.results import Results, load
from repro.harness.schema import LearnRound
from repro.harness.spec import RunSpec
from repro.report.table import Table

TREND = "trend (smaller models)"
REVERSED = "not reproduced (smaller models): reversed"
NOT_SHOWN = "not reproduced (smaller models): no direction shown"


def trained(metrics: Mapping[str, float], **fields: object) -> LearnRound:
    """The record of a training with these metrics on its test data."""
    usual = {"loss": [2.0, 1.0], "parameters": 1000, "seconds": 1.0, "examples": 64, "digest": ""}
    more = {"balance": [1], "setup_s": 0.1, "unit": "images/s", "labels": {}}
    return LearnRound(**{**usual, **more, "metrics": dict(metrics), **fields})  # type: ignore[arg-type]


def recorded(path: Path, name: str, made: Callable[[RunSpec], LearnRound]) -> Results:
    plan = catalog.find(name).build("laptop")
    fill_with(path, plan, lambda spec, _round: Measured(made(spec)))
    return load(path)


def by(table: Table, column: str) -> dict[str, dict[str, str]]:
    return {line[column]: line for line in table.shown.to_dict("records")}


def fine_tuned(path: Path, gains: tuple[float, ...]) -> Results:
    """From scratch 0.7, and fine-tuned better by the gain of its task, with noise of the seed."""
    arguments = [task.data_args for task in DIGITS.values()]

    def made(spec: RunSpec) -> LearnRound:
        assert spec.training is not None
        noise = (0.01, -0.01, 0.02, -0.02, 0.0)[spec.seed]
        if spec.training.pretraining is None:
            return trained({"accuracy": (0.5 if spec.steps == STEPS["laptop"][1] else 0.7) + noise})
        gain = gains[arguments.index(spec.training.data_args)] + 1.5 * noise
        return trained({"accuracy": 0.7 + gain, "pretraining accuracy": 0.9 + noise})

    return recorded(path, "table4", made)


@pytest.mark.parametrize(
    ("gains", "verdicts", "together"),
    [
        ((0.1, 0.1, 0.0, 0.1), ["helps", "helps", "not shown", "helps"], TREND),
        ((0.1, 0.1, -0.1, 0.1), ["helps", "helps", "worse", "helps"], REVERSED),
        ((0.1, 0.0, 0.0, 0.1), ["helps", "not shown", "not shown", "helps"], NOT_SHOWN),
    ],
)
def test_fine_tuning_must_help_on_three_tasks_and_be_worse_on_none(
    tmp_path, gains, verdicts, together
):
    results = fine_tuned(tmp_path, gains)
    lines = by(table4.tables(results)[0], "task")
    assert [lines[task]["verdict"] for task in DIGITS] == verdicts
    assert lines[table4.ALL_TASKS]["verdict"] == together
    few = Results([run for run in results.runs if run.spec.seed < 4], results.journals)
    lines = by(table4.tables(few)[0], "task")
    assert lines[table4.ALL_TASKS]["verdict"].startswith("not tested here: too few")
    (table,) = table4.tables(changed_runs(results, lambda run: at_scale(run, "smoke")))
    assert "verdict" not in table.shown.columns


@pytest.mark.parametrize(("b", "verdict"), [(0.25, TREND), (-0.05, REVERSED)])
def test_the_exponent_is_found_with_an_interval(tmp_path, b, verdict):
    """Error = 200 P^-b % and BLEU = P^b / 10, with P = 1000, 2000 and so on; seeds add 1 %."""
    widths, sizes = SIZES_OF["laptop"].widths, SIZES_OF["laptop"].models

    def made(spec: RunSpec) -> LearnRound:
        images = spec.model == "amoebanet-b"
        P = 1000 * 2 ** (
            widths.index(spec.model_args["D"])
            if images
            else [(size.L, size.H) for size in sizes].index(size_of(spec)[:2])
        )
        noise = 1 + 0.01 * spec.seed
        quality = {"accuracy": 1 - 2 * P**-b * noise} if images else {"bleu": P**b / 10 * noise}
        return trained(quality, parameters=P)

    data = figure1.laws(recorded(tmp_path, "figure1", made)).data
    assert list(data["measured b"]) == pytest.approx([b, b])
    assert ((data["measured b: high"] - b).between(0, 0.05)).all()
    assert ((b - data["measured b: low"]).between(0, 0.05)).all()
    assert list(data["verdict"]) == [verdict] * 2


def test_no_law_through_two_points_or_a_quality_of_zero():
    def law(quality: list[float]) -> figure1.PowerLaw:
        P = [10.0, 100.0, 1000.0][: len(quality)]
        return figure1.power_law(pd.DataFrame({"parameters": P, "quality": quality}), -1)

    assert isnan(law([1.0, 0.0, 2.0]).b)
    assert isnan(law([1.0, 2.0]).b)
    assert (law([100.0, 10.0, 1.0]).b, law([100.0, 10.0, 1.0]).a) == pytest.approx((1.0, 1000.0))


@pytest.mark.parametrize(("sign", "verdict"), [(1, TREND), (-1, REVERSED)])
def test_claims_about_languages_follow_the_numbers(tmp_path, sign, verdict):
    """Baselines have BLEU 20; size, depth and little data add to a multilingual model."""

    def made(spec: RunSpec) -> LearnRound:
        assert spec.training is not None
        of = spec.training.data
        if len(of) == 1:
            pairs = str(20_000 // (TOY.index(of[0]) + 1))
            return trained({"bleu": 20.0 + spec.seed}, labels={"pairs": pairs})
        place = SIZES.index(size_of(spec))
        gain = {language: 0.5 * TOY.index(language) + place for language in of}
        deep = 2.0 * (place == DEEP)
        bleu = {f"bleu {name}": 18.0 + sign * (value + deep) for name, value in gain.items()}
        return trained(bleu, parameters=1000 * (place + 1), labels={"pairs": "9"})

    results = recorded(tmp_path, "figure3", made)
    assert list(figure3.claims(results).data["verdict"])[:3] == [verdict] * 3
    (place,) = figure3.places(results)
    tiers = place.bleu.groupby("tier", sort=False)["language"].unique()
    assert [[*each] for each in tiers] == [[*TOY[:3]], [*TOY[3:6]], [*TOY[6:]]]


def test_the_papers_points_in_thirds():
    gains = figure3.printed_gains()
    assert gains.loc["T(6,8192,16)", "high"] == pytest.approx(-4.3)
    assert gains.loc["T(64,16384,32)", "low"] == pytest.approx((10.1 + 12.1) / 2)


def apart(
    path: Path, replicas: float = 1e-7, batch_norm: float = 0.5, **stages: object
) -> dict[tuple[str, str], dict[str, str]]:
    """The lines where the weights of D=2 and M=1 are off by so much, and K=4 has these fields."""

    def made(spec: RunSpec) -> LearnRound:
        shift = 0.0
        if spec.D == 2:
            shift = replicas
        elif spec.M != BASE_M:
            shift = batch_norm if spec.model == "amoebanet-b" else 1e-6
            shift *= 1 + spec.seed / 10
        fields = {"digest": "other"} if shift else stages if spec.K == 4 else {}
        return trained({"loss": 1.0}, **{"weights": [3.0 + shift, 4.0], **fields})

    (table,) = consistency.tables(recorded(path, "consistency", made))
    lines = table.shown.to_dict("records")
    return {(line["model"].split(",")[0], line["change"]): line for line in lines}


@pytest.mark.parametrize(
    ("given", "line", "verdict"),
    [
        ({}, ("AmoebaNet-B", "K=4"), "reproduced"),
        ({"digest": "other"}, ("translation", "K=4"), "not reproduced"),
        ({"loss": [2.0, 1.0000001]}, ("translation", "K=4"), "not reproduced"),
        ({"replicas": 4.5 * LIMIT}, ("translation", "D=2 with M=2"), "within 1e-06"),
        ({"replicas": 5.5 * LIMIT}, ("translation", "D=2 with M=2"), "not within 1e-06"),
        ({}, ("AmoebaNet-B", "M=1, no dropout"), "trend: batch norm makes M matter"),
        ({"batch_norm": 1e-6}, ("AmoebaNet-B", "M=1, no dropout"), "not shown at this size"),
    ],
)
def test_trainings_are_held_to_the_rules(tmp_path, given, line, verdict):
    lines = apart(tmp_path, **given)
    assert len(lines) == 8
    assert lines[line]["verdict"] == verdict
    if verdict == "reproduced":
        assert lines[line]["identical"] == "2 of 2"
        assert lines["AmoebaNet-B", "M=1, no dropout"]["relative distance"].startswith("1.2e-01 [")
