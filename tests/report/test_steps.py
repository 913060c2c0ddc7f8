"""The exhibits of single steps: the bubble, the breakdown, and Figure 2."""

from collections.abc import Mapping
from pathlib import Path

import pytest
from recorded import changed_runs, fill_with, record, with_values

from repro.experiments.breakdown import report as breakdown
from repro.experiments.bubble import report as bubble
from repro.experiments.figure2 import report as figure2
from repro.gpipe.schedule.replay import replay
from repro.gpipe.schedule.timeline import Timeline
from repro.harness import catalog
from repro.harness.request import Result
from repro.harness.results import Results, Run, load
from repro.harness.spec import RunSpec
from repro.paper.theory import UNIT_COSTS


def with_shares(run: Run, shares: Mapping[str, float]) -> Run:
    """The run with other parts of its step."""
    if not run.done:
        return run
    return with_values(run, breakdown={**run.rounds[0].breakdown, **shares})


@pytest.mark.parametrize(
    ("share", "word"), [(0.04, "reproduced"), (0.07, "cannot tell"), (0.105, "not reproduced")]
)
def test_the_bubble_is_judged_and_not_all_idle_time(reference, share, word):
    results = changed_runs(reference, lambda run: with_shares(run, {"bubble": share}))
    *others, at_k2 = bubble.claims(results)
    assert at_k2.verdict == word
    assert {claim.fidelity for claim in others} == {"emulated"}, "as K=4 and 8 need devices"


@pytest.mark.parametrize(
    ("changed", "word"),
    [((), "consistent"), ((32,), "cannot tell"), ((8, 16, 32), "not reproduced")],
)
def test_a_part_of_the_step_is_judged_with_every_m(reference, changed, word):
    def tampered(run: Run) -> Run:
        is_meant = run.experiment == "breakdown"
        return with_shares(run, {"imbalance": 0.06}) if is_meant and run.M in changed else run

    results = changed_runs(reference, tampered)
    found = {claim.what.partition(",")[0]: claim for claim in breakdown.claims(results)}
    assert [*found] == ["computation", "recompute", "load imbalance", "bubble", "set-up"]
    assert found["load imbalance"].verdict == word
    assert found["bubble"].verdict == "cannot tell", "M is inferred from it"


def recorded_figure2(path: Path, order: str = "FRB") -> Results:
    """Steps whose kinds are F, R and B; another order exchanges their names."""
    plan = catalog.find("figure2").build("laptop")

    def made(spec: RunSpec, _round: int) -> Result:
        F = spec.model_args["forward_s"]
        step = replay(spec.make_schedule(), lambda kind, _stage: F * UNIT_COSTS[kind])
        names = dict(zip("FRB", order, strict=True))
        spans = [span._replace(kind=names.get(span.kind, span.kind)) for span in step.spans]
        step = Timeline((*spans,), spec.K)
        return Result(record(step, spec.make_schedule(), loss=[1.0]), step)

    fill_with(path, plan, made)
    return load(path)


@pytest.mark.parametrize(("order", "word"), [("FRB", "consistent"), ("BRF", "not reproduced")])
def test_the_order_of_figure_2_is_that_of_recorded_spans(tmp_path, order, word):
    (claim,) = figure2.claims(recorded_figure2(tmp_path, order))
    assert (claim.verdict, claim.ours[0][0]) == (word, 0 if order == "FRB" else 4)
