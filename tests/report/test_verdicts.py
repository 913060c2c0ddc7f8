"""The verdicts of recorded results: tampered data change them, and README has them."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from recorded import changed_runs

from repro.harness.results import Results, Run
from repro.report.claim import Claim
from repro.report.page import write_tables
from repro.report.verdicts import all_lines, claims_of, exhibits

ROOT = Path(__file__).parents[2]


def claim(results: Results, experiment: str, exhibit: str, what: str) -> Claim:
    """The only claim whose text has these words."""
    claims = claims_of(results)[experiment]
    (found,) = [each for each in claims if each.exhibit == exhibit and what in each.what]
    return found


def of_round(run: Run, **changed: Any) -> Run:
    """The run with fields of its records changed."""
    rounds = [replace(round_, values={**round_.values, **changed}) for round_ in run.rounds]
    return replace(run, rounds=tuple(rounds))


def record_of(run: Run) -> Any:
    """The newest record, of whatever task."""
    return run.rounds[-1].record


def fewer_parameters(run: Run) -> Run:
    fit = record_of(run).fit
    name = "largest" if fit.largest else "next"
    cut = getattr(fit, name)
    half = cut.model_copy(update={"parameters": cut.parameters // 2})
    return of_round(run, fit=fit.model_copy(update={name: half}).model_dump(mode="json"))


def another_digest(run: Run) -> Run:
    return of_round(run, digest=run.id)


def no_bubble(run: Run) -> Run:
    return of_round(run, breakdown=record_of(run).breakdown | {"bubble": 0.0})


@pytest.mark.parametrize(
    ("place", "tamper", "word"),
    [
        (
            ("table1", "Table 1, sizes", "Transformer Pipeline-8"),
            fewer_parameters,
            "not reproduced",
        ),
        (("bubble", "Section 2.3, bubble", "at most 10 %, K=8"), no_bubble, "consistent"),
        (("consistency", "Section 7, every K", "translation"), another_digest, "not reproduced"),
        (("breakdown", "Step breakdown", "bubble"), no_bubble, "not reproduced"),
    ],
    ids=["counted", "emulated", "measured", "fitted"],
)
def test_tampered_data_change_the_verdict(
    reference: Results, place: tuple[str, str, str], tamper: Callable[[Run], Run], word: str
):
    assert claim(reference, *place).verdict != word
    experiment = place[0]
    tampered = changed_runs(
        reference, lambda run: tamper(run) if run.experiment == experiment and run.done else run
    )
    assert claim(tampered, *place).verdict == word


def test_a_report_without_verdicts_shows_none_of_an_earlier_one(modelled, nothing, tmp_path):
    write_tables(modelled, tmp_path)
    assert [*tmp_path.glob("verdicts.*")]
    write_tables(nothing, tmp_path)
    assert not [*tmp_path.glob("verdicts.*")]


def test_the_readme_shows_the_verdicts_of_the_reference(reference):
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for exhibit in exhibits(all_lines(reference)):
        line = f"| {' | '.join(exhibit.cells)} |".replace(">", r"\>").replace("<", r"\<")
        assert line in readme, "copy this line into the README"
