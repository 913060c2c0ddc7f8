"""The pages for readers: their numbers are those that docs/numbers.toml names, their links lead
somewhere."""

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
TEXTS = {page.relative_to(ROOT).as_posix(): page.read_text(encoding="utf-8") for page in PAGES}
# A number of ours is followed by the name of its place in docs/numbers.toml: <!-- table.name -->
MARK = re.compile(r"<!-- (\w+)\.(\w+) -->")
MARKED = [
    (page, text[: mark.start()], *mark.groups())
    for page, text in TEXTS.items()
    for mark in MARK.finditer(text)
]
PLACES = tomllib.loads((ROOT / "docs/numbers.toml").read_text(encoding="utf-8"))


def cells(line: str) -> list[str]:
    """The cells of one line of a Markdown table."""
    return [cell.strip().replace("\\", "") for cell in re.split(r"(?<!\\)\|", line)[1:-1]]


def rows(table: str) -> list[dict[str, str]]:
    """A table of plots/reference, one mapping a row."""
    text = (ROOT / f"plots/reference/{table}.md").read_text(encoding="utf-8")
    head, _, *body = [cells(line) for line in text.splitlines() if line.startswith("|")]
    return [dict(zip(head, line, strict=True)) for line in body]


def texts(table: str, name: str) -> list[str]:
    """What a page may show of a number: all of its cell, or the first number there."""
    place = PLACES[table][name]
    if table == "by_hand":
        return [place]
    keys, column = place.split(": ", 1)
    wanted = [pair.replace("_", " ").split("=", 1) for pair in keys.split(" ")]
    (row,) = [r for r in rows(table) if all(r[k].replace("_", " ") == v for k, v in wanted)]
    cell = row[column]
    first = re.findall(r"\d+ of \d+|[^\s:]+", cell)[0]
    return [cell, first] if re.search(r"\d", first) else [cell]


@pytest.mark.parametrize(
    ("page", "before", "table", "name"), MARKED, ids=[f"{m[0]}: {m[2]}.{m[3]}" for m in MARKED]
)
def test_a_number_is_the_one_that_its_mark_names(page, before, table, name):
    known = texts(table, name)
    shown = [text for text in known if before.endswith(text)]
    assert shown, f"{table}.{name} is {known[0]}"
    assert not re.search(r"[\d.]$", before.removesuffix(shown[0])), "the end of a longer number"


def test_a_section_that_a_message_names_is_there():
    named = re.compile(r"\((docs/\w+\.md), '([^']+)'\)")
    sources = (path.read_text(encoding="utf-8") for path in (ROOT / "repro").rglob("*.py"))
    found = [match for text in sources for match in named.findall(text)]
    assert found
    for page, words in found:
        assert re.search(rf"(?m)^#+ .*{words}", TEXTS[page])


def test_marks_and_places_belong_together():
    used = {(table, name) for _, _, table, name in MARKED}
    assert used == {(table, name) for table, names in PLACES.items() for name in names}
    for page, text in TEXTS.items():
        assert "<!--" not in MARK.sub("", text), f"{page}: a mark that is not checked"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_to_files_and_headings(page):
    for target, heading in re.findall(
        r"\]\(([^)#\s]*)(?:#([\w-]+))?\)", page.read_text(encoding="utf-8")
    ):
        if target.startswith("https://"):
            continue
        file = page if not target else page.parent / target
        assert file.exists(), target
        if heading:
            titles = re.findall(r"(?m)^#+ (.*)$", file.read_text(encoding="utf-8"))
            assert heading in [
                re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles
            ], heading
