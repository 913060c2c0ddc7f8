"""The verdicts of recorded results: golden rows, tampered data, and the committed reference."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from recorded import changed_runs

from repro.harness.results import Results, Run
from repro.report.page import write_tables
from repro.report.tables import all_tables
from repro.report.verdicts import Judged, headline, judged_claims, written_rows

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def judged(reference: Results) -> dict[str, Judged]:
    return {each.claim.id: each for each in judged_claims(reference)}


def said(results: Results) -> dict[str, str]:
    tables = {table.name: table for table in all_tables(results)}
    return headline(judged_claims(results), tables)


@pytest.mark.timeout(180)  # the whole record, and what it says without each part
def test_the_headline_says_what_the_records_say_and_nothing_of_what_they_lack(reference):
    whole = said(reference)
    assert [*whole] == ["Exactness", "Memory", "Speed", "Links", "Bubble", "Quality"]
    assert whole["Exactness"].startswith("Reproduced exactly: with every K that ran")
    assert "measured and emulated): not reproduced." in whole["Bubble"]
    lost = {"consistency", "bubble", "table4", "table5", "figure1", "figure3"}
    kept = [run for run in reference.runs if run.experiment not in lost]
    changed = said(replace(reference, runs=kept))
    assert [*changed] == ["Memory", "Speed", "Links"]
    differing = changed_runs(
        reference, lambda run: another_digest(run) if run.experiment == "consistency" else run
    )
    assert said(differing)["Exactness"].startswith("Not reproduced: ")


def of_round(run: Run, **changed: Any) -> Run:
    """The run with fields of its records changed."""
    rounds = [replace(round_, values={**round_.values, **changed}) for round_ in run.rounds]
    return replace(run, rounds=tuple(rounds))


def record_of(run: Run) -> Any:
    """The newest record, of whatever task."""
    return run.rounds[-1].record


def never_idle(run: Run) -> Run:
    return of_round(run, bubble_idle_over_total=[0.0])


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
    ("claim", "tamper", "word"),
    [
        ("table1/transformer/Pipeline-8/parameters", fewer_parameters, "not reproduced"),
        ("bubble/K=8/negligible", never_idle, "consistent"),
        ("consistency/translation", another_digest, "not reproduced"),
        ("breakdown/bubble", no_bubble, "not reproduced"),
    ],
    ids=["counted", "emulated", "measured", "fitted"],
)
def test_tampered_data_change_the_verdict(
    reference: Results,
    judged: dict[str, Judged],
    claim: str,
    tamper: Callable[[Run], Run],
    word: str,
):
    before = judged[claim]
    assert before.verdict.word != word
    assert before.evidence is not None
    # The first run only: of a ratio that is the run itself and not its baseline.
    runs = before.evidence.runs[:1]
    experiment = before.claim.experiment
    tampered = changed_runs(
        reference,
        lambda run: tamper(run) if run.id in runs and run.experiment == experiment else run,
    )
    (after,) = [each for each in judged_claims(tampered) if each.claim.id == claim]
    assert after.verdict.word == word


def test_a_report_without_verdicts_shows_none_of_an_earlier_one(modelled, nothing, tmp_path):
    write_tables(modelled, tmp_path)
    assert written_rows(tmp_path)
    write_tables(nothing, tmp_path)
    assert written_rows(tmp_path) == []


def test_the_readme_shows_the_verdicts_of_the_reference():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    written = (ROOT / "plots/reference/verdicts.md").read_text(encoding="utf-8")
    table = "\n".join(line for line in written.splitlines() if line.startswith("|"))
    assert table in readme, "copy the table of plots/reference/verdicts.md into the README"
