"""The page: complete, useful without results, the same bytes each time, self-contained."""

import json
import re
import shutil
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


def test_experiments_without_results_are_named_with_the_command_that_runs_them(modelled, tmp_path):
    html = page.write_loaded(modelled, tmp_path).read_text(encoding="utf-8")
    first, _, rest = html.partition("<section")
    assert re.search(r"Of the \d+ exhibits below, ", first)
    assert 'href="#absent"' in first
    _, _, absent = rest.partition("<h2>Not run yet")
    assert ".venv/bin/repro run table1\n" in absent
    assert ".venv/bin/repro run table2\n" not in absent


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


def test_the_trace_has_every_timeline_as_a_process(written):
    trace = json.loads((written.parent / "table2.trace.json").read_text(encoding="utf-8"))
    names = {
        e["args"]["name"]: e["pid"] for e in trace["traceEvents"] if e["name"] == "process_name"
    }
    assert len(names) == len(set(names.values())) == 4
    assert all(name.endswith("(measured)") for name in names)
    assert "table2.trace.json" in written.read_text(encoding="utf-8")


def test_the_page_is_the_same_again(written, folder, tmp_path):
    assert page.write(folder, tmp_path).read_bytes() == written.read_bytes()


def copied(folder: Path, to: Path, scale: str) -> Path:
    """The recorded results as if they were of another scale, beside what is in `to` already."""
    for path in folder.glob("*/laptop"):
        shutil.copytree(path, to / path.parent.name / scale)
    return to


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


def test_a_smoke_report_says_what_smoke_is_for_and_shows_nothing_of_the_paper(folder, tmp_path):
    path = page.write(copied(folder, tmp_path / "results", "smoke"), tmp_path / "plots")
    assert banner(path).startswith(
        '<p class="soft">Scale smoke checks that everything runs. Its numbers say nothing about'
    )
    assert "run scale laptop" in banner(path)
    html = path.read_text(encoding="utf-8")
    cells = re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", html, flags=re.S)
    assert not {"quoted", "6.3", "3.48"} & set(cells)
    assert (
        "quoted"
        not in "".join(
            re.findall(r"<figcaption>.*?</figcaption>|<dt>.*?</dt>", html, flags=re.S)
        ).lower()
    )
    assert "Table 4" not in html


def test_without_a_measured_step_there_is_no_picture(nothing):
    with pytest.raises(ValueError, match=r"no measured step of amoebanet-d .*repro run table2"):
        page.pictured_step(nothing)


def test_nothing_of_an_earlier_report_is_told_of_other_results(tmp_path):
    left = ("verdicts.csv", "claims.csv", "claims.md", "audit.csv")
    for name in left:
        (tmp_path / name).write_text("left\n")
    planned = Group(name="all", runs=(RunSpec(model="transformer", K=1, M=1, N=4),))
    mine = Experiment(name="mine", title="Mine", question="?", groups=(planned,))
    fill_with(tmp_path / "results", mine, lambda _run, _number: None)
    page.write(tmp_path / "results", tmp_path)
    assert [name for name in left if (tmp_path / name).exists()] == []
