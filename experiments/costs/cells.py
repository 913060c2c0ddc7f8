"""Predicted steps beside published and measured ones, as frames."""

from collections.abc import Iterator

import pandas as pd

from experiments.costs.runs import GPU, HERE, NAME, PROFILES, SPEED, simulated_group
from repro.harness.frame import runs_frame, select
from repro.harness.results import Results, Run
from repro.harness.schema import TrainRound
from repro.harness.spec import TINY
from repro.paper import theory

SOURCES = {
    "a": "torchgpipe, Tesla P40",
    "unet": "torchgpipe's U-Net, Tesla P40",
    "b": "Lingvo, V100",
    "c": "measured on CPU cores",
    "d": "measured on GPUs",
    "rehearsal": "rehearsal on a CPU of what GPUs measure",
}
_SOURCE_OF = {
    "torchgpipe-amoebanet-d": "a",
    "torchgpipe-resnet101": "a",
    "torchgpipe-unet": "unet",
    "lingvo-v100": "b",
}
_ON_GPUS = ("node", "paper")  # scales that measure on GPUs
_COLUMNS = ["source", "series", "run", "is_base", "round", "predicted", "real"]


def cells(results: Results) -> pd.DataFrame:
    """A line for each step that is published or measured, and predicted.

    Columns besides those of the run: `source`, of `SOURCES`; `is_base`, whether ratios of the same
    series are over it; `predicted` and `real` throughput, medians over rounds; `absolute`, the one
    over the other minus 1, NaN for Lingvo, which published throughput over that of one GPU, in no
    unit; `ratio`, the same of the ratio to the base in common rounds, NaN of the base; and
    `textbook`, the same of a null model, K M / (M + K - 1), which knows no layers and no device.
    """
    frame = runs_frame(results, NAME, done=True)
    steps = [*_published(frame), *_here(frame), *_by_profile(frame)]
    pairs = pd.DataFrame(steps, columns=_COLUMNS)
    pairs["absolute"] = pairs["predicted"] / pairs["real"]
    formula = [*map(_textbook, pairs["source"], pairs["run"])]
    pairs["textbook"] = pd.Series(formula, dtype=float) / pairs["real"]
    of_round, off = ["series", "round"], ["absolute", "textbook"]
    base = pairs.loc[pairs["is_base"].astype(bool), [*of_round, *off]]
    pairs = pairs.merge(base, how="left", on=of_round, suffixes=("", " of base"))
    pairs["ratio"] = pairs["absolute"] / pairs["absolute of base"]
    pairs["textbook"] /= pairs["textbook of base"]
    pairs["id"] = [(run.place, run.id) for run in pairs["run"]]
    of_cell = pairs.groupby(["source", "series", "id"], sort=False)
    table = of_cell.agg({"run": "first", "is_base": "first", "predicted": "median"})
    medians = of_cell[["real", "absolute", "ratio", "textbook"]].median()
    table = table.join(medians).reset_index("source")
    table["absolute"] = (table["absolute"] - 1).where(table["source"] != "b")
    for name in ("ratio", "textbook"):
        table[name] = (table[name] - 1).where(~table["is_base"].astype(bool))
    for name in ("model", "K", "M", "N", "remat", "group", "scale", "fidelity"):
        table[name] = [getattr(run, name) for run in table["run"]]
    return table.reset_index(drop=True)


def _textbook(source: str, run: Run) -> float:
    """The formula for throughput; in Lingvo's comment a model grows with K."""
    speedup = theory.speedup_over_k1(run.K, run.M, "plain")
    return speedup / run.K if source == "b" else speedup


def _published(frame: pd.DataFrame) -> Iterator[tuple[object, ...]]:
    """The simulated runs with their published throughput; the first row is the base."""
    for group, published in SPEED.items():
        runs = list(select(frame, group=group)["run"])
        for index, (spec, real) in enumerate(published()):
            run = next((run for run in runs if run.spec == spec), None)
            if run is not None:
                source, predicted = _SOURCE_OF[group], run.throughput
                yield source, group, run, index == 0, "published", predicted, real


def _here(frame: pd.DataFrame) -> Iterator[tuple[object, ...]]:
    """Steps by the rates of their own round; that of K=1, M=1 is the base."""
    here = frame.loc[frame["group"].str.endswith(HERE)]
    for (where, group), runs in here.groupby(["where", "group"], sort=False):
        source = "d" if runs["scale"].iloc[0] in _ON_GPUS else "c"
        for run in select(runs, task="train")["run"]:
            for round_ in run.rounds:
                assert isinstance(round_.record, TrainRound)
                step_s = round_.record.predicted.get("together")
                if step_s is not None:
                    is_base = (run.K, run.M) == (1, 1)
                    steps = round_.name, run.N / step_s, round_.throughput
                    yield source, (where, group), run, is_base, *steps


def _by_profile(frame: pd.DataFrame) -> Iterator[tuple[object, ...]]:
    """Steps of K=1, M and rule by M and rule; the first one is the base."""
    of_gpus = frame.loc[frame["group"].str.endswith(GPU)]
    for (where, _), measured in of_gpus.groupby(["where", "group"], sort=False):
        first = measured.iloc[0]
        rehearsal = first["scale"] in TINY  # on a CPU, by any profile: its errors mean nothing
        for profile in PROFILES[:1] if rehearsal else profiles_of(first["device"]):
            group = simulated_group(first["model"], profile)
            simulated = select(frame, where=where, group=group, K=1)
            steps = select(measured, task="train").merge(
                simulated, on=["M", "remat"], suffixes=("", " simulated")
            )
            for index, line in enumerate(steps.to_dict("records")):
                run, predicted = line["run"], line["throughput simulated"]
                of_run = "rehearsal" if rehearsal else "d", (run.place, run.group, profile), run
                for round_ in run.rounds:
                    yield *of_run, not index, round_.name, predicted, round_.throughput


def profiles_of(device: str) -> list[str]:
    """The profile of a GPU by its name: `NVIDIA H100 80GB HBM3`, but not `NVIDIA H100 PCIe`.

    Both profiles are of SXM modules; other modules of these chips have other clocks and memories.
    """
    words = device.upper().split()
    if {"PCIE", "NVL"} & set(words):
        return []
    return [name for name in PROFILES if name.upper() in words]
