"""The pages for readers: their numbers are those of the reference tables and records, their links
lead somewhere."""

import json
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
# A number of ours is followed by a comment that names its cell: <!-- table key=value key=value:
# column -->
NUMBER = re.compile(r"<!-- (\w+) ([^>]+?): (.+?) -->")
# A number of a record is followed by its file below results/reference and its field:
# <!-- machine/campaign.json: kills -->. Dots lead into lists and objects; ratios have two digits.
RECORDED = re.compile(r"<!-- ([\w/-]+\.json): ([\w.]+) -->")
# A number that follows from others of its page is followed by how: <!-- = (937.9 + 796.1) / 128 -->
COMPUTED = re.compile(r"<!-- = ([\d.+*/() -]+) -->")


def cells(line: str) -> list[str]:
    """The cells of one line of a Markdown table."""
    return [cell.strip().replace("\\", "") for cell in re.split(r"(?<!\\)\|", line)[1:-1]]


def rows(table: str) -> list[dict[str, str]]:
    """A table of plots/reference, one mapping a row."""
    text = (ROOT / f"plots/reference/{table}.md").read_text(encoding="utf-8")
    head, _, *body = [cells(line) for line in text.splitlines() if line.startswith("|")]
    return [dict(zip(head, line, strict=True)) for line in body]


def numbers(page: Path) -> list[tuple[str, str, str, str]]:
    """(the text before it, table, the keys of the row, column) of every number on a page."""
    text = page.read_text(encoding="utf-8")
    return [(text[: m.start()], m[1], m[2], m[3]) for m in NUMBER.finditer(text)]


CHECKED = [number for page in PAGES for number in numbers(page)]


@pytest.mark.parametrize(
    ("before", "table", "keys", "column"), CHECKED, ids=[" ".join(c[1:]) for c in CHECKED]
)
def test_a_number_is_that_of_its_table(before, table, keys, column):
    wanted = [pair.replace("_", " ").split("=", 1) for pair in keys.split(" ")]
    (row,) = [row for row in rows(table) if all(row[key] == value for key, value in wanted)]
    cell = row[column]
    # A page may leave out the mark of an interval that holds 1, and all but the first number.
    texts = [cell, cell.removesuffix(" ~")]
    first = cell.split()[0].rstrip(":")
    if re.search(r"\d", first):
        texts.append(first)
    shown = [text for text in texts if before.endswith(text)]
    assert shown, f"the table says {cell}"
    assert not re.search(r"[\d.]$", before.removesuffix(shown[0])), "the end of a longer number"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_other_marked_numbers_are_those_of_records_or_follow_from_others_of_the_page(page):
    text = page.read_text(encoding="utf-8")
    for quoted in RECORDED.finditer(text):
        file, field = quoted.groups()
        record = json.loads((ROOT / "results/reference" / file).read_text(encoding="utf-8"))
        for part in field.split("."):
            record = record[int(part) if part.isdigit() else part]
        before = text[: quoted.start()]
        value = f"{record:.2f}" if isinstance(record, float) and "." in field else str(record)
        assert before.endswith(value), f"{file} says {field} {value}"
        assert not re.search(r"[\d.]$", before.removesuffix(value)), "the end of a longer number"
    for computed in COMPUTED.finditer(text):
        formula = computed[1]
        assert text[: computed.start()].split()[-1] == f"{eval(formula):.1f}", formula
        for number in re.findall(r"\d+\.\d+", formula):
            assert f"{number}<!-- " in text, "is not checked itself"
    for kind in (NUMBER, RECORDED, COMPUTED):
        text = kind.sub("", text)
    assert re.findall(r"<!--.*", text) == [], "a mark that is not checked"


# A number that the paper or a setting or a goal gives, by the words before it. Any other is ours.
GIVEN = re.compile(
    r"(?:print(?:ed|s)|Tables?|Figure|goals?|most|least|within|below|[KMN] =|digits|[Ff]orwards of|"
    r"link of|batch(?: of)?|sleeps for|reading|[Dd]ropout of|devices of|takes|tolerance is)"
    r"(?:[\s(]*(?:[\d.,]+(?:,|K| %| MB/s| bytes)?|and|to|or|the|of))*[\s(]*$"
)
UNMARKED = (ROOT / "tests/unmarked.txt").read_text(encoding="utf-8").splitlines()


def test_the_numbers_of_ours_without_a_mark_are_known():
    """One that is new gets a mark, or a line in unmarked.txt."""
    text = (ROOT / "docs/results.md").read_text(encoding="utf-8")
    text = re.sub(r"(?m)^(?:\||#|!\[|\*[^*]).*$|`[^`]*`|\]\([^)]*\)", "", text)
    ends = r" \[[-+\d., ]+\]| \([\d.]+ to [\d.]+\)"
    text = re.sub(rf"(?:\d+ of )?\S*(?:{ends})?\s?<!-- [^>]*-->", "#", text)
    text = " ".join(text.split())
    numbers = re.finditer(r"(?<![\w.=/^(-])[+-]?\d+(?:\.\d+)?(?![\w.]*\d)", text)
    ours = [
        text[m.start() - 25 : m.end() + 15].strip()
        for m in numbers
        if not GIVEN.search(text[: m.start()])
    ]
    assert ours == UNMARKED


def test_there_is_something_to_check():
    assert len(CHECKED) > 30
    quoted = RECORDED.findall((ROOT / "docs/faults.md").read_text(encoding="utf-8"))
    assert {"kills", "runs", "runs_lost", "runs_alike"} <= {field for _, field in quoted}


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


def test_only_the_pictures_that_are_shown_are_committed():
    command = ["git", "ls-files", "plots/reference"]
    tracked = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if tracked.returncode:
        pytest.skip("no git repository here")
    picture = r"plots/reference/(\w+\.(?:png|gif|svg))"
    text = "".join(page.read_text(encoding="utf-8") for page in PAGES)
    assert set(re.findall(picture, tracked.stdout)) == set(re.findall(picture, text))
