"""The sections of the page: their order, what is shown of each, answers that quote cells."""

from dataclasses import replace
from pathlib import Path

import pytest

from repro.claims.claim import Verdict
from repro.report.declared import HOME, MOST_COLUMNS, answer_of, report_of, shown_of
from repro.report.front import counts_of, front_rows, summed
from repro.report.sections import ORDER, sections_of
from repro.report.table import Cell, Heading, Table
from repro.report.tables import all_tables
from repro.report.verdicts import EXHIBITS, counted_claims, judged_claims, what_holds

REFERENCE = Path(__file__).parents[2] / "plots/reference"
WITH_REPORT = sorted(path.parent.name for path in HOME.glob("*/report.py"))


def table(name: str = "toy", **texts: tuple[str, ...]) -> Table:
    """A table with these columns of texts."""
    rows = [[Cell(text, text) for text in line] for line in zip(*texts.values(), strict=True)]
    return Table(name, "Toy", "A `note`.", [Heading(head, head) for head in texts], rows)


def test_every_report_has_its_place_says_what_is_shown_and_answers():
    assert set(WITH_REPORT) == set(ORDER)
    for name in WITH_REPORT:
        assert shown_of(name) is not None, name
        assert hasattr(report_of(name), "answer"), name


@pytest.mark.parametrize("name", WITH_REPORT)
def test_what_is_shown_is_in_the_reference_and_narrow(name):
    shown = shown_of(name)
    assert shown is not None
    path = REFERENCE / f"{shown.table}.md"
    if not path.exists():
        assert name == "two_gpu_demo", "the one without reference results"
        return
    head = next(line for line in path.read_text(encoding="utf-8").splitlines() if line[:1] == "|")
    columns = [cell.strip().replace("\\", "") for cell in head.split("|")[1:-1]]
    assert set(shown.columns) <= set(columns)
    assert 0 < len(shown.columns or columns) <= MOST_COLUMNS


def test_a_cell_is_quoted_by_its_line():
    toy = table(K=("2", "4"), ratio=("1.50 [1.20, 1.70] ~", "not run"))
    assert toy.text("ratio", K="2") == "1.50 [1.20, 1.70] ~"
    assert toy.number("ratio", K="2") == "1.50"
    with pytest.raises(LookupError):
        toy.text("ratio", K="4")
    with pytest.raises(LookupError):
        toy.text("ratio", K="8")


def test_the_numbers_of_a_column_are_in_their_order_and_texts_are_none():
    toy = table(off=("+10.5 [1, 2]", "-3", "skipped(needs 4 devices)", "-", "9.0"))
    assert toy.numbers("off") == ["-3", "9.0", "+10.5"]
    with pytest.raises(LookupError):
        table(off=("-", "not run")).numbers("off")


def test_without_its_cells_there_is_no_answer():
    for name in WITH_REPORT:
        assert answer_of(name, {}) == ""
    empty = table("costs", source=("all", "all"), model=("median error", "worst error"))
    assert answer_of("costs", {"costs": empty}) == ""


def test_sections_have_an_order_and_one_shown_table_of_few_columns(modelled):
    claims = judged_claims(modelled)
    rows = front_rows(claims, {"table2"})
    (section,) = sections_of(modelled, all_tables(modelled, claims), [], {}, rows)
    assert [row.exhibit for row in section.verdicts] == [
        "Table 2, AmoebaNet-D",
        "Table 2, Transformer",
    ]
    assert section.counts == summed(section.verdicts)
    assert section.table is not None
    assert section.table["html"].count("</th>") == MOST_COLUMNS
    assert "table2_causes" in section.linked
    assert "At K=8, M=32 the simulation gives" in section.answer
    assert all(modelled.runs[0].id not in table["html"] for table in section.more_tables)
    assert section.points == []


def test_the_sentence_counts_what_holds(modelled):
    claims = judged_claims(modelled)
    tested = {"Table 2, AmoebaNet-D", "Table 2, Transformer"}
    assert f"{len(EXHIBITS) - len(tested)} are not tested here" in what_holds(claims)
    (exhibit,) = [each for each in EXHIBITS if each.name == "Table 2, Transformer"]
    of_exhibit = {judged.claim.id for judged in counted_claims(claims, exhibit)}
    good = [
        replace(judged, verdict=Verdict("consistent")) if judged.claim.id in of_exhibit else judged
        for judged in claims
    ]
    assert "1 hold in every number that could be tested" in what_holds(good)
    assert counts_of(counted_claims(good, exhibit)) == [("consistent", len(of_exhibit))]
    of_exhibits = [judged for each in EXHIBITS for judged in counted_claims(claims, each)]
    small = [replace(judged, verdict=Verdict("not reproduced", smaller=True)) for judged in claims]
    assert what_holds(small) == (
        f"Of the {len(EXHIBITS)} exhibits below, {len(EXHIBITS)} could be tried only with smaller "
        f"models, which do not show them; 0 of their {len(of_exhibits)} claims that could be "
        "tested hold."
    )


def test_a_row_leads_to_its_section_or_to_what_was_not_run(modelled):
    rows = {row.exhibit: row.target for row in front_rows(judged_claims(modelled), {"table2"})}
    assert rows["Table 2, Transformer"] == "table2"
    assert rows["Table 1, sizes"] == "absent"
