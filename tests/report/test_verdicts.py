"""The verdicts of recorded results: tampered data change them."""

from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from typing import Any

import pytest
from recorded import changed_runs, no_bubble, with_values

from repro.harness.results import Results, Run
from repro.harness.schema import Fitted
from repro.report import page


def fewer_parameters(run: Run) -> Run:
    fit: Any = Fitted.model_validate(run.fit)
    name = "largest" if fit.largest else "next"
    half = getattr(fit, name).model_copy(update={"parameters": getattr(fit, name).parameters // 2})
    return with_values(run, fit=fit.model_copy(update={name: half}).model_dump(mode="json"))


def more_bytes(run: Run) -> Run:
    tried = run.rounds[-1].values["fit"]["tried"]
    if run.fidelity != "measured":
        return run
    fewer = [t | {"counted_bytes": [int(0.98 * n) for n in t["counted_bytes"]]} for t in tried]
    return with_values(run, fit=run.rounds[-1].values["fit"] | {"tried": fewer})


@pytest.mark.parametrize(
    ("experiment", "exhibit", "what", "tamper", "word"),
    [
        ("table1", "sizes", "Transformer Pipeline-8", fewer_parameters, "not reproduced"),
        ("table1", "counted bytes", "", more_bytes, "not reproduced"),
        ("bubble", "bubble", "K=8", no_bubble, "consistent"),
        ("breakdown", "breakdown", "bubble", no_bubble, "not reproduced"),
    ],
)
def test_tampered_data_change_the_verdict(
    reference: Results,
    experiment: str,
    exhibit: str,
    what: str,
    tamper: Callable[[Run], Run],
    word: str,
):
    def verdict_of(results: Results) -> Any:
        claims = import_module(f"repro.experiments.{experiment}.report").claims(results)
        (found,) = [each for each in claims if exhibit in each.exhibit and what in each.what]
        return found.verdict

    runs = [run for run in reference.runs if run.experiment == experiment and run.done]
    own = replace(reference, runs=runs)
    assert verdict_of(own) != word
    assert verdict_of(changed_runs(own, tamper)) == word


def test_a_report_without_verdicts_shows_none_of_an_earlier_one(modelled, nothing, tmp_path):
    page.write(modelled, tmp_path)
    assert [*tmp_path.glob("verdicts.*")]
    page.write(nothing, tmp_path)
    assert not [*tmp_path.glob("verdicts.*")]
