"""Table 2 (section 3 of arXiv:1811.06965v5) beside our numbers, and what simulated runs say of it.

Ratios are over K=2, M=1. The headline is the protocol that could have run on the paper's devices;
the others are comparisons, and their cells that do not fit earn no verdict.
"""

from collections.abc import Iterator, Mapping
from math import isnan, nan
from typing import Any

import pandas as pd

from experiments.costs.error import meaning, with_range
from experiments.table2 import recorded
from experiments.table2.claims import evidence
from experiments.table2.figures import bars, divided
from experiments.table2.recorded import CELL, CONTROLLED, SHARE, over_base, simulated_cells
from experiments.table2.runs import ABOUT, KS, MS, NAME
from repro.claims.all_claims import CELL as TOLERANCE
from repro.claims.all_claims import throughput_id, verdicts_on
from repro.harness.frame import ratio_of, select
from repro.harness.results import Results, Run
from repro.harness.spec import RunSpec
from repro.report import figures as generic
from repro.report.compare import Setting, beside_paper, optimizers, rows_of, settings
from repro.report.curves import ideal_over_k2m1
from repro.report.declared import Shown
from repro.report.figures import Picture
from repro.report.framed import MARKS, RANGE, RATIO, Form, framed, text_of
from repro.report.style import model_name
from repro.report.table import EMPTY, NOT_RUN, Cell, Table

# Comparisons that are also shown under a bound of what a compiler may do.
FUSED = [(protocol, b) for protocol in (CONTROLLED, SHARE) for b in ("fused", "fused and folded")]
TORCHGPIPE = "torchgpipe, quoted"
THEIRS = "measured by torchgpipe (quoted)"
TEXTBOOK, EARLY = NULLS = ("textbook", "ideal (early recompute)")
SHOWN = Shown(
    "table2_predictions",
    f"model | K | M | quoted | {TORCHGPIPE} | predicted, simulated | verdict",
    figure="table2_divisions",
)


def tables(results: Results) -> list[Table]:
    cells = simulated_cells(results)
    of_cells = (predictions, null, division)
    shown = of_cells if beside_paper(results, NAME) and len(cells) else ()
    return [table2(results, cells), *(make(results, cells) for make in shown)]


def figures(results: Results) -> Iterator[Picture]:
    if beside_paper(results, NAME):
        cells = simulated_cells(results)
        bar = ", with the range of `costs_bars` as a line without caps"
        yield "bars", bars(results), {"bar": bar if meaning(results) else ""}
        yield "divisions", divided(divisions(results, cells)), {}
    done = rows_of(results, experiment=NAME, status="done")
    yield from generic.figure2(results, [run for run in done if recorded.is_controlled(run)])


def table2(results: Results, cells: pd.DataFrame) -> Table:
    """A line for each model as it was measured and M; for each K quoted, ours and the ideal."""
    runs = rows_of(results, experiment=NAME)
    measured = [run for run in runs if run.fidelity == "measured" and run.K > 1]
    paper = recorded.printed().set_index(CELL)["quoted"].map("{:g}".format)
    headline = select(cells, headline=True).set_index(CELL)
    Ks = sorted({2, 4, 8} | {run.K for run in measured})
    found = settings(results, measured)
    models = [setting.model for setting in found]
    absent = {run.model for run in runs if run.model in recorded.HEADLINES} - {*models}
    found += [Setting(model, ("gpipe", "always"), "", []) for model in absent]
    lines = []
    found.sort(key=lambda setting: setting.model)
    for setting in found:
        model = setting.model
        title = setting.title if models.count(model) > 1 else model_name(model)
        of_cell = {(run.K, run.M): run for run in reversed(setting.rows)}
        for M in sorted({1, 4, 32} | {run.M for run in setting.rows}):
            line: dict[str, Any] = {"model": title, "M": M}
            for K in Ks:
                line[f"K={K} quoted"] = paper.get((model, K, M), EMPTY)
                line[f"K={K} measured"] = _measured(results, of_cell.get((K, M)))
                if len(cells):
                    line[f"K={K} simulated"] = _simulated(headline, (model, K, M))
                line[f"K={K} ideal"] = f"{ideal_over_k2m1(K, M, *setting.plan):.2f}"
            lines.append(line)
    origin, bar = _what_was_run(results, found, cells), meaning(results) if len(cells) else ""
    table = pd.DataFrame(lines)
    return framed(results, NAME, table, ABOUT, origin=origin, marks=MARKS, bar=bar)


def _measured(results: Results, run: Run | None) -> str:
    if run is None or not run.done:
        return run.status if run else NOT_RUN
    text = text_of(RATIO, *ratio_of(results, run, results.baseline(run, K=2, M=1)))
    return "baseline not measured" if text == EMPTY else text


def _simulated(headline: pd.DataFrame, cell: tuple[str, int, int]) -> str:
    if cell not in headline.index or headline.at[cell, "status"] != "done":
        return NOT_RUN
    if headline.at[cell, "is_base"]:
        return "1 (baseline)"
    ratio, low, high = (headline.at[cell, name] for name in ("ratio", "ratio: low", "ratio: high"))
    return "nothing fits" if isnan(ratio) else text_of(".2f", ratio, low, high, RANGE)


def _what_was_run(results: Results, found: list[Setting], cells: pd.DataFrame) -> str:
    """The sizes behind each fidelity: `Measured: ...; Simulated: ...`."""
    measured = "; ".join(setting.title for setting in found if setting.details)
    simulated = sizes(cells)
    runs = rows_of(results, experiment=NAME)
    used = optimizers(run for run in runs if recorded.is_controlled(run))
    parts = measured and f"Measured: {measured}.", simulated and f"Simulated: {simulated}.", used
    return " ".join(filter(None, parts))


def sizes(cells: pd.DataFrame) -> str:
    """What the headline models: `AmoebaNet-D (L=18, D=256, image=224 on tpu-v2); ...`."""
    texts = []
    for spec in select(cells, headline=True)["spec"].dropna():
        args = ", ".join(f"{name}={value}" for name, value in spec.model_args.items())
        texts.append(f"{model_name(spec.model)} ({args} on {spec.profile})")
    return "; ".join(dict.fromkeys(texts))


def predictions(results: Results, cells: pd.DataFrame) -> Table:
    lines = select(cells, headline=True)
    ids = [throughput_id(NAME, *cell) for cell in zip(*(lines[name] for name in CELL), strict=True)]
    verdicts = pd.Series(verdicts_on(ids, evidence(results)), lines.index)
    table = lines[[*CELL, "quoted", "textbook", "ideal", "ratio", "ratio: low", "ratio: high"]]
    table = table.rename(columns=lambda name: name.replace("ratio", "predicted"))
    table.insert(4, TORCHGPIPE, lines["torchgpipe"])
    table["N"] = lines["N"].astype(int)
    table["gap"] = lines["ratio"] / lines["quoted"].astype(float) - 1
    table["verdict"] = verdicts.mask(lines["is_base"], "baseline")
    return framed(
        results,
        "table2_predictions",
        table,
        ABOUT,
        forms={"quoted": "g", "gap": lambda gap: f"{100 * gap:+.0f} %" if gap else EMPTY},
        headings={"predicted": "predicted, simulated"},
        sizes=sizes(cells),
        tolerance=TOLERANCE,
        ranges=["predicted"],
        bar=meaning(results),
    )


def scores(cells: pd.DataFrame) -> pd.DataFrame:
    """How well each formula, protocol and bound does on the cells of a model but the base."""
    once = cells.drop_duplicates(CELL).assign(fits=None)
    headline = select(cells, headline=True)
    named = [
        once.assign(prediction=TEXTBOOK, ratio=once["textbook"]),
        once.assign(prediction=EARLY, ratio=once["ideal"]),
        headline.assign(prediction="headline (" + headline["protocol"] + ")"),
        once.assign(prediction=THEIRS, ratio=once["torchgpipe"]),
    ]
    for name, bound in FUSED:
        lines = select(cells, protocol=name)
        ratio = over_base(lines, bound)
        named.append(lines.assign(prediction=f"{name}, all else {bound}", ratio=ratio))
    frame = pd.concat(named)
    frame = frame.loc[~frame["is_base"]]
    frame["gap"] = (frame["ratio"] / frame["quoted"].astype(float) - 1).abs()
    theirs = frame["torchgpipe"].mask(frame["prediction"] == THEIRS)
    frame["gap to torchgpipe"] = (frame["ratio"] / theirs - 1).abs()
    frame["near"] = frame["gap"] <= TOLERANCE
    frame["do not fit"] = frame["fits"].eq(False)
    frame["cells"] = frame["gap"].notna()
    by_prediction = frame.groupby(["model", "prediction"], sort=False)
    scores = (
        by_prediction[["gap", "gap to torchgpipe"]]
        .median()
        .join(by_prediction[["near", "cells", "do not fit"]].sum())
    )
    return scores.loc[scores["cells"] > 0].reset_index().sort_values("model", kind="stable")


def null(results: Results, cells: pd.DataFrame) -> Table:
    """Does a cost model predict Table 2 better than a formula that knows nothing of devices?"""
    table = scores(cells).rename(columns=lambda name: name.replace("gap", "median |gap|"))
    table["beats"] = [_beaten_by(line, table) for line in table.to_dict("records")]
    near = zip(table["near"], table["cells"], strict=True)
    table["near"] = [Cell(int(near), f"{near} of {count}") for near, count in near]
    shares: dict[str, Form] = dict.fromkeys(["median |gap|", "median |gap| to torchgpipe"], ".1%")
    return framed(
        results,
        "table2_null",
        table,
        ABOUT,
        forms=shares | {"do not fit": lambda count: str(count or EMPTY)},
        headings={"near": f"within {TOLERANCE:.0%}"},
        hidden=["cells"],
        tolerance=TOLERANCE,
    )


def _beaten_by(score: Mapping[str, Any], scores: pd.DataFrame) -> str:
    """Which null models have no smaller median, and no more cells within the tolerance."""
    if score["prediction"] in NULLS:
        return "null model"
    if score["prediction"] == THEIRS:
        return "no prediction"
    if score["do not fit"]:
        return "does not fit"
    rivals = select(scores, model=score["model"], prediction=[*NULLS]).to_dict("records")
    beaten = [
        rival["prediction"]
        for rival in rivals
        if score["median |gap|"] < rival["median |gap|"] and score["near"] >= rival["near"]
    ]
    return "both" if len(beaten) == len(NULLS) else f"{beaten[0]} alone" if beaten else "neither"


def divisions(results: Results, cells: pd.DataFrame) -> pd.DataFrame:
    """M=32 over M=4 at each K, which shows what more micro-batches gain; each M over its own K=2.

    These do not need K=2, M=1, the least certain cell of the table.
    """
    pairs = [((K, MS[-1]), (K, MS[1])) for K in KS[1:]]
    pairs += [((K, M), (KS[1], M)) for M in MS for K in KS[2:]]
    lines = []
    for model, of_model in select(cells, headline=True).groupby("model"):
        by_place = of_model.set_index(["K", "M"])
        numbers = by_place[["quoted", "ideal", "ratio"]]
        for above, under in pairs:
            quotient = numbers.loc[above] / numbers.loc[under]
            spec, ends = by_place.at[above, "spec"], (nan, nan)
            if isinstance(spec, RunSpec):
                _, *ends = with_range(results, quotient["ratio"], spec)
            names = [f"K={K}, M={M}" for K, M in (above, under)]
            lines.append([model, above[0] == under[0], *names, *quotient, *ends])
    columns = ["model", "by_M", "cell", "over", "quoted", "ideal", "ratio"]
    return pd.DataFrame(lines, columns=[*columns, "ratio: low", "ratio: high"])


def division(results: Results, cells: pd.DataFrame) -> Table:
    lines = divisions(results, cells)
    table = lines[["model", "cell", "over", "quoted", "ideal"]]
    table["quoted over ideal"] = lines["quoted"] / lines["ideal"]
    ends = {"headline, simulated": ("headline: low", "headline: high")}
    table[["headline, simulated", "headline: low", "headline: high"]] = lines.filter(like="ratio")
    forms: dict[str, Form] = dict.fromkeys(["quoted", "ideal", "quoted over ideal"], ".3f")
    words = {"ranges": [*ends], "bar": meaning(results)}
    return framed(results, "table2_divisions", table, ABOUT, forms=forms, ends=ends, **words)
