"""The exhibits of trainings: the rules that all share, and the rates of the recorded ones."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
from recorded import MACHINE, changed_runs, fill_with, with_values

from repro.experiments import compared, learned
from repro.experiments.compared import ONE_IMAGE, STILL, fell, losses_of
from repro.experiments.learned import HALF, ORDER
from repro.experiments.table5 import report as table5
from repro.experiments.table5.runs import END, UPDATES, arm_of
from repro.harness import catalog
from repro.harness.frame import select
from repro.harness.request import Result
from repro.harness.results import Results, Run, load
from repro.harness.schema import LearnRound, RoundRecord
from repro.harness.spec import RunSpec, Scale, canonical
from repro.harness.text import EMPTY
from repro.report.claim import Claim
from repro.report.style import styled


def trained(metrics: Mapping[str, float], **fields: object) -> LearnRound:
    """The record of a training with these metrics on its test data."""
    usual = {"loss": [2.0, 1.0], "parameters": 1000, "seconds": 1.0, "examples": 64, "digest": ""}
    more = {"balance": [1], "setup_s": 0.1, "unit": "images/s", "labels": {}}
    return LearnRound(**{**usual, **more, "metrics": dict(metrics), **fields})  # type: ignore[arg-type]


def recorded(
    path: Path, name: str, made: Callable[[RunSpec], RoundRecord], scale: Scale
) -> Results:
    plan = catalog.find(name).build(scale)
    fill_with(path, plan, lambda spec, _round: Result(made(spec)), place=(MACHINE, scale))
    return load(path)


RESTING = {str(step): 1.0 - 0.001 * step for step in range(20)}  # validation losses
FALLING = {str(step): 1.0 - 0.01 * step for step in range(20)}
NOISE = (0.3, -0.2, 0.1, -0.4, 0.2)  # of the seeds
SMALLEST, LARGEST = (arm_of(UPDATES, N) for N in (8, 128))


def batches(path: Path, scale: Scale = "overnight", **changed: Mapping[str, Any]) -> Results:
    """Table 5 where N=128 has 10 more BLEU than N=8, but for what is changed in some arms."""

    def made(spec: RunSpec) -> LearnRound:
        assert spec.training is not None
        arm = spec.training.arm
        bleu = 70.0 if arm.endswith("N=128") else 55.0 if arm == HALF else 60.0
        of_arm: dict[str, Any] = {"bleu": bleu, "validation": RESTING, **changed.get(arm, {})}
        noise = NOISE[spec.seed % len(NOISE)]
        loss = of_arm.get("loss", 5.0 - of_arm["bleu"] / 20) - noise / 20
        metrics = {"bleu": of_arm["bleu"] + noise, "loss": loss}
        return trained(metrics, validation=of_arm["validation"])

    return recorded(path, "table5", made, scale)


def judged(results: Results, protocol: str) -> Claim:
    return next(claim for claim in table5.claims(results) if claim.what.endswith(protocol))


@pytest.mark.parametrize(
    ("changed", "verdict", "doubt"),
    [
        ({}, "trend", ""),
        ({LARGEST: {"validation": FALLING}}, "not tested here", f"not converged: {LARGEST}"),
        ({LARGEST: {"validation": dict.fromkeys(RESTING, 0.0)}}, "trend", ""),
        ({LARGEST: {"bleu": 97.0}}, "not tested here", f"saturated: {LARGEST}"),
        ({LARGEST: {"bleu": 50.0}}, "not reproduced", ""),
        ({LARGEST: {"loss": 2.5}}, "not tested here", "quality and loss do not both show it"),
        ({ORDER: {"bleu": 55.0}}, "not tested here", "a control fails: another order"),
        ({HALF: {"bleu": 60.0}}, "not tested here", f"a control fails: more than {HALF}"),
        ({HALF: {"validation": FALLING}}, "not tested here", "a control is undecided: more"),
        ({arm_of(END, 128): {"validation": FALLING}}, "trend", ""),  # of another claim
    ],
)
def test_claims_count_by_the_rules(tmp_path, changed, verdict, doubt):
    claim = judged(batches(tmp_path, **changed), UPDATES)
    assert claim.verdict == verdict
    assert claim.doubt.startswith(doubt)
    assert bool(claim.doubt) == bool(doubt)


def test_four_seeds_earn_no_verdict_and_the_two_steps_stand_apart(tmp_path):
    results = batches(tmp_path)
    lines = table5.tables(results)[0].shown.set_index("protocol")
    assert lines.loc[UPDATES, "N=128 (BLEU)"].startswith("70.0 (")
    assert lines.loc[UPDATES, "N=32 minus N=8 (BLEU)"] == "0 (0 to 0)"
    assert lines.loc[UPDATES, "N=128 minus N=32 (BLEU)"] == "10.0 (10.0 to 10.0)"
    few = Results([run for run in results.runs if run.spec.seed != 4], results.journals)
    assert judged(few, UPDATES).doubt == "4 of 5 seeds"
    assert judged(few, UPDATES).verdict == "not tested here"


def test_trainings_of_a_few_updates_are_not_shown(tmp_path):
    results = batches(tmp_path, "laptop")
    assert all(run.done for run in results.runs)
    assert judged(results, UPDATES).verdict == "not tested here"
    assert {*table5.tables(results)[0].shown["N=8 (BLEU)"][1:]} == {EMPTY}


def test_a_curve_is_the_mean_over_seeds_in_a_band_of_all(reference):
    records = select(compared.trained(reference, "table5"), arm=LARGEST)["record"]
    last = [losses_of(record)[-1] for record in records]
    with styled():
        ((_, figure, _),) = table5.figures(reference)
        assert figure is not None
        axes = figure.axes[0]  # equal updates
        corners: Any = axes.collections[0].get_paths()[0].vertices
        assert {y for x, y in corners if x == 100} == {min(last), max(last)}
        line: Any = axes.get_lines()[0]
        assert line.get_ydata()[-1] == pytest.approx(fmean(last))


@pytest.mark.parametrize(("images", "at_rest"), [(1, True), (2, False)])
def test_an_error_that_falls_by_one_image_is_at_rest(images, at_rest):
    errors = [10 / 357] * 19 + [(10 - images) / 357]
    assert fell(errors) > STILL
    assert (fell(errors, ONE_IMAGE / STILL) < STILL) == at_rest


def _key(spec: RunSpec) -> str:
    return canonical(spec.plain())


@pytest.mark.parametrize("name", ["table4", "table5", "figure1", "figure3"])
def test_recorded_rates_are_the_best_of_all_that_the_plan_tries_and_none_is_the_last(
    reference, name
):
    done = {_key(run.spec): run for run in reference.by_experiment[name] if run.done}
    tuned = 0
    for arm in import_module(f"repro.experiments.{name}.runs").arms("overnight"):
        assert all(_key(spec) in done for spec in arm.trainings(learned.SEEDS))
        losses: dict[tuple[float, float], list[float]] = {}
        for spec in arm.tuning():
            setting = spec.model_args.get("dropout", 0.0), spec.training.recipe["lr"]
            record = done[_key(spec)].rounds[-1].record
            losses.setdefault(setting, []).append(min(losses_of(record)))
        if not losses:
            continue  # a control, or an arm that has another's rate by design
        tuned += 1
        # Rounded, so that as many wrong images of two seeds are equal.
        means = {setting: round(fmean(each), 6) for setting, each in losses.items()}
        best = {setting for setting, loss in means.items() if loss == min(means.values())}
        dropout = arm.run.model_args.get("dropout", 0.0)
        assert (dropout, arm.rate) in best, arm.run.training.arm
        rates = sorted(rate for other, rate in means if other == dropout)
        assert not best & {(dropout, rates[0]), (dropout, rates[-1])}, arm.run.training.arm
    assert tuned >= 4


def four_seeds(run: Run) -> Run:
    return replace(run, status="planned", rounds=()) if run.spec.seed == 4 else run


def of_another_quality(run: Run) -> Run:
    """Quality that depends on the name of the arm alone, so that some control fails."""
    if not run.done or run.spec.training is None:
        return run
    quality = 0.5 + sum(map(ord, run.spec.training.arm)) % 97 / 500 + run.spec.seed / 1000
    given = run.rounds[-1].values["metrics"]
    metrics = {name: 1 - quality / 2 if "loss" in name else 50 * quality for name in given}
    return with_values(run, metrics=metrics)


@pytest.mark.parametrize("name", ["table4", "figure1", "figure3"])
@pytest.mark.parametrize(
    ("change", "doubt"), [(four_seeds, "4 of 5 seeds"), (of_another_quality, "a control ")]
)
def test_every_exhibit_of_trainings_has_the_rules(reference, name, change, doubt):
    report = import_module(f"repro.experiments.{name}.report")
    claims = [*report.claims(changed_runs(reference, change))]
    doubtful = [claim for claim in claims if claim.smaller and claim.doubt.startswith(doubt)]
    assert doubtful
    assert {claim.verdict for claim in doubtful} == {"not tested here"}
    if change is four_seeds:
        assert len(doubtful) == sum(claim.smaller for claim in claims)
