"""The methods side by side: what each gives and costs, and what it sends over GPipe."""

from collections.abc import Iterator
from math import nan
from typing import Any

import pandas as pd

from repro.experiments.methods import runs as plan
from repro.experiments.methods.runs import ABOUT, NAME, K
from repro.harness.frame import Frame, ratio_of, runs_frame, select
from repro.harness.results import Results, Run
from repro.harness.text import TIMES, percent
from repro.report import style
from repro.report.claim import Claim, number
from repro.report.framed import MARKS, framed, or_status, with_interval
from repro.report.table import Table

MIB = 2**20
RECOMPUTED = {"always": ", recomputes", "except_last": ", recomputes all but the last"}
OVER_ONE, PEAK, SENT = "over one device", "peak MiB", "sent MiB"
COUNTED_ON_K = f"counted on {K} at the paper's size (GiB)"
OVER_GPIPE, BUT_GRADIENTS = "over GPipe", "over GPipe, without sums of gradients"
OF_WHOLE_MODELS = ("data", "rows")  # each device has all weights, whose gradients are summed
WORDS = {
    "tensor": "a Transformer's divided matrices",
    "channels": "convolutions divided by channels",
    "rows": "convolutions divided by rows of images",
}


def tables(results: Results) -> list[Table]:
    return [side_by_side(results), traffic(results)]


def side_by_side(results: Results) -> Table:
    frame, work = recorded(results, plan.WORK), ["where", "group"]  # one model at one place
    alone = select(frame, method="single", recompute="never").drop_duplicates(work)
    frame = frame.join(alone.set_index(work)["run"].rename("alone"), on=work)
    pairs = zip(frame["run"], frame["alone"].replace({nan: None}), strict=True)
    frame = with_interval(frame, OVER_ONE, [ratio_of(results, *pair) for pair in pairs])
    table = frame[["where"]].assign(model=frame["model"].map(style.model_name))
    table["method"] = frame["method"] + frame["recompute"].map(RECOMPUTED).fillna("")
    table[OVER_ONE] = or_status(frame, OVER_ONE)
    table = table.join(frame.filter(like=f"{OVER_ONE}: "))
    table[PEAK], table[SENT] = 1024 * frame["peak_gib_max"], frame[SENT]
    table["idle/total"] = frame["idle_over_total"]
    late = [max(first(run, "staleness") or [0]) for run in frame["run"]]
    table["updates late"] = pd.Series(late, frame.index, object).where(frame["done"])
    return framed(NAME, table, ABOUT, marks=MARKS)


def traffic(results: Results) -> Table:
    """What the device sends that sends most, counted on K."""
    table = at_paper_size(results)
    table = table[["where", "model", "method", SENT, OVER_GPIPE, BUT_GRADIENTS]]
    table = table.rename(columns={SENT: COUNTED_ON_K})
    table["model"] = table["model"].map(style.model_name)
    table[COUNTED_ON_K] /= 2**10
    return framed("traffic", table, ABOUT, K=K)


def claims(results: Results) -> Iterator[Claim]:
    """Section 6: divided layers send more than the stages of a pipeline."""
    sent = at_paper_size(results).dropna(subset=OVER_GPIPE)
    for model, methods in plan.DIVIDED.items():
        for method in methods:
            lines = select(sent, model=model, method=method)
            ours, least = ([*lines[name]] for name in (OVER_GPIPE, BUT_GRADIENTS))
            why = ""
            if ours != least:
                undivided = first(lines["run"].iloc[0], "undivided")
                why = f"{percent(undivided)} of the products are not divided"
            yield Claim(
                "Section 6, split operators",
                f"bytes sent on {K} devices over a pipeline's: {WORDS[method]}",
                [number(value) for value in (*ours, *least)],
                "counted",
                least=1,
                unit=TIMES,
                why=why,
                others="without the sums of gradients",
            )


def recorded(results: Results, groups: str | tuple[str, ...]) -> Frame:
    """The runs of these groups, with the MiB that the process sends which sends most."""
    frame = runs_frame(results, NAME, group=groups)
    return frame.assign(**{SENT: frame["run"].map(most_sent)})


def most_sent(run: Run, leaving_out: str = "") -> float:
    """MiB in a step, but for one kind of what is sent."""
    processes = first(run, "sent_bytes") or []
    sizes = [sum(n for kind, n in of.items() if kind != leaving_out) for of in processes]
    return max(sizes, default=nan) / MIB


def first(run: Run, field: str) -> Any:
    """Of a run's first round; what never differs is not recorded again."""
    return run.rounds[0].values.get(field) if run.rounds else None


def at_paper_size(results: Results) -> Frame:
    """What is sent there, over what GPipe sends."""
    frame, work = recorded(results, plan.TRAFFIC), ["where", "model"]
    piped = select(frame, method="gpipe").drop_duplicates(work).set_index(work)[SENT]
    frame = frame.join(piped.rename("piped"), on=work)
    frame[OVER_GPIPE] = frame[SENT] / frame["piped"]
    whole = frame["method"].isin(OF_WHOLE_MODELS)
    others = frame["run"].map(lambda run: most_sent(run, leaving_out="all-reduce"))
    frame[BUT_GRADIENTS] = frame[SENT].mask(whole, others) / frame["piped"]
    return frame
