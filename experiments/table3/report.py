"""Table 3 of arXiv:1811.06965v5, throughput without fast links: quoted beside ours."""

from collections.abc import Iterator
from dataclasses import replace
from math import inf, nan

import pandas as pd
from matplotlib.figure import Figure

from experiments.costs.error import meaning, with_range
from experiments.table3 import cuts
from experiments.table3.cuts import SIZES
from experiments.table3.runs import ABOUT, DEVICE, NAME, THROTTLED, VARIED, M
from experiments.table3.runs import KS as EVERY_K
from repro.claims.all_claims import CELL, cell_id, throughput_id, verdicts_on
from repro.claims.claim import Evidence
from repro.harness.frame import Frame, ratio_of, ratios, runs_frame, select
from repro.harness.results import Results, Run
from repro.paper import theory
from repro.paper.numbers import table3
from repro.report.compare import NOT_FITTING, beside_paper, fits, speed_name
from repro.report.curves import ideal_over_k1
from repro.report.declared import Shown
from repro.report.figures import Picture
from repro.report.framed import (
    RATIO,
    Form,
    error_bars,
    framed,
    or_status,
    with_interval,
    with_parts,
)
from repro.report.style import FIDELITIES, SOFT, dots, grid, legend_below, model_name, ticks
from repro.report.table import EMPTY, Table

KS = EVERY_K[1:]  # those of the table; K=1 is no cell of it
PRINTED = {(cell.model, cell.K): cell.value for cell in table3() if cell.M == M}
SLOWER = "measured step over step"
SERIES = ["scaled_down", "model", "where", "title"]  # runs alike in these share their K=2
SHOWN = Shown(
    NAME,
    "model | K | quoted over K=2 | simulated over K=2 | simulated against quoted | emulated "
    "over K=2 | verdict",
)


def tables(results: Results) -> list[Table]:
    frame, slowed = cells(results), throttled(results)
    shown = [cuts.table(results)] if beside_paper(results, NAME) else []
    return [throughput(results, frame), *shown, throttled_links(results, slowed)]


def figures(results: Results) -> Iterator[Picture]:
    if beside_paper(results, NAME):
        yield "cuts", cuts.figure(results), {"tolerance": CELL}
    yield "throttled", slow_links(throttled(results)), {}


def cells(results: Results) -> Frame:
    """A line for each run whose link is as fast as its device's, beside its run at K=2.

    `low` and `high` of a modelled ratio are the cost model's error. `title` is the model, and the
    place where its size is not the paper's or several places have it.
    """
    frame = runs_frame(results, NAME)
    frame = frame.loc[~frame["group"].astype(str).str.endswith((THROTTLED, VARIED))]
    frame = frame.join(ratios(results, frame, K=2))
    frame["scaled_down"] = [run.spec.model_args != SIZES.get(run.model) for run in frame["run"]]
    places = frame.groupby(["scaled_down", "model"])["where"].transform("nunique")
    names = frame["model"].map(model_name)
    alone = ~frame["scaled_down"] & (places == 1)
    frame["title"] = names.where(alone, names + " (" + frame["where"] + ")")
    modelled = (frame["fidelity"] != "measured") & (frame["K"] != 2)
    runs = zip(frame["ratio"], frame["run"], strict=True)
    ranged = pd.Series([with_range(results, r, run.spec) for r, run in runs], frame.index)
    frame["low"] = frame["low"].mask(modelled, ranged.str[1])
    frame["high"] = frame["high"].mask(modelled, ranged.str[2])
    frame["fits"] = frame["run"].map(fits)
    frame["free_step_s"] = frame["run"].map(_free_step)
    alike = [*SERIES, "fidelity"]
    frame = frame.drop_duplicates([*alike, "K"]).sort_values([*SERIES, "K"])
    base = select(frame, K=2)[[*alike, "id", "done", "fits", "free_step_s"]]
    return frame.merge(base, how="left", on=alike, suffixes=("", "_at_k2"))


def _free_step(run: Run) -> float:
    """Seconds of a simulated run's step if its messages took no time, as the run recorded it."""
    modelled = run.rounds[-1].modelled if run.done else None
    rungs = modelled.rungs if modelled else {"transfer": nan, "launch": nan}
    return run.step_s - (rungs["transfer"] - rungs["launch"])


def throughput(results: Results, frame: Frame) -> Table:
    found = frame[SERIES].drop_duplicates().merge(pd.DataFrame({"K": KS}), how="cross")
    # As printed, whole or not.
    cells_of = [PRINTED.get(cell, nan) for cell in zip(found["model"], found["K"], strict=True)]
    printed = pd.Series(cells_of, dtype=object)
    table = pd.DataFrame({"model": found["title"], "K": found["K"], "quoted over K=2": printed})
    forms: dict[str, Form] = {"quoted over K=2": "g"}
    headings, ends = {}, {}
    for fidelity in ("simulated", "emulated", "measured"):
        runs = select(frame, fidelity=fidelity)
        if runs.empty:
            continue
        ours = found.merge(runs, how="left", on=[*SERIES, "K"])
        name, off = f"{fidelity} over K=2", f"{fidelity} over quoted"
        ends[name] = (f"{fidelity} low", f"{fidelity} high")
        table[name] = or_status(ours, "ratio")
        table[[*ends[name]]] = ours[["low", "high"]]
        table[off] = (ours["ratio"] / printed.astype(float)).mask(ours["scaled_down"])
        # 1: K=2, by which the others are divided.
        forms |= {name: RATIO, off: lambda of: EMPTY if of == 1 else f"{of - 1:+.1%}"}
        headings[off] = f"{fidelity} against quoted"
    ids = [throughput_id(NAME, model, K, M) for model, K in zip(found.model, found.K, strict=True)]
    verdicts = pd.Series(verdicts_on(ids, evidence_of(results, frame)))
    table["verdict"] = verdicts.where(~found["scaled_down"] & (found["K"] != 2))
    textbook = {K: theory.speedup_over_k1(K, M, "plain") for K in KS}
    table["textbook over K=2"] = found["K"].map(textbook) / textbook[2]
    ideal = {K: ideal_over_k1(K, M, "gpipe", "always") for K in KS}
    table["ideal over K=2"] = found["K"].map(ideal) / ideal[2]
    words = {"M": M, "device": DEVICE, "bar": meaning(results), "tolerance": CELL}
    words["ranges"] = [name for name in ends if "measured" not in name]
    return framed(results, NAME, table, ABOUT, forms=forms, headings=headings, ends=ends, **words)


def evidence(results: Results) -> Iterator[tuple[str, Evidence]]:
    return evidence_of(results, cells(results))


def evidence_of(results: Results, frame: Frame) -> Iterator[tuple[str, Evidence]]:
    """Throughput over K=2, and percent of the step that a free link would save.

    NaN where a model does not fit its device. A modelled cell has the same cell under other cuts
    and mini-batches beside it.
    """
    frame = select(frame, scaled_down=False, done=True, done_at_k2=True, K=[*KS[1:]])
    for _, line in frame.iterrows():
        model, K = line["model"], line["K"]
        fitting = bool(line["fits"] and line["fits_at_k2"])
        about = Evidence(
            line["ratio"] if fitting else nan,
            line["fidelity"],
            (line["id"], line["id_at_k2"]),
            *line[["low", "high"]],
            is_range=line["fidelity"] != "measured",
            papers_size=True,
            why=NOT_FITTING,
        )
        found = about
        if line["fidelity"] != "measured":
            setting = cuts.named("time", line["N"])
            others = cuts.settings(results, model, K)
            others.pop(setting, None)
            ranged = {
                name: with_range(results, ratio, line["run"].spec) for name, ratio in others.items()
            }
            found = replace(about, setting=setting, others=ranged)
        yield throughput_id(NAME, model, K, M), found
        if (line["fidelity"], K) == ("simulated", max(KS)):
            faster = with_range(results, line["step_s"] / line["free_step_s"], line["run"].spec)
            saved, low, high = (100 - 100 / each for each in faster)
            saved = saved if fitting else nan
            yield (
                cell_id(NAME, model, "slow links"),
                replace(about, value=saved, low=low, high=high),
            )


def throttled(results: Results) -> Frame:
    """The runs at K=2 whose link is slowed down, or not, by model and place, the fastest first.

    `SLOWER` is the step over that of the same round's run whose link is not throttled.
    """
    frame = runs_frame(results, NAME)
    frame = frame.loc[frame["group"].astype(str).str.endswith(THROTTLED)]
    bases = [results.baseline(run, link=None) for run in frame["run"]]
    slower = [
        ratio_of(results, base, run) if base and run.done else (nan, nan, nan)
        for base, run in zip(bases, frame["run"], strict=True)
    ]
    frame = with_interval(with_parts(frame), SLOWER, slower)
    frame["speed"] = [spec.link.bytes_per_second if spec.link else inf for spec in frame["spec"]]
    frame["link"] = frame["speed"].map(speed_name)
    return frame.sort_values(["model", "machine", "scale", "speed"], ascending=[True] * 3 + [False])


def throttled_links(results: Results, frame: Frame) -> Table:
    table = frame[["model", "where", "link", "status", "rounds"]]
    table["model"] = frame["model"].map(model_name)
    table["bytes_per_second"] = frame["speed"]
    table["measured step (ms)"] = 1e3 * frame["step_s"]
    table["measured transfer"] = frame["transfer"]
    table = table.join(frame.filter(like=SLOWER))
    forms, hidden = {SLOWER: RATIO}, ["bytes_per_second"]
    return framed(results, f"{NAME}_throttled", table, ABOUT, forms=forms, hidden=hidden)


def slow_links(frame: Frame) -> Figure | None:
    frame = frame.dropna(subset=SLOWER)
    frame = frame.groupby(["model", "where"]).filter(lambda runs: len(runs) > 1)
    if frame.empty:
        return None
    models = [*frame["model"].unique()]
    figure, panels = grid(2, len(models), 2.1)
    speeds = sorted(frame["speed"].unique())
    names = ["not\nthrottled" if speed == inf else speed_name(speed) for speed in speeds]
    for above, below, model in zip(*panels, models, strict=True):
        of_model = select(frame, model=model)
        places = of_model.groupby("where", sort=False)
        for index, (where, runs) in enumerate(places):
            at = runs["speed"].map(speeds.index) + 0.3 * (index - (len(places) - 1) / 2)
            face = FIDELITIES["measured"] if index == 0 else "white"
            look = dots("measured", label=where, markerfacecolor=face)
            above.errorbar(at, runs[SLOWER], error_bars(runs, SLOWER), **look)
            below.plot(at, 100 * runs["transfer"].fillna(0.0), **look)
        above.axhline(1, color=SOFT, linewidth=0.9)
        above.set(title=f"{model_name(model)}, K={of_model['K'].max()}", ylim=(0, None))
        below.set(ylim=(0, None), xlabel="link")
        for axes in (above, below):
            ticks(axes, list(range(len(speeds))), names)
            axes.grid(axis="x", visible=False)
        above.tick_params(axis="x", labelbottom=False)
    for row in panels:
        highest = max(axes.get_ylim()[1] for axes in row)
        for axes in row:
            axes.set_ylim(0, highest)
    panels[0][0].set_ylabel("step over that of\na link not throttled")
    panels[1][0].set_ylabel("transfer (% of K x step)")
    legend_below(figure, panels[0][0])
    return figure
