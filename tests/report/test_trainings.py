"""The exhibits of trainings on made-up records: the rules that all share, and consistency."""

from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from recorded import MACHINE, at_scale, changed_runs, fill_with

from experiments import learned
from experiments.compared import fell
from experiments.table5 import report as table5
from experiments.table5.runs import END, HALF, ORDER, RATES, UPDATES, arm_of
from repro.claims.all_claims import all_claims
from repro.harness import catalog
from repro.harness.job import Measured
from repro.harness.results import Results, load
from repro.harness.schema import CutModel, FitRound, Fitted, LearnRound, RoundRecord
from repro.harness.spec import RunSpec, Scale
from repro.report.style import styled


def trained(metrics: Mapping[str, float], **fields: object) -> LearnRound:
    """The record of a training with these metrics on its test data."""
    usual = {"loss": [2.0, 1.0], "parameters": 1000, "seconds": 1.0, "examples": 64, "digest": ""}
    more = {"balance": [1], "setup_s": 0.1, "unit": "images/s", "labels": {}}
    return LearnRound(**{**usual, **more, "metrics": dict(metrics), **fields})  # type: ignore[arg-type]


def recorded(
    path: Path, name: str, made: Callable[[RunSpec], RoundRecord], scale: Scale = "laptop"
) -> Results:
    plan = catalog.find(name).build(scale)
    fill_with(path, plan, lambda spec, _round: Measured(made(spec)), place=(MACHINE, scale))
    return load(path)


STILL = {str(step): 1.0 - 0.001 * step for step in range(20)}  # validation losses at rest
NOISE = (0.3, -0.2, 0.1, -0.4, 0.2)


def batches(path: Path, **changed: Mapping[str, Any]) -> Results:
    """Table 5 where N=128 has 10 more BLEU than N=8, but for fields of arms or metrics of them."""

    def made(spec: RunSpec) -> LearnRound:
        assert spec.training is not None
        arm, at_rest = spec.training.arm, dict(STILL)
        bleu = 70.0 if arm.endswith("N=128") else 60.0
        of_arm: dict[str, Any] = {"bleu": bleu, "validation": at_rest}
        if arm == HALF:
            of_arm["bleu"] = 55.0
        of_arm |= changed.get(arm, {})
        if spec.training.tuning:
            # The chosen rate is the best, but for an arm that says otherwise.
            protocol = next(each for each in RATES if arm.startswith(each))
            chosen = RATES[protocol][(8, 32, 128).index(spec.N)]
            rate = spec.training.recipe["lr"]
            worse = {of_arm.get("best", chosen): 0.0, **of_arm.get("worse", {})}
            return trained({}, validation={"1": 2.0 + worse.get(rate, 1.0)})
        noise = NOISE[spec.seed]
        loss = of_arm.get("loss", 5.0 - of_arm["bleu"] / 20) - noise / 20
        metrics = {"bleu": of_arm["bleu"] + noise, "loss": loss}
        return trained(metrics, validation=of_arm["validation"])

    return recorded(path, "table5", made, "overnight")


def verdict(results: Results, of: str) -> str:
    lines = table5.tables(results)[0].shown.to_dict("records")
    return next(line["verdict"] for line in lines if of in line["comparison"])


FALLING, RISING = ({str(step): 1.0 + by * step for step in range(20)} for by in (-0.01, 0.01))
SMALLEST, LARGEST = (arm_of(UPDATES, N) for N in (8, 128))
NOT = "not tested here: "


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({}, "trend (smaller models)"),
        ({LARGEST: {"validation": FALLING}}, f"{NOT}not converged: {LARGEST}"),
        ({LARGEST: {"validation": RISING}}, f"{NOT}not converged: {LARGEST}"),
        ({LARGEST: {"validation": dict.fromkeys(STILL, 0.0)}}, "trend (smaller models)"),
        ({SMALLEST: {"worse": {0.004: 0}}}, f"{NOT}the best rate is the last"),
        ({LARGEST: {"bleu": 97.0}}, f"{NOT}saturated: {LARGEST}"),
        ({LARGEST: {"bleu": 50.0}}, "not reproduced (smaller models): reversed"),
        ({LARGEST: {"loss": 2.5}}, f"{NOT}quality and loss do not both show it"),
        ({SMALLEST: {"best": 0.004}}, f"{NOT}another rate or dropout is better: {SMALLEST}"),
        ({ORDER: {"bleu": 55.0}}, f"{NOT}a control fails: another order over"),
        ({HALF: {"bleu": 60.0}}, f"{NOT}a control fails: equal updates, N=32 over half"),
        ({HALF: {"validation": FALLING}}, f"{NOT}a control cannot be told: equal updates, N=32"),
    ],
)
def test_arms_count_by_the_rules(tmp_path, changed, words):
    results = batches(tmp_path, **changed)
    assert verdict(results, LARGEST).startswith(words)
    if changed:
        return
    _, arms = table5.tables(results)
    assert arms.text("converged", arm=LARGEST) == "yes, 0.4 %"
    assert arms.text("measured BLEU", arm=LARGEST).startswith("70.00 [")
    tried = arms.text("rate (validation loss or error of those tried)", arm=SMALLEST)
    assert "0.008: 2.000" in tried
    few = Results([run for run in results.runs if run.spec.seed != 4], results.journals)
    assert verdict(few, LARGEST).startswith(f"{NOT}4 of 5 seeds")
    untried = [run for run in results.runs if run.spec.seed != learned.TUNING_SEEDS[1]]
    text = f"{NOT}rates are left to try: {SMALLEST}"
    assert verdict(Results(untried, results.journals), LARGEST).startswith(text)
    as_good = {arm_of(END, 8): {"worse": {0.004: -1e-9}}}  # but for rounding, and not at the edge
    assert verdict(batches(tmp_path / "as good", **as_good), arm_of(END, 128)).startswith("trend")
    (gains, _) = table5.tables(changed_runs(results, lambda run: at_scale(run, "smoke")))
    assert "verdict" not in gains.shown.columns


@pytest.mark.parametrize(("images", "at_rest"), [(1, True), (2, False)])
def test_an_error_that_falls_by_one_image_is_at_rest(images, at_rest):
    errors = [10 / 357] * 19 + [(10 - images) / 357]
    assert fell(errors) > learned.STILL
    assert (fell(errors, learned.ONE_IMAGE / learned.STILL) < learned.STILL) == at_rest


@pytest.mark.parametrize("name", ["table4", "figure1", "figure3"])
@pytest.mark.parametrize("scale", ["overnight", "laptop"])
def test_every_exhibit_of_trainings_reads_its_arms(tmp_path, name, scale):
    """Quality grows with the parameters, which are other ones for each arm."""
    arms: list[str] = []

    def made(spec: RunSpec) -> RoundRecord:
        if spec.training is None:
            size = CutModel(args={}, parameters=10, fullest=0, balance=[1], stages=[])
            fit = Fitted(largest=size, next=None)
            return FitRound(balance=[1], setup_s=0.1, unit="", labels={}, fit=fit)
        if spec.training.arm not in arms:
            arms.append(spec.training.arm)
        quality = (0.5 + 0.01 * arms.index(spec.training.arm)) * (1 + spec.seed / 1000)
        metrics = {"accuracy": quality, "loss": 1 - quality / 2}
        if spec.training.pretraining:
            metrics["pretraining accuracy"] = 0.5
        if spec.model == "translation":
            names = [language.removeprefix("toy:") for language in spec.training.data]
            of_each = {"bleu": 50 * quality, "loss": 1 - quality / 2}
            metrics = {f"{what} toy:{name}": v for what, v in of_each.items() for name in names}
            metrics |= of_each
        metrics = {} if spec.training.tuning else metrics
        count = 1000 * (1 + arms.index(spec.training.arm))
        return trained(metrics, parameters=count, validation=STILL)

    results = recorded(tmp_path, name, made, scale)
    report = import_module(f"experiments.{name}.report")
    first, *_ = report.tables(results)
    assert len(first.shown) >= 3
    assert {claim for claim, _ in report.evidence(results)} <= {claim.id for claim in all_claims()}
    with styled():
        assert all(figure is not None for _, figure, _ in report.figures(results))
    for start in range(0, len(results.runs), 7):  # a few arms, or none
        report.tables(Results(results.runs[start : start + 2], results.journals))
    assert all(table.missing for table in report.tables(Results([], [])))
