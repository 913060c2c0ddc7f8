"""The methods side by side: what each gives and costs, beside one device and beside GPipe."""

from collections.abc import Iterator, Mapping
from itertools import accumulate
from math import nan
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from experiments.methods import runs as plan
from experiments.methods.runs import ABOUT, NAME, SIMULATED_M, K
from repro.claims.all_claims import cell_id
from repro.claims.claim import Evidence
from repro.gpipe.schedule.actions import Schedule
from repro.harness.frame import Frame, ratio_of, runs_frame, select
from repro.harness.results import Results, Run
from repro.harness.spec import TINY
from repro.paper import theory
from repro.report import gantt, style
from repro.report.declared import Shown
from repro.report.figures import Picture
from repro.report.framed import MARKS, RATIO, Form, framed, in_ms, or_status, with_interval
from repro.report.table import Cell, Table, memory

MIB = 2**20
MEASURED, COUNTED = "2 devices: MiB measured", "2 devices: MiB counted"
AT_PAPER_SIZE = "K devices, the paper's size: MiB counted"
OVER_GPIPE, UNDIVIDED = "times GPipe's, counted", "convolutions that all compute, counted"
OVER = "throughput over one device, measured"
PEAK, SENT = "peak memory, counted", "sent MiB measured"
RECOMPUTED = {"always": ", recomputes", "except_last": ", recomputes all but the last"}
SHOWN = Shown(
    NAME,
    f"model | method | {OVER} | peak MiB measured | sent MiB measured | idle/total measured | "
    "updates late",
    figure="methods_schedules",
    lines={"model": ("Transformer",)},
)
SMOOTHED = 10  # steps over which a training loss is a mean
_CUT = 1.1  # the clock is drawn for so many steps of GPipe


def tables(results: Results) -> list[Table]:
    frame = recorded(results)
    return [
        side_by_side(results, frame),
        traffic(results, frame),
        combinations(results, frame),
        quality(results, frame),
        schedules(results, frame),
    ]


def recorded(results: Results) -> Frame:
    frame = runs_frame(results, NAME)
    frame["label"] = frame["method"] + frame["remat"].map(RECOMPUTED).fillna("")
    work = ["where", "group"]  # one model at one place
    alone = select(frame, method="single", remat="never").drop_duplicates(work)
    frame = frame.join(alone.set_index(work)["run"].rename("alone"), on=work)
    pairs = zip(frame["run"], frame["alone"].replace({nan: None}), strict=True)
    frame = with_interval(frame, OVER, [ratio_of(results, *pair) for pair in pairs])
    frame["peak MiB measured"] = 1024 * frame["peak_gib_max"]
    # Of the process that sends most, in a step.
    sent = [newest(run, "sent_bytes") for run in frame["run"]]
    frame[SENT] = [
        max(sum(kinds.values()) for kinds in each) / MIB if each else nan for each in sent
    ]
    losses = [newest(run, "loss") or [] for run in frame["run"]]
    frame["losses"] = [[nan if loss is None else loss for loss in each] for each in losses]
    frame["late"] = [max(newest(run, "staleness") or [0]) for run in frame["run"]]
    return frame


def newest(run: Run, field: str) -> Any:
    found = (getattr(round_.record, field, None) for round_ in reversed(run.rounds))
    return next((value for value in found if value is not None), None)


def side_by_side(results: Results, frame: Frame) -> Table:
    frame = select(frame, group=plan.WORK)
    table = frame[["run", "where"]].assign(model=frame["model"].map(style.model_name))
    table["method"], table["devices"] = frame["label"], frame["devices"]
    untimed = frame["shared"].eq(True) & frame["done"]
    table[OVER] = or_status(frame, OVER).mask(untimed, Cell(text="not timed"))
    table = table.join(frame.filter(like=f"{OVER}: "))
    table = table.join(frame[["peak MiB measured", SENT]])
    table["idle/total measured"] = frame["idle_over_total"]
    table["updates late"] = [late(run) for run in frame.to_dict("records")]
    table["loss measured"] = [losses[-1] if losses else nan for losses in frame["losses"]]
    forms: dict[str, Form] = {OVER: RATIO, SENT: ".2f", "loss measured": ".5f"}
    return framed(results, NAME, table, ABOUT, forms=forms, marks=MARKS)


def late(run: Mapping[str, Any]) -> Cell | str | None:
    """How many updates old the weights of the first stage are, and what is stashed of them."""
    if run["late"]:
        stashed = memory(max(newest(run["run"], "stashed_bytes")) / 2**30)
        return Cell(run["late"], f"{run['late']}, {stashed} stashed")
    return "none" if run["library"] != "pipedream" and run["done"] else None


def traffic(results: Results, frame: Frame) -> Table:
    """What the device sends that sends most: measured and counted on two, and counted on K."""
    at = ["where", "model", "method"]
    small = select(frame, group=plan.TRAFFIC).set_index(at)
    large = at_paper_size(frame).set_index(at)
    measured = select(frame, group=plan.WORK, devices=2, remat="never")
    measured = measured.drop_duplicates(at).set_index(at)  # controls come last
    table = small[["run"]].assign(**{MEASURED: measured[SENT], COUNTED: small[SENT]})
    table = table.join(large[[SENT, "over"]].set_axis([AT_PAPER_SIZE, OVER_GPIPE], axis=1))
    table[UNDIVIDED] = large["run"].map(lambda run: newest(run, "undivided"))
    table = table.reset_index()
    table["model"] = table["model"].map(style.model_name)
    forms: dict[str, Form] = {UNDIVIDED: ".0%", MEASURED: ".2f", COUNTED: ".2f"}
    return framed(results, f"{NAME}_traffic", table, ABOUT, forms=forms, K=K)


def at_paper_size(frame: Frame) -> Frame:
    """What is sent there; `over` is that over what GPipe sends, whose run is `piped`."""
    runs, work = select(frame, group=plan.TRAFFIC_AT_PAPER_SIZE), ["where", "model"]
    piped = runs[runs["method"] == "gpipe"].set_index(work)
    runs = runs.join(piped[["id", SENT]].set_axis(["piped", "least"], axis=1), on=work)
    return runs.assign(over=runs[SENT] / runs["least"])


def combinations(results: Results, frame: Frame) -> Table:
    """What K devices gain over one by each method and pair of methods, where layers wait."""
    frame = select(frame, group=plan.COMBINATIONS)
    emulated = select(frame, fidelity="emulated")
    table = emulated[["where", "run", "method", "K", "D"]].rename(columns={"D": "replicas"})
    table["parts of a layer"] = emulated["tensor_parallel"].fillna(1).astype(int)
    for fidelity in ("emulated", "simulated"):
        at = ["where", "method", "K"]
        runs = select(frame, fidelity=fidelity).set_index(at)
        alone = runs.groupby("where")["step_s"].first()  # of single
        runs["speedup"] = runs.index.get_level_values("where").map(alone) / runs["step_s"]
        found = pd.DataFrame({"step (ms)": or_status(runs, "step_s"), "speedup": runs["speedup"]})
        table = table.join(found.add_suffix(f" {fidelity}"), on=at)
    forms: dict[str, Form] = {f"step (ms) {of}": in_ms for of in ("emulated", "simulated")}
    return framed(results, f"{NAME}_combinations", table, ABOUT, forms=forms, K=K)


def evidence(results: Results) -> Iterator[tuple[str, Evidence]]:
    """Section 6: what divided layers send, over a pipeline."""
    frame = recorded(results)
    frame = frame[~frame["run"].map(lambda run: run.place.scale).isin(TINY)]
    for run in at_paper_size(frame).dropna(subset="over").itertuples():
        if run.method in plan.DIVIDED[run.model]:
            of = Evidence(run.over, "counted", (run.id, run.piped), papers_size=True)
            yield cell_id(NAME, "sent", run.method), of


def schedules(results: Results, frame: Frame) -> Table:
    equal = on_equal_ranks(frame)
    table = pd.DataFrame({"schedule": [*plan.PIPELINES]}, index=[*plan.PIPELINES])
    table["idle/total arithmetic"] = table["schedule"].map(idle_by_formula)
    table["idle/total simulated"] = or_status(equal, "idle_over_total")
    kept = [kept_micro_batches(spec.make_schedule()) for spec in equal["spec"]]
    table["micro-batches kept counted"] = pd.Series(kept, equal.index)
    full = select(frame, group=plan.PAPER_SIZE)
    forms: dict[str, Form] = {"micro-batches kept counted": ".1f"}
    for column, value in (("step (s), simulated", "step_s"), (PEAK, "peak_gib_max")):
        for name, remat in (("no recompute", "never"), ("recomputed", "always")):
            runs = select(full, remat=remat).set_index("method")
            table[f"{column} {name}"] = or_status(runs, value)
            forms |= {f"{PEAK} {name}": memory}
    words = {"K": K, "M": SIMULATED_M, "N": 2 * SIMULATED_M, "profile": plan.PROFILE}
    return framed(results, f"{NAME}_schedules", table, ABOUT, forms=forms, **words)


def on_equal_ranks(frame: Frame) -> Frame:
    equal = select(frame, group=plan.SCHEDULES, M=SIMULATED_M, remat="never")
    return equal.set_index("method")


def idle_by_formula(name: str) -> float:
    """Idle/total of equal ranks with F:B = 1:2 and free messages, without recomputation."""
    formulas: dict[str, float] = {
        "naive": 1 - 1 / K,
        # Each of a rank's two stages takes half as long (arXiv:2104.04473, section 2.2).
        "interleaved": (K - 1) / (2 * SIMULATED_M + K - 1),
        # F, I and W take equally long (arXiv:2401.10241, Table 2).
        "zero-bubble": (K - 1) / (3 * SIMULATED_M + K - 1),
    }
    return formulas.get(name, theory.bubble_over_total(K, SIMULATED_M))


def kept_micro_batches(schedule: Schedule) -> float:
    """The greatest number of micro-batches that a rank keeps between F and B, or W.

    Where a rank holds several stages, a micro-batch on one of them counts as its part of the rank's
    layers.
    """
    change = {"F": 1, "B": -1, "W": -1}  # a schedule has B or W
    kept = (accumulate(change.get(action.kind, 0) for action in rank) for rank in schedule.ranks)
    return max(map(max, kept)) / schedule.stages_per_rank


def figures(results: Results) -> Iterator[Picture]:
    frame = select(recorded(results), done=True)
    yield "schedules", on_one_clock(results, frame), {"K": K, "M": SIMULATED_M}
    yield "loss", loss_curves(frame), {}


def on_one_clock(results: Results, frame: Frame) -> Figure | None:
    runs = on_equal_ranks(frame)["run"]
    steps = {name: results.timeline(runs[name]) for name in plan.PIPELINES if name in runs}
    timelines = {name: step for name, step in steps.items() if step is not None}
    if "gpipe" not in timelines:
        return None
    end = _CUT * timelines["gpipe"].step_time
    drawn, panels = style.grid(len(timelines), 1, 1.1)
    for (axes,), (name, timeline) in zip(panels, timelines.items(), strict=True):
        gantt.boxes(axes, timeline, end, labelled=False)
        axes.set_yticks([0, timeline.ranks - 1], ["0", str(timeline.ranks - 1)])
        axes.set_ylabel("rank")
        title = f"{name}: {timeline.idle_over_total:.1%} idle"
        if timeline.step_time > end:
            title += f"; it goes on to {1e3 * timeline.step_time:.0f} ms"
        axes.set_title(title)
    for (axes,) in panels[:-1]:
        axes.tick_params(axis="x", labelbottom=False)
    panels[-1][0].set_xlabel("time (ms), simulated")
    gantt.legend(drawn, list(timelines.values()))
    return drawn


def trainings(frame: Frame) -> Frame:
    """Those on new data with each method's best rate; `loss` is smoothed, `last` its end.

    `reached` are the examples until the loss is that which the slowest of them ends with.
    """
    runs = select(frame, group=plan.CURVES, done=True)
    runs = runs.assign(
        loss=[pd.Series(each).rolling(SMOOTHED, min_periods=1).mean() for each in runs["losses"]]
    )
    runs["last"] = [loss.iloc[-1] for loss in runs["loss"]]
    runs = (
        runs.dropna(subset="last")
        .sort_values("last", kind="stable")
        .drop_duplicates(["where", "method", "K"])
    )
    target = runs.groupby("where")["last"].transform("max")
    below = [loss.le(aim) for loss, aim in zip(runs["loss"], target, strict=True)]
    runs["reached"] = runs["N"] * [found.idxmax() + 1 for found in below]
    return runs.assign(target=target).sort_index()


def quality(results: Results, frame: Frame) -> Table:
    runs = trainings(frame)
    table = runs[["where", "run", "method", "K", "lr"]].rename(columns={"lr": "best rate"})
    table["examples an update"] = runs["N"] // runs["M"].where(runs["library"] == "pipedream", 1)
    table["updates late"] = runs["late"]
    table["loss at the end measured"] = runs["last"]
    table["examples to the common loss"] = runs["reached"]
    gpipe = runs[(runs["method"] == "gpipe") & (runs["K"] == 2)].set_index("where")["reached"]
    table["over GPipe"] = runs["reached"] / runs["where"].map(gpipe).astype(float)
    forms: dict[str, Form] = {"best rate": "g", "loss at the end measured": ".3f"}
    forms["examples to the common loss"] = "d"
    loss = f"{runs['target'].max():.3f}"
    return framed(results, f"{NAME}_quality", table, ABOUT, forms=forms, loss=loss)


def loss_curves(frame: Frame) -> Figure | None:
    """By examples, of which PipeDream makes more updates, and by updates."""
    runs = trainings(frame)
    runs = select(runs, method=["gpipe", "pipedream"], where=[*runs["where"][:1]])
    runs = runs.sort_values(["method", "K"])
    if "gpipe" not in set(runs["method"]) or len(runs) < 2:
        return None
    drawn, ((by_examples, by_updates),) = style.grid(1, 2, 3.2)
    for run in runs[(runs["method"] != "gpipe") | (runs["K"] == 2)].itertuples():
        each, colour, dashes = run.N, style.THEORY, "-"
        if run.method == "pipedream":
            each, colour, dashes = run.N // run.M, style.series_colour(run.K), "--"
        label = f"{run.method}, K={run.K}: 1 in {each}"
        look = style.dots("measured", linestyle=dashes, markersize=0, color=colour, label=label)
        examples = run.N * np.arange(1, len(run.loss) + 1)
        by_examples.plot(examples, run.loss, **look)
        by_updates.plot(examples / each, run.loss, **look)
    for axes, counted in ((by_examples, "examples, each used once"), (by_updates, "updates")):
        axes.set(xlabel=counted, xscale="log")
        axes.xaxis.set_major_formatter("{x:g}")
    by_examples.set_ylabel("training loss, measured")
    by_examples.legend(loc="upper right", title="updates in examples")
    return drawn
