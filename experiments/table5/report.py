"""Table 5 (arXiv:1811.06965v5): BLEU and NLL for three batch sizes, and what a larger one gains."""

from collections.abc import Iterator
from typing import Any

import pandas as pd

from experiments.table5.runs import ABOUT, NAME
from repro.claims.all_claims import cell_id, verdict_on
from repro.claims.claim import Evidence
from repro.harness.frame import Frame, runs_frame
from repro.harness.results import Results
from repro.harness.statistics import mean_interval
from repro.paper.numbers import BatchSize, table5
from repro.report.declared import Shown
from repro.report.framed import estimated, framed, with_interval
from repro.report.table import Table

BETTER = {"BLEU": 1, "NLL": -1}  # metric -> the sign of a difference that is better
SHOWN = Shown(f"{NAME}_gains")


def trainings(results: Results) -> Frame:
    frame = runs_frame(results, NAME, done=True)
    frame = frame.rename(columns={f"metrics.{name.lower()}": name for name in BETTER})
    return frame.sort_values(["where", "N", "seed"])


def tables(results: Results) -> list[Table]:
    frame = trainings(results)
    return [qualities(results, frame), gains(results, frame)] if len(frame) else []


def qualities(results: Results, frame: Frame) -> Table:
    batches = frame.groupby(["where", "N"])
    table = batches.agg(updates=("steps", "first"), seeds=("seed", "size"))
    for name in BETTER:
        table = with_interval(table, f"measured {name}", batches[name].agg(list).map(mean_interval))
    table = table.reset_index()
    printed = dict(zip(sorted(frame["N"].unique()), map(_printed, _sizes()), strict=False))
    table["quoted tokens, BLEU, NLL"] = table["N"].map(printed)
    return framed(results, NAME, table, ABOUT)


def _sizes() -> list[BatchSize]:
    return sorted(table5(), key=lambda size: size.batch_tokens)


def _printed(size: BatchSize) -> str:
    tokens = size.batch_tokens
    rounded = f"{tokens / 1e6:.0f}M" if tokens >= 1e6 else f"{tokens / 1e3:.0f}K"
    return f"{rounded}: {size.bleu:.2f}, {size.nll:.2f}"


def differences(frame: Frame, metric: str) -> list[float]:
    """The metric at the largest N minus that at the smallest, for each seed of one place."""
    by_seed = frame.pivot(index="seed", columns="N", values=metric)
    return list((by_seed.iloc[:, -1] - by_seed.iloc[:, 0]).dropna())


def gains(results: Results, frame: Frame) -> Table:
    first, *_, last = _sizes()
    lines = []
    for where, runs in frame.groupby("where"):
        ours = evidence_of(runs)
        for name in BETTER:
            found = differences(runs, name)
            line: dict[str, Any] = {"where": where, "metric": name}
            line |= {"N": f"{runs['N'].max()} minus {runs['N'].min()}", "seeds": len(found)}
            line |= estimated("measured difference", mean_interval(found))
            line["quoted difference"] = getattr(last, name.lower()) - getattr(first, name.lower())
            line["verdict"] = verdict_on(cell_id(NAME, name), ours[cell_id(NAME, name)])
            lines.append(line)
    return framed(results, f"{NAME}_gains", pd.DataFrame(lines), ABOUT)


def evidence(results: Results) -> Iterator[tuple[str, Evidence]]:
    """Claim id -> what the largest batch gains over the smallest, positive where it is better."""
    for _, runs in trainings(results).groupby("where", sort=False):
        yield from evidence_of(runs).items()


def evidence_of(runs: Frame) -> dict[str, Evidence]:
    ends = runs[runs["N"].isin([runs["N"].min(), runs["N"].max()])]
    found = {}
    for name, sign in BETTER.items():
        better = [sign * difference for difference in differences(runs, name)]
        mean, low, high = mean_interval(better)
        found[cell_id(NAME, name)] = Evidence(mean, "measured", tuple(ends["id"]), low, high)
    return found
