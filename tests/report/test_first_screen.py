"""The first screen follows the claims, and says what is not there yet."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import chain, pairwise
from pathlib import Path

import pytest
from recorded import changed_runs, no_bubble, with_values

from repro.harness.catalog import ORDER, find
from repro.harness.results import Results, Run, load
from repro.report import page
from repro.report.claim import WORDS, Claim
from repro.report.first_screen import AT, FirstScreen, Part, first_screen, lines
from repro.report.verdicts import claims_of, ours_of

ROOT = Path(__file__).parents[2]
NO_RESULT = "no result: `repro run {}`"
TRAINED = ("figure1", "figure3", "table4", "table5")


def claims(results: Results) -> dict[str, list[Claim]]:
    found = {name: claims_of(results, name) for name in ORDER}
    return {name: of for name, of in found.items() if of}


def screen(results: Results) -> FirstScreen:
    return first_screen(results, claims(results))


def without(results: Results, *experiments: str) -> Results:
    kept = [run for run in results.runs if run.experiment not in experiments]
    return replace(results, runs=kept)


def parts(found: FirstScreen, question: str) -> list[Part]:
    (row,) = [row for row in found.rows if row.question.startswith(question)]
    return row.parts


def test_every_verdict_rests_on_the_groups_that_are_measured_first(reference: Results):
    """At the laptop scale, and on each of these groups."""
    laptop = replace(reference, runs=[run for run in reference.runs if run.scale == "laptop"])
    groups = [(name, each) for name in ORDER for each in find(name).build("laptop").groups]
    first = {(name, group.name) for name, group in groups if group.first}

    def verdicts(names: Iterable[str], groups: set[tuple[str, str]]) -> list[tuple[str, ...]]:
        runs = [run for run in laptop.runs if (run.experiment, run.group) in groups]
        found = chain.from_iterable(claims_of(replace(laptop, runs=runs), name) for name in names)
        return [(each.exhibit, each.what, each.verdict, ours_of(each)) for each in found]

    every = {(run.experiment, run.group) for run in laptop.runs}
    assert verdicts(ORDER, first) == verdicts(ORDER, every)
    unneeded = {
        (name, group)
        for name, group in first
        if verdicts([name], first - {(name, group)}) == verdicts([name], first)
    }
    # The worst error of the counted bytes is AmoebaNet-D's.
    assert unneeded == {("table1", "transformer-check")}


def test_the_screen_of_the_reference(reference: Results):
    found = screen(reference)
    assert found.headline == (
        "Same model, 7 of 10 sizes, one of two speed-ups: that much of GPipe holds up. "
        "Its bubble is not “almost negligible”."
    )
    assert found.where == (
        "two CPU cores and, for equal bits and memory, one GPU; never on several accelerators"
    )
    assert found.modelled
    titles = [[panel.title for panel in column.panels] for column in found.columns]
    assert titles == [["Transformer, M = 32"], ["AmoebaNet-D, M = 32"], [f"Bubble, {AT}"]]
    assert "In Table 2, 4 of 16 speeds disagree with every setting." in found.columns[2].sentences
    assert len(found.rows) == 6
    assert all(part.verdict in WORDS for row in found.rows for part in row.parts)
    (same,) = parts(found, "Same model")
    assert same.ours == "21 of 21"
    for panel in (panel for column in found.columns for panel in column.panels):
        heights = [y for y, _, _ in panel.labels]
        assert all(b - a >= panel.LINE for a, b in pairwise(heights))


def half_as_fast(run: Run) -> Run:
    """A simulated step that takes twice as long with several stages and micro-batches."""
    if run.fidelity != "simulated" or run.K * run.M < 16:
        return run
    return with_values(run, step_s=[2 * step for step in run.rounds[0].values["step_s"]])


@pytest.mark.parametrize(
    ("experiment", "tamper", "headline", "column", "sentence"),
    [
        ("table2", half_as_fast, "Its models are not as fast as printed.", 2, "not as fast"),
        ("bubble", no_bubble, "small bubble: that much", 0, "is “almost negligible”"),
        (
            *("consistency", lambda run: with_values(run, digest=run.id)),
            *("The model changes with K.", 2, "not bit-identical"),
        ),
    ],
)
def test_sentences_and_panels_follow_the_claims(
    reference: Results,
    experiment: str,
    tamper: Callable[[Run], Run],
    headline: str,
    column: int,
    sentence: str,
):
    def change(run: Run) -> Run:
        return tamper(run) if run.experiment == experiment and run.done else run

    found = screen(changed_runs(reference, change))
    assert headline in found.headline
    assert any(sentence in each for each in found.columns[column].sentences)
    if experiment == "bubble":
        assert [panel.title for panel in found.columns[0].panels][-1] == f"Bubble, {AT}"


@pytest.mark.parametrize(
    ("experiments", "question", "command"),
    [
        (("table2",), "How fast?", "table2"),
        (("table3",), "Do slow links", "table3"),
        (("bubble",), "How large is the bubble?", "bubble"),
        (("consistency",), "Same model", "consistency"),
        (("table1",), "How large a model?", "table1"),
        (TRAINED, "Do bigger models", "figure3 --scale overnight"),
    ],
)
def test_what_is_not_there_is_said(reference, experiments, question, command):
    found = screen(without(reference, *experiments))
    missing = parts(found, question)
    assert {part.verdict for part in missing} == {"not tested here"}
    assert missing[0].beside == NO_RESULT.format(command)
    assert len(found.rows) == 6


def test_nothing_measured(reference, tmp_path):
    modelled = [run for run in reference.runs if run.fidelity != "measured"]
    found = screen(replace(reference, runs=modelled))
    assert found.where == ""
    assert parts(found, "Same model")[0].verdict == "not tested here"
    alone = replace(reference, runs=[run for run in modelled if run.experiment == "bubble"])
    html = page.write(alone, tmp_path).path.read_text(encoding="utf-8")
    assert "Nothing was measured here." in html
    assert "Nothing so far." in html


def test_results_without_a_claim_have_no_first_screen(reference, own_sweep, tmp_path):
    html = page.write(load(own_sweep), tmp_path).path.read_text(encoding="utf-8")
    assert 'class="rows"' not in html
    runs = reference.by_experiment["bubble"]
    tiny = [replace(run, place=run.place._replace(scale="smoke")) for run in runs]
    html = page.write(replace(reference, runs=tiny), tmp_path).path.read_text(encoding="utf-8")
    assert 'class="rows"' not in html
    assert "Scale smoke checks that everything runs." in html


def test_the_readme_has_the_same_rows(reference):
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for line in lines(claims(reference)):
        assert f"| {' | '.join(line.values())} |" in readme, "copy this line into the README"
