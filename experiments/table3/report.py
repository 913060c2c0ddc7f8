"""Table 3 of arXiv:1811.06965v5, throughput without fast links: quoted beside ours."""

from collections import Counter
from collections.abc import Iterator, Mapping
from math import inf, isnan, nan

import pandas as pd
from matplotlib.figure import Figure

from experiments.costs.error import ErrorBar, error_bar, meaning
from experiments.table3.figures import slow_links
from experiments.table3.runs import ABOUT, DEVICE, NAME, THROTTLED, M
from experiments.table3.runs import KS as EVERY_K
from repro.claims.all_claims import verdict_on
from repro.claims.cells import CELL, cell_id, throughput_id
from repro.claims.claim import Evidence
from repro.gpipe.partition.layer_costs import LinkSpeed
from repro.harness.frame import ratio_of, ratios, runs_frame, select
from repro.harness.results import Results, Run
from repro.harness.sizes import TABLE3_AMOEBANET, TABLE3_TRANSFORMER
from repro.harness.spec import RunSpec
from repro.paper import table3, theory
from repro.report.compare import speed_name
from repro.report.declared import Shown
from repro.report.framed import HIGH, LOW, RATIO, Form, framed, or_status
from repro.report.ratio import ideal_over_k1
from repro.report.rounds import costs, fits, parts
from repro.report.style import model_name
from repro.report.table import EMPTY, Cell, Table

KS = EVERY_K[1:]  # those of the table; K=1 is no cell of it
SIZES = {"amoebanet-d": TABLE3_AMOEBANET["paper"], "transformer": TABLE3_TRANSFORMER["paper"]}
PRINTED = {(cell.model, cell.K): cell.value for cell in table3() if cell.M == M}
NOT_FITTING = "counted not to fit the device"
SERIES = ["scaled_down", "model", "where", "title"]  # runs alike in these share their K=2
SHOWN = Shown(
    NAME,
    (
        "model",
        "K",
        "quoted over K=2",
        "simulated over K=2",
        "simulated against quoted",
        "emulated over K=2",
        "verdict",
    ),
)


def tables(results: Results) -> list[Table]:
    frame = cells(results)
    if frame.empty:
        return []
    return [
        throughput(results, frame),
        links(results, frame),
        throttled_links(results, throttled(results)),
    ]


def answer(tables: Mapping[str, Table]) -> str:
    table = tables[NAME]
    images, text = ({"model": name, "K": "8"} for name in ("AmoebaNet-D", "Transformer"))
    return (
        "Over slow links K=8 has, simulated, "
        f"{table.number('simulated over K=2', **images)} times the throughput of K=2 for "
        f"AmoebaNet-D and {table.number('simulated over K=2', **text)} times for the Transformer; "
        f"the paper prints {table.text('quoted over K=2', **images)} and "
        f"{table.text('quoted over K=2', **text)}."
    )


def figures(results: Results, _rows: list[Run]) -> Iterator[tuple[str, Figure | None, str]]:
    words = ABOUT.words["throttled"].filled()
    yield "throttled", slow_links(throttled(results)), words.note


def cells(results: Results) -> pd.DataFrame:
    """A line for each run whose link is as fast as its device's, beside its run at K=2.

    `low` and `high` of a simulated ratio are the cost model's error.
    """
    frame = runs_frame(results, NAME)
    frame = frame.loc[~frame["group"].astype(str).str.endswith(THROTTLED)]
    sizes = zip(frame["model"], frame["model_args"], strict=True)
    frame = frame.assign(scaled_down=[args != SIZES.get(model) for model, args in sizes])
    frame["title"] = _titles(frame)
    frame = frame.join(ratios(results, frame, K=2))
    frame = _with_error(frame, error_bar(results))
    runs = [results.runs[index] for index in frame.index]
    frame["fits"] = [fits(run) is not False for run in runs]
    frame["free_step_s"] = [_free_step(run) for run in runs]
    frame["transfer"] = [parts(run).get("transfer", nan) for run in runs]
    frame["costs"] = [costs(run) for run in runs]
    alike = [*SERIES, "fidelity"]
    frame = frame.drop_duplicates([*alike, "K"]).sort_values([*SERIES, "K"])
    base = select(frame, K=2)[[*alike, "id", "done", "fits", "free_step_s"]]
    return frame.merge(base, how="left", on=alike, suffixes=("", "_at_k2"))


def _titles(frame: pd.DataFrame) -> list[str]:
    """The model, and the place where its size is not the paper's or several places have it."""
    lines = [*zip(frame["scaled_down"], frame["model"], frame["where"], strict=True)]
    places = Counter((scaled_down, model) for scaled_down, model, _ in set(lines))
    return [
        f"{model_name(model)} ({where})"
        if scaled_down or places[scaled_down, model] > 1
        else model_name(model)
        for scaled_down, model, where in lines
    ]


def _with_error(frame: pd.DataFrame, bar: ErrorBar | None) -> pd.DataFrame:
    simulated = (frame["fidelity"] == "simulated") & (frame["K"] != 2)
    if bar is not None:
        ends = frame["ratio"].map(bar.ends)
        frame["low"] = frame["low"].mask(simulated, ends.str[0])
        frame["high"] = frame["high"].mask(simulated, ends.str[1])
    return frame


def _free_step(run: Run) -> float:
    """Seconds of a simulated run's step if its messages took no time, as the run recorded it."""
    modelled = run.rounds[-1].modelled if run.done else None
    if modelled is None:
        return nan
    return run.step_s - (modelled.rungs["transfer"] - modelled.rungs["launch"])


def throughput(results: Results, frame: pd.DataFrame) -> Table:
    """Table 3, a line for each model and K."""
    found = frame[SERIES].drop_duplicates().merge(pd.DataFrame({"K": KS}), how="cross")
    printed = _quoted(found)
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
        forms |= {name: RATIO, off: _against}
        headings[off] = f"{fidelity} against quoted"
    ours = evidence_of(frame)
    ids = [throughput_id(NAME, model, K, M) for model, K in zip(found.model, found.K, strict=True)]
    verdicts = pd.Series([verdict_on(identity, ours.get(identity)) for identity in ids])
    table["verdict"] = verdicts.where(~found["scaled_down"] & (found["K"] != 2))
    textbook = {K: theory.speedup_over_k1(K, M, "plain") for K in KS}
    ideal = {K: ideal_over_k1(K, M, "gpipe", "always") for K in KS}
    for name, over_k1 in (("textbook", textbook), ("ideal", ideal)):
        table[f"{name} over K=2"] = [over_k1[K] / over_k1[2] for K in found["K"]]
    words = {"M": M, "device": DEVICE, "bar": meaning(error_bar(results)), "tolerance": CELL}
    return framed(results, NAME, table, ABOUT, forms=forms, headings=headings, ends=ends, **words)


def _quoted(frame: pd.DataFrame) -> pd.Series:
    """The paper's number as printed, whole or not."""
    values = [PRINTED.get(cell, nan) for cell in zip(frame["model"], frame["K"], strict=True)]
    return pd.Series(values, frame.index, dtype=object)


def _against(off: float) -> str:
    return EMPTY if off == 1 else f"{off - 1:+.1%}"  # 1: K=2, by which the others are divided


def evidence(results: Results) -> dict[str, Evidence]:
    return evidence_of(cells(results))


def evidence_of(frame: pd.DataFrame) -> dict[str, Evidence]:
    """Throughput over K=2, and percent of the step that a free link would save.

    NaN where a model does not fit its device. A measurement stands before a simulation.
    """
    ours: dict[str, Evidence] = {}
    frame = select(frame, scaled_down=False, done=True, done_at_k2=True, K=[*KS[1:]])
    for fidelity in ("measured", "simulated"):
        for line in select(frame, fidelity=fidelity).to_dict("records"):
            model, K = line["model"], line["K"]
            ratio = line["ratio"] if line["fits"] and line["fits_at_k2"] else nan
            runs, ends = (line["id"], line["id_at_k2"]), (line["low"], line["high"])
            ours.setdefault(
                throughput_id(NAME, model, K, M),
                Evidence(ratio, fidelity, runs, *ends, papers_size=True, why=NOT_FITTING),
            )
            if fidelity == "simulated" and max(KS) == K:
                saved = 100 * (1 - line["free_step_s"] / line["step_s"]) if line["fits"] else nan
                ours[cell_id(NAME, model, "slow links")] = Evidence(
                    saved, fidelity, runs[:1], papers_size=True, why=NOT_FITTING
                )
    return ours


def links(results: Results, frame: pd.DataFrame) -> Table:
    """What transfers take of the simulated step, and the step without them; the cut is kept."""
    runs = select(frame, fidelity="simulated", done=True, K=[*KS])
    largest = runs["costs"].map(lambda stages: max(stages.activations))
    seconds = [
        stages.link.seconds(int(sent)) for stages, sent in zip(runs["costs"], largest, strict=True)
    ]
    table = pd.DataFrame(
        {
            "model": runs["title"],
            "K": runs["K"],
            "step (ms) simulated": 1e3 * runs["step_s"],
            "transfer simulated": runs["transfer"],
            "free link step over step": runs["free_step_s"] / runs["step_s"],
            "over K=2 quoted": _quoted(runs),
            "over K=2 simulated": runs["ratio"],
            "over K=2 free link": runs["free_step_s_at_k2"] / runs["free_step_s"],
            "message MiB": largest / 2**20,
            "message time over F": seconds / runs["costs"].map(lambda stages: max(stages.forward)),
        }
    )
    forms: dict[str, Form] = {
        "free link step over step": ".3f",
        "message MiB": ".2f",
        "over K=2 quoted": "{:.2f}".format,
    }
    return framed(results, f"{NAME}_links", table, ABOUT, forms=forms)


def throttled(results: Results) -> pd.DataFrame:
    """The runs at K=2 whose link is slowed down, or not, by model and place, the fastest first.

    `ratio` is the step over that of the same round's run whose link is not throttled.
    """
    frame = runs_frame(results, NAME)
    frame = frame.loc[frame["group"].astype(str).str.endswith(THROTTLED)]
    runs = [results.runs[index] for index in frame.index]
    bases = [results.baseline(run, link=None) for run in runs]
    slower = [
        ratio_of(results, base, run) if base and run.done else (nan, nan, nan)
        for base, run in zip(bases, runs, strict=True)
    ]
    frame = frame.join(pd.DataFrame(slower, frame.index, ["ratio", "low", "high"]))
    frame["speed"] = [spec.link.bytes_per_second if spec.link else inf for spec in frame["spec"]]
    frame["transfer"] = [parts(run).get("transfer", nan) for run in runs]
    frame["message"] = [message_bytes(spec) for spec in frame["spec"]]
    return frame.sort_values(["model", "machine", "scale", "speed"], ascending=[True] * 3 + [False])


def message_bytes(spec: RunSpec) -> float:
    """Bytes of one micro-batch of float32 between stages; NaN where the cut decides (AmoebaNet)."""
    if spec.model != "transformer":
        return nan
    return 4.0 * spec.N / spec.M * spec.model_args["T"] * spec.model_args["d"]


def throttled_links(results: Results, frame: pd.DataFrame) -> Table:
    on_link = [
        nan if isnan(size) or speed == inf else 1e3 * LinkSpeed(0.0, speed).seconds(int(size))
        for size, speed in zip(frame["message"], frame["speed"], strict=True)
    ]
    table = pd.DataFrame(
        {
            "model": frame["model"].map(model_name),
            "where": frame["where"],
            "link": frame["speed"].map(speed_name),
            "status": frame["status"],
            "rounds": frame["rounds"],
            "bytes_per_second": frame["speed"],
            "measured step (ms)": 1e3 * frame["step_s"],
            "measured transfer": frame["transfer"],
            "message KiB": frame["message"] / 1024,
            "message ms on this link": on_link,
        }
    )
    itself = (frame["speed"] == inf) & frame["ratio"].notna()
    baseline = Cell(1.0, "1 (baseline)")  # without an interval
    name = "measured step over step"
    table[name] = frame["ratio"].astype(object).mask(itself, baseline)
    table[[name + LOW, name + HIGH]] = frame[["low", "high"]].mask(itself)
    return framed(
        results,
        f"{NAME}_throttled",
        table,
        ABOUT,
        forms={"message KiB": ".0f", "measured step over step": RATIO},
        hidden=["bytes_per_second"],
    )
