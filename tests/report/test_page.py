"""The page: complete, useful without results, the same bytes each time, self-contained."""

import re
import subprocess
from pathlib import Path

import pytest

from repro.harness.results import load
from repro.report import page

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def written(folder, tmp_path_factory):
    plots = tmp_path_factory.mktemp("plots")
    return page.write(load(folder), plots).path


def test_the_page_follows_its_order(modelled, tmp_path):
    html = page.write(modelled, tmp_path).path.read_text(encoding="utf-8")
    words = [
        "<h1>",
        "Measured on</b> two CPU cores",
        '<h2 class="bad">',
        '<table class="rows">',
        '<nav class="toc"',
        '<section id="player">',
        '<section id="table2">',
        "How does throughput grow with K and M?",
        "Table 2: throughput",
        "data:image/svg+xml",
        "<details>",
        "Deviations, commands and files",
        "Runs without a result, and why",
        ".venv/bin/repro run table2 --scale laptop",
        "Not run yet",
        "<h2>How to read it",
        "<h2>Claims, runs, machines",
    ]
    places = [html.index(word) for word in words]
    assert places == sorted(places)


def test_the_page_is_self_contained_its_ids_are_unique_and_missing_runs_are_named(written):
    html = written.read_text(encoding="utf-8")
    assert "skipped(needs 4 devices): K=4 M=1, K=4 M=4" in html
    assert not re.search(r'src="https?:', html)
    links = {"https://arxiv.org/abs/1811.06965", "https://ui.perfetto.dev"}
    assert {*re.findall(r'href="(https?:[^"]+)"', html)} <= links, "nothing to load"
    assert not re.search(r"<(script|link)[^>]* (src|href)=", html)
    ids = re.findall(r'\bid="([^"]+)"', html)
    assert len(ids) == len(set(ids))
    for target in re.findall(r'href="#([^"]+)"', html) + re.findall(r"url\(#([^)]+)\)", html):
        assert target in ids
    for file in re.findall(r'href="([^"#:]+)"', html):
        assert (written.parent / file).exists()


def test_the_committed_page_has_few_folds_and_links_to_committed_files():
    html = (ROOT / "plots/reference/report.html").read_text(encoding="utf-8")
    assert html.count("<details>") <= 30
    listed = subprocess.run(
        ["git", "ls-files", "plots/reference"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    committed = {Path(path).name for path in listed.stdout.splitlines()}
    assert {*re.findall(r'href="([^"#:]+)"', html)} <= committed
    deviations = re.findall(r"<li>(.*?)</li>", html)
    assert len(deviations) == len({*deviations}), "each is said once"
    titles = re.findall(r'<img src="[^"]*" alt="([^"]*)">', html)
    assert all(titles)
    assert len(titles) == len({*titles}), "each figure has a title of its own"


def test_the_report_of_one_s_own_sweep_is_of_nothing_else(own_sweep, tmp_path):
    html = page.write(load(own_sweep), tmp_path).path.read_text(encoding="utf-8")
    assert re.findall(r'<section id="(\w+)">', html) == ["sweep", "player", "words", "all"]
    begins = html.partition("</table>")[0]
    assert "<h1>K x &lt;M&gt; sweep</h1>" in begins
    assert "How do step time &amp; memory change?" in begins
    heads = re.findall(r"<th[^>]*>([^<]+)</th>", begins)
    assert heads == [*("method", "K", "M", "differs in", "throughput", "over plain training")]
    assert re.findall(r'<figure id="(\w+)">', html) == ["sweep_sweep"]
    assert "Scale laptop measures" in html
    assert "Verdicts" not in html
