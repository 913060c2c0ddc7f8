"""Table 4 (arXiv:1811.06965v5): fine-tuned accuracy beside training from scratch, and the paper's.

None of the tasks on a CPU is a data set of the paper, so its numbers have lines of their own.
"""

from collections.abc import Iterator
from functools import lru_cache
from math import nan
from typing import Any

import pandas as pd

from repro.experiments import compared
from repro.experiments.compared import Gain, claim, gain
from repro.experiments.table4 import runs as plan
from repro.experiments.table4.runs import (
    ABOUT,
    FEWEST,
    MOST,
    NAME,
    NOISE,
    SCRATCH,
    TASKS,
    TUNED,
    arm_of,
)
from repro.harness.frame import runs_frame
from repro.harness.results import Results
from repro.paper.numbers import table4
from repro.report.claim import Claim, number
from repro.report.figures import Picture
from repro.report.framed import estimated, framed
from repro.report.table import Cell, Table

READS = ("figure1",)  # its counted largest model
EXHIBIT, TOP1, PARAMETERS = "Table 4, images", "top-1 accuracy on ImageNet", 557e6
_SMALL, _LARGE = plan.WIDTHS
# Column of the table -> way and width.
COLUMNS = {
    "from scratch (%)": (SCRATCH, _LARGE),
    f"fine-tuned, D={_SMALL} (%)": (TUNED, _SMALL),
    "fine-tuned (%)": (TUNED, _LARGE),
}
# What is compared in the mean over tasks -> the better and the worse way, each with its width.
TRANSFER, SOURCE = "pretraining adds accuracy, D=16", "D=16 over D=8, fine-tuned"
GAINS = {
    TRANSFER: ((TUNED, _LARGE), (SCRATCH, _LARGE)),
    SOURCE: ((TUNED, _LARGE), (TUNED, _SMALL)),
    "D=16 over D=8, from scratch": ((SCRATCH, _LARGE), (SCRATCH, _SMALL)),
}


def tables(results: Results) -> list[Table]:
    """A line for each task, for each mean gain, and for each data set of the paper."""
    runs, at_size = compared.trained(results, NAME), compared.trained(results, NAME, "paper")
    verdicts = {judged.what: judged.verdict for judged in claims(results)}
    lines: list[dict[str, Any]] = []
    for task in TASKS:
        line: dict[str, Any] = {"task or data set": task}
        for column, (way, D) in COLUMNS.items():
            line |= estimated(column, compared.mean(runs, arm_of(task, way, D), "accuracy"))
        lines.append(
            line | estimated("gain (points)", _gain(results, *GAINS[TRANSFER], task).quality)
        )
    for text, ways in GAINS.items():
        line = {"task or data set": f"mean of all: {text}"}
        line |= estimated("gain (points)", _gain(results, *ways).quality)
        lines.append(line | {"paper (%)": nan, "verdict": verdicts.get(text, nan)})
    for row in table4():
        before = f", before {row.previous_best:.1f}{' *' if row.starred else ''}"
        line = {"task or data set": row.dataset}
        tuned = compared.mean(at_size, arm_of(row.dataset, TUNED, plan.PAPER_WIDTH), "accuracy")
        line |= estimated("fine-tuned (%)", tuned)
        lines.append(line | {"paper (%)": Cell(row.accuracy, f"{row.accuracy:.1f}{before}")})
    lines[-len(table4())]["verdict"] = verdicts[TOP1]
    return [framed(NAME, pd.DataFrame(lines), ABOUT)]


@lru_cache(maxsize=32)
def _gain(results: Results, better: tuple[str, int], worse: tuple[str, int], *tasks: str) -> Gain:
    """Points of accuracy, in the mean over these tasks, or over all."""
    tasks = tasks or (*TASKS,)
    arms = [[arm_of(task, *way) for task in tasks] for way in (better, worse)]
    return gain(compared.trained(results, NAME), "accuracy", *arms)


def _of_tasks(results: Results) -> Iterator[Claim]:
    fine, scratch = (TUNED, _SMALL), (SCRATCH, _SMALL)
    controls = compared.failing(
        [
            (NOISE, _gain(results, (NOISE, _SMALL), scratch), "not be better"),
            (f"fine-tuning, {FEWEST}", _gain(results, fine, scratch, FEWEST), "be better"),
        ]
    )
    for text in (TRANSFER, SOURCE):
        yield claim(EXHIBIT, text, _gain(results, *GAINS[text]), controls, unit="points")


def claims(results: Results) -> Iterator[Claim]:
    yield from _of_tasks(results)
    counted = runs_frame(results, "figure1", task="fit", model="amoebanet-b", done=True)
    ours = [number(record.fit.largest.parameters) for record in counted["record"]]
    what = "parameters of AmoebaNet-B (18, 512)"
    yield Claim(EXHIBIT, what, ours, "counted", paper=PARAMETERS, off=1.5e6)
    why = "needs ImageNet and 4 GPUs"
    at_size = compared.trained(results, NAME, "paper")
    top1 = [number(top1) for top1 in at_size.get("metrics.pretraining accuracy", ())[:1]]
    printed = {"paper": table4()[0].accuracy, "off": 0.5, "unit": "%"}
    yield Claim("Table 4, ImageNet", TOP1, top1, "measured", **printed, why=why)


def figures(results: Results) -> Iterator[Picture]:
    panels = {
        task: {arm_of(task, way, _SMALL): way for way in (TUNED, SCRATCH)}
        for task in (FEWEST, MOST)
    }
    yield "curves", compared.curves(compared.trained(results, NAME), panels), {}
