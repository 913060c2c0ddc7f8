"""Reliability (arXiv:1811.06965v5, section 7): distances of trainings with other K, D and M."""

import math
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

import pandas as pd

from repro.experiments.consistency.runs import (
    ABOUT,
    BASE_M,
    LIMIT,
    MODELS,
    NAME,
    REPEATED_AT,
    ROUNDING,
    TO_THE_END,
)
from repro.gpipe.core.verdict import verdict, worst
from repro.harness.frame import Frame, runs_frame, select
from repro.harness.results import Results
from repro.harness.schema import LearnRound
from repro.harness.spec import ON_CPU
from repro.harness.statistics import mean_interval
from repro.report.claim import Claim, number
from repro.report.framed import estimated, framed
from repro.report.style import model_name
from repro.report.table import Cell, Table

NUDGED = f"learning rate x (1 + {ROUNDING:g})"
NORMS = {"amoebanet-b": "batch norm", "translation": "layer norm"}


def tables(results: Results) -> list[Table]:
    """A line for each model and change, with all K, places and seeds together."""
    lines = []
    every = pairs(results)
    changes = every["change"].mask(every["change"].str.startswith("K="), "K")
    for (model, change), runs in every.groupby(["model", changes], sort=False):
        line: dict[str, Any] = {"model": f"{model_name(model)}, {NORMS[model]}"}
        line["change"] = _places(runs) if change == "K" else change
        same = int(runs["identical"].sum())
        line["identical"] = Cell(same, f"{same} of {len(runs)}")
        line |= estimated("relative distance", mean_interval(list(runs["distance"])))
        lines.append(line | {"agreement": worst(runs["agreement"])})
    return [framed(NAME, pd.DataFrame(lines), ABOUT, base_M=BASE_M)]


def claims(results: Results) -> Iterator[Claim]:
    """How many runs with K > 1 have all losses, weights and buffers of K=1, bit for bit."""
    every, planned = pairs(results), runs_frame(results, NAME)
    for model in MODELS:
        of_model = select(every, model=model)
        of_stages = of_model[of_model["K"] > 1]
        same, count = int(of_stages["identical"].sum()), len(of_stages)
        updates = " or ".join(f"{steps:,}" for steps in sorted(set(of_stages["steps"])))
        yield Claim(
            "Section 7, every K",
            f"{model_name(model)}: runs that are bit-identical to K=1",
            [number(same)] if count else [],
            "measured",
            paper=count,
            says="the same for every K",
            unit=f"of {count}",
            doubt=_doubt(of_model, select(planned, model=model)),
            beside=f"{updates} updates of a small model" if count else "",
            why=_places(of_stages) if count else "",
        )


def _places(runs: Frame) -> str:
    """`K = 2, 4, 8 on a GPU, K = 2, 4 on CPU cores`."""
    kinds = ["CPU cores" if scale in ON_CPU else "a GPU" for scale in runs["scale"]]
    places = []
    for kind, Ks in runs.groupby(kinds)["K"]:
        places.append(f"K = {', '.join(map(str, sorted(set(Ks))))} on {kind}")
    return ", ".join(places)


def _doubt(pairs_of_model: Frame, planned: Frame) -> str:
    """Why equal bits are no evidence: a control has them too, or a K has no result."""
    nudged = select(pairs_of_model, change=NUDGED)
    if (nudged["agreement"] == "same bits").any():
        return "a control fails: another learning rate changes no bit"
    left = planned[(planned["K"] > 1) & ~planned["done"]]
    left = left[~left["status"].str.startswith("skipped")]
    missing = ", ".join(f"K={K}" for K in sorted(set(left["K"])))
    return f"no result for {missing}" if missing else ""


@lru_cache(maxsize=1)
def pairs(results: Results) -> Frame:
    """A line for each training with its distance from the usual one of the same seed.

    `identical` says that all losses, weights and buffers are the same, bit for bit; `distance` is
    the norm of the differences of weights over that of the weights; `agreement` is the word for
    both that `Pipeline.compare` has.
    """
    frame = runs_frame(results, NAME, done=True)
    frame["change"] = [_change(line) for line in frame.to_dict("records")]
    alike = ["where", "model", "group", "seed"]
    usual = select(frame, change="")[[*alike, "record"]]
    frame = frame[frame["change"] != ""].merge(usual, on=alike, suffixes=("", " of base"))
    frame = frame.sort_values("model", kind="stable")
    records = zip(frame["record of base"], frame["record"], strict=True)
    columns = ["distance", "agreement", "identical"]
    apart = pd.DataFrame([_apart(*both) for both in records], frame.index, columns)
    return pd.concat([frame, apart], axis=1)


def _change(run: Mapping[str, Any]) -> str:
    """What tells a training from the usual one with its seed; empty of the usual one."""
    if run["group"] == "stages":
        if run["scale"] in REPEATED_AT and run["transport"] == "auto":
            return "the same once more"
        if run["training"].recipe["lr"] != MODELS[run["model"]]["training"].recipe["lr"]:
            return NUDGED
    if run["D"] > 1:
        return f"D={run['D']} with M={run['M']}"
    if run["K"] > 1:
        return f"K={run['K']}" + ", a whole training" * (run["group"] == TO_THE_END)
    return f"M={run['M']}, no dropout" if run["M"] != BASE_M else ""


def _apart(base: LearnRound, other: LearnRound) -> dict[str, Any]:
    same_bits = base.loss == other.loss and base.digest == other.digest
    distance = math.dist(base.weights, other.weights) / math.hypot(*base.weights)
    agreement = verdict(same_bits=same_bits, distance=distance, limit=LIMIT)
    return {"distance": distance, "agreement": agreement, "identical": same_bits}
