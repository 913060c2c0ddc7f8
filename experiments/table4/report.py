"""Table 4 (arXiv:1811.06965v5): fine-tuned accuracy beside training from scratch, and the paper's.

None of the laptop's tasks is a data set of the paper, so its numbers stand in a table of their own.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import pandas as pd

from experiments.table4.runs import ABOUT, DIGITS, LEAST_HELPED, NAME, TRANSFER
from repro.claims.all_claims import cell_id, verdict_on
from repro.claims.claim import Evidence
from repro.harness.frame import Frame, runs_frame, select
from repro.harness.results import Results
from repro.harness.spec import RunSpec
from repro.harness.statistics import mean_interval
from repro.paper.numbers import table4
from repro.report.compare import beside_paper
from repro.report.declared import Shown
from repro.report.framed import HIGH, LOW, Estimate, estimated, framed
from repro.report.table import EMPTY, Cell, Table

PRETRAINING = "ImageNet-2012"  # of the paper
PRETRAINED_ON = "digits 0 to 4 (pretraining)"
ALL_TASKS = "all four tasks"
TRANSFER_CLAIM = "table4/transfer"
HELPS, WORSE, NOT_SHOWN = "helps", "worse", "not shown"
HEADINGS = {
    "fine-tuned": "fine-tuned (%)",
    "from scratch": "from scratch (%)",
    "few updates": "from scratch, few updates (%)",
    "difference": "difference (points)",
}
WAYS = [*HEADINGS][:3]
SHOWN = Shown(NAME)


def tables(results: Results) -> list[Table]:
    made = [on_digits(results)]
    return [*made, of_paper(results)] if beside_paper(results, NAME) else made


def answer(tables: Mapping[str, Table]) -> str:
    differences = tables[NAME].numbers("difference (points)")
    return (
        f"Fine-tuning changes accuracy by {differences[0]} to {differences[-1]} points beside "
        "training from scratch, on tasks of digits."
    )


def on_digits(results: Results) -> Table:
    lines = []
    for where, tasks in of_places(results):
        together = decisive(tasks)
        verdict = verdict_on(TRANSFER_CLAIM, together) if together else ""
        every_task = pd.DataFrame([{"task": ALL_TASKS, "seeds": 0, "verdict": verdict}])
        lines.append(pd.concat([tasks, every_task]).assign(where=where))
    frame = pd.concat(lines).drop(columns="runs") if lines else pd.DataFrame()
    return framed(
        results,
        NAME,
        frame,
        ABOUT,
        forms={
            "seeds": lambda seeds: str(seeds or EMPTY),
            **dict.fromkeys(WAYS, lambda share: f"{100 * share:.1f}"),
            "difference": lambda share: f"{100 * share:+.1f}",
        },
        headings=HEADINGS,
        hidden=["chance"],
    )


def of_places(results: Results) -> Iterator[tuple[str, Frame]]:
    frame = runs_frame(results, NAME, group="digits", done=True)
    frame["task"] = [_task(spec) for spec in frame["spec"]]
    for where, runs in frame.groupby("where", sort=False):
        yield str(where), tasks_of(runs)


def _task(spec: RunSpec) -> str:
    assert spec.training is not None
    given = spec.training.data_args
    return next(name for name, task in DIGITS.items() if task.data_args == given)


def tasks_of(runs: Frame) -> Frame:
    """A line for each task of one place: accuracies, paired by seed, and what they show."""
    tuned = pd.Series([spec.training.pretraining is not None for spec in runs["spec"]], runs.index)
    runs = runs.assign(way="from scratch")
    runs.loc[runs["steps"].isin(runs.loc[tuned, "steps"]), "way"] = "few updates"
    runs.loc[tuned, "way"] = "fine-tuned"
    by_seed = runs.pivot(index=["task", "seed"], columns="way", values="metrics.accuracy")
    by_seed = by_seed.reindex(columns=WAYS).dropna(subset=["fine-tuned", "from scratch"])
    by_seed["difference"] = by_seed["fine-tuned"] - by_seed["from scratch"]
    # Each seed has one pretraining, with which all its fine-tunings begin.
    pretrained = runs.reindex(columns=["seed", "metrics.pretraining accuracy"])
    pretrained = pretrained.set_axis(["seed", "from scratch"], axis=1).dropna()
    lines = [_line(PRETRAINED_ON, 1 / 5, pretrained.drop_duplicates("seed"), runs)]
    for name, task in DIGITS.items():
        of_task = by_seed[by_seed.index.get_level_values("task") == name]
        lines.append(_line(name, task.chance, of_task, select(runs, task=name)))
    return pd.DataFrame(lines)


def _line(task: str, chance: float, seeds: Frame, runs: Frame) -> dict[str, Any]:
    values = {name: list(seeds[name].dropna()) if name in seeds else [] for name in HEADINGS}
    line: dict[str, Any] = {"task": task, "seeds": len(seeds), "chance": chance}
    for name, of_seeds in values.items():
        line |= estimated(name, mean_interval(of_seeds))
    shown = WORSE if line["difference: high"] < 0 else NOT_SHOWN
    shown = HELPS if line["difference: low"] > 0 else shown
    return line | {"verdict": shown if values["difference"] else "", "runs": tuple(runs["id"])}


def decisive(tasks: Frame) -> Evidence | None:
    """The task that decides: one that is worse, else the last of those that have to be helped."""
    ordered = tasks[tasks["verdict"] != ""].sort_values("difference: low", ascending=False)
    worse, helped = select(ordered, verdict=WORSE), select(ordered, verdict=HELPS)
    if not len(ordered):
        return None
    if len(worse):
        line = worse.iloc[-1]
    elif len(helped) >= LEAST_HELPED:
        line = helped.iloc[-1]
    else:
        line = ordered[ordered["verdict"] != HELPS].iloc[0]
    value, low, high = (100 * line[f"difference{end}"] for end in ("", LOW, HIGH))
    return Evidence(value, "measured", line["runs"], low, high)


def of_paper(results: Results) -> Table:
    at_size = runs_frame(results, NAME, done=True, scale="paper")
    lines = []
    for row in table4():
        previous = f"{row.previous_best:.1f}{' *' if row.starred else ''}"
        line: dict[str, Any] = {
            "data set": row.dataset,
            "training images": row.train,
            "test images": row.test,
            "classes": row.classes,
            "quoted GPipe": row.accuracy,
            "quoted previous best": Cell(row.previous_best, previous),
        }
        if len(at_size):
            line |= estimated("measured ours (%)", on_paper_data(at_size, row.dataset))
        lines.append(line)
    forms = {"quoted GPipe": ".1f"}
    return framed(results, "table4_paper", pd.DataFrame(lines), ABOUT, forms=forms)


def on_paper_data(at_size: Frame, dataset: str) -> Estimate:
    if dataset == PRETRAINING:
        # One pretraining serves all data sets and seeds.
        shares = at_size["metrics.pretraining accuracy"].head(1)
    else:
        shares = select(at_size, group=TRANSFER[dataset])["metrics.accuracy"]
    return mean_interval(list(100 * shares))


def evidence(results: Results) -> Iterator[tuple[str, Evidence]]:
    at_size = runs_frame(results, NAME, done=True, scale="paper")
    for row in table4() if len(at_size) else ():
        mean, low, high = on_paper_data(at_size, row.dataset)
        runs = tuple(at_size["id"])
        ours = Evidence(mean, "measured", runs, low, high, papers_size=True)
        yield cell_id(NAME, row.dataset), ours
    for _, tasks in of_places(results):
        if together := decisive(tasks):
            yield TRANSFER_CLAIM, together
