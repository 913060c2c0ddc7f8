"""The page: complete, useful without results, the same bytes each time, self-contained."""

import re
from html import unescape
from pathlib import Path

import pytest
from recorded import fill_with, record, timeline

from repro.gpipe.schedule.kinds import make_schedule
from repro.harness.job import Measured
from repro.harness.spec import Experiment, Group, RunSpec
from repro.report import page


@pytest.fixture(scope="module")
def written(folder, tmp_path_factory):
    plots = tmp_path_factory.mktemp("plots")
    return page.write(folder, plots)


def test_the_page_follows_its_order(written):
    html = written.read_text(encoding="utf-8")
    assert '<figure id="table2_bars">' in html.partition('<section id="player">')[0]
    words = [
        '<section id="player">',
        '<section id="table2">',
        "How does throughput grow with K &amp; M?",
        "Table 2: throughput",
        "<details>",
        "How to read the numbers",
        "Deviations from the paper",
        "Runs without a result, and why",
        ".venv/bin/repro run table2 --scale laptop",
        "<h2>How to read it",
        "<h2>Claims, runs, machines",
    ]
    places = [html.index(word) for word in words]
    assert places == sorted(places)
    assert html.count("data:image/svg+xml") >= 2
    assert "Throughput &lt;of&gt; a pipeline" in html
    assert "skipped(needs 4 devices): K=4 M=1, K=4 M=4" in html
    assert "Test CPU" in html
    assert "L 4; N=32" in html


def test_the_page_is_self_contained_and_its_ids_are_unique(written):
    html = written.read_text(encoding="utf-8")
    assert not re.search(r'src="https?:', html)
    assert re.findall(r'href="(https?:[^"]+)"', html) == ["https://ui.perfetto.dev"], (
        "a link, nothing to load"
    )
    assert not re.search(r"<(script|link)[^>]* (src|href)=", html)
    ids = re.findall(r'\bid="([^"]+)"', html)
    assert len(ids) == len(set(ids))
    for target in re.findall(r'href="#([^"]+)"', html) + re.findall(r"url\(#([^)]+)\)", html):
        assert target in ids


def test_the_page_is_the_same_again(written, folder, tmp_path):
    assert page.write(folder, tmp_path).read_bytes() == written.read_bytes()


def banner(path: Path) -> str:
    """The first screen without the verdicts."""
    first, _, _ = path.read_text(encoding="utf-8").partition("</header>")
    return unescape("".join(re.findall(r'<p class="soft">.*?</p>', first, flags=re.S)))


def test_the_report_of_one_s_own_sweep_is_of_nothing_else(tmp_path):
    plan = Experiment(
        name="sweep",
        title="K x M sweep",
        question="?",
        groups=(
            Group(name="mlp", runs=tuple(RunSpec(model="timed", K=K, M=2, N=8) for K in (1, 2))),
        ),
    )

    def made(spec: RunSpec, _round: int) -> Measured:
        walked = timeline(spec.K, spec.M)
        schedule = make_schedule("gpipe", spec.K, spec.M)
        return Measured(record(walked, schedule, loss=[1.0], peak_bytes=[2**20] * spec.K), walked)

    fill_with(tmp_path / "results", plan, made)
    path = page.write(tmp_path / "results", tmp_path / "plots")
    html = path.read_text(encoding="utf-8")
    assert re.findall(r'<section id="(\w+)">', html) == ["player", "sweep", "words", "all"]
    assert 'id="sweep_speedup"' in html
    for word in (
        "Table 2",
        "Table 4",
        "NeurIPS 2019",
        "quoted",
        "Deviations from the paper",
        "Lingvo",
        "numbers beside",
    ):
        assert word not in html, word
    assert "What was run" in html
    assert "Scale laptop measures" in banner(path)
    assert "The paper has no numbers for sweep" in banner(path)
