"""Table 3's tables and pictures, from made-up costs at the paper's size and slow links."""

from dataclasses import replace
from typing import Any

import pytest
from recorded import fill_with, record

from experiments.table3 import report as table3
from experiments.table3.series import SIZES
from repro.gpipe.partition.layer_costs import LinkSpeed
from repro.gpipe.schedule.kinds import make_schedule
from repro.harness.job import Measured
from repro.harness.results import Results, load
from repro.harness.spec import Experiment, Group, RunSpec
from repro.report import tables
from repro.report.compare import optimizers, rows_of
from repro.report.style import styled
from repro.report.table import Table
from repro.simulate import FREE, StageCosts, simulate

LINK = LinkSpeed(0.0, 1e9)
SMALL = {"L": 2, "d": 8, "H": 16, "heads": 2, "V": 32, "T": 4}
SLOWER = {None: 1.0, 1e9: 1.02, 1e8: 1.3, 2e7: 2.0}
NOISE = (0.99, 1.0, 1.0, 1.005, 1.01)


def on_p100s(model: str, args: dict[str, Any], K: int, **changed: Any) -> RunSpec:
    given: dict[str, Any] = {
        "fidelity": "simulated",
        "profile": "p100-pcie",
        "optimizer": "rmsprop",
    } | changed
    return RunSpec(model=model, model_args=args, K=K, M=32, N=32, **given)


def slowed(speed: float | None) -> RunSpec:
    link = LinkSpeed(bytes_per_second=speed) if speed else None
    return RunSpec(model="transformer", model_args=SMALL, K=2, M=32, N=128, link=link)


def of_transformer(K: int, link: LinkSpeed = LINK) -> StageCosts:
    """Equal stages but at K=8, where one takes twice as long."""
    times = [0.08 / K] * K
    times[0] *= 2 if K == 8 else 1
    sent = (1e6,) * (K - 1)
    return StageCosts(tuple(times), tuple(times), tuple(2 * f for f in times), sent, sent, link)


def made(run: RunSpec, number: int) -> Measured | None:
    if run.fidelity == "emulated":
        return None
    schedule = make_schedule(run.schedule, run.K, run.M, run.checkpoint)
    if run.fidelity == "simulated":
        stages = of_transformer(run.K)
        timeline, free = simulate(schedule, stages), simulate(schedule, replace(stages, link=FREE))
        rungs = {"launch": free.step_time, "transfer": timeline.step_time}
        modelled = {"batch": 32, "stages": stages.plain(), "rungs": rungs}
        return Measured(record(timeline, schedule, modelled=modelled))
    factor = SLOWER[run.link.bytes_per_second if run.link else None] * (
        NOISE[number] if run.link else 1
    )
    timeline = simulate(
        schedule, StageCosts.uniform(2, 0.01 * factor, 0.01 * factor, 0.02 * factor)
    )
    return Measured(record(timeline, schedule, loss=[1.0]))


def recorded(path: Any, args: dict[str, Any], rounds: int = 5) -> Results:
    names = ("transformer", "amoebanet-d")
    groups = [
        Group(
            name=f"{name}-simulated",
            runs=tuple(
                on_p100s(name, SIZES[name] if args is full else args, K) for K in (1, 2, 4, 8)
            ),
        )
        for name in names[: 2 if args is full else 1]
    ]
    emulated = Group(
        name="transformer-emulated",
        runs=(on_p100s("transformer", SIZES["transformer"], 4, fidelity="emulated", stretch=0.1),),
    )
    throttled = Group(name="transformer-throttled", runs=tuple(slowed(speed) for speed in SLOWER))
    plan = Experiment(
        name="table3", title="Links", question="?", groups=(*groups, emulated, throttled)
    )
    fill_with(path, plan, made, rounds)
    return load(path)


full: dict[str, Any] = {}


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    return recorded(tmp_path_factory.mktemp("results"), full)


def lines(table: Table) -> dict[Any, Any]:
    """Numbers of each (model, K)."""
    assert table.data is not None
    return {(one["", "model"], one["", "K"]): one for one in table.data.to_dict("records")}


def shown(table: Table) -> dict[Any, Any]:
    return {(one["", "model"], int(one["", "K"])): one for one in table.shown.to_dict("records")}


def test_table3_judges_each_simulated_cell(results):
    table = table3.throughput(results)
    found, words = lines(table), shown(table)
    four = found["Transformer", 4]
    steps = {
        K: simulate(make_schedule("gpipe", K, 32, "always"), of_transformer(K)).step_time
        for K in (2, 4, 8)
    }
    assert four["simulated", "over K=2"] == pytest.approx(steps[2] / steps[4])
    assert four["simulated", "over quoted"] == pytest.approx(steps[2] / steps[4] / 1.8)
    assert found["Transformer", 8]["ideal", "over K=2"] == pytest.approx(3.517, abs=1e-3)
    verdicts = {key: line["", "verdict"] for key, line in words.items()}
    assert verdicts["Transformer", 4].startswith("consistent: the textbook's formula")
    assert verdicts["Transformer", 8].startswith("not reproduced: the textbook's formula")
    assert verdicts["Transformer", 2] == "-"
    assert words["Transformer", 4]["emulated", "over K=2"] == "not run"
    assert words["Transformer", 2]["simulated", "over K=2"].startswith("1")
    assert ("measured", "over K=2") not in table.shown.columns


def test_another_size_is_named_and_not_judged(tmp_path):
    table = table3.throughput(recorded(tmp_path, SMALL, rounds=1))
    words = shown(table)["Transformer (laptop)", 4]
    assert (words["simulated", "against quoted"], words["", "verdict"]) == ("-", "-")


def test_all_runs_names_the_link_by_which_alone_some_differ(results):
    data = tables.runs(results).data
    assert data is not None
    links = [labels.get("link", "") for labels in data["labels"] if labels]
    assert {"1 GB/s", "100 MB/s", "20 MB/s"} <= set(links)


def test_what_the_update_of_each_fidelity_is(results):
    rows = rows_of(results)
    assert (
        optimizers(rows)
        == "Optimizer: SGD in measured steps, RMSProp in emulated and simulated steps."
    )
    assert optimizers([row for row in rows if row.fidelity == "measured"]) == ""


def test_pictures(results):
    done = rows_of(results, status="done")
    with styled():
        found = {name: figure for name, figure, _ in table3.figures(results, done)}
        assert list(found) == ["throttled"]
        throttled: Any = found["throttled"]
        assert list(throttled.axes[0].containers[0].lines[0].get_ydata()) == pytest.approx(
            [1, 1.02, 1.3, 2]
        )
        names = [label.get_text() for label in throttled.axes[-1].get_xticklabels()]
        assert names[-1] == "not\nthrottled"
