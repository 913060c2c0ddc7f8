"""Table 4 (arXiv:1811.06965v5): fine-tuned accuracy beside training from scratch, and the paper's.

None of the tasks on a CPU is a data set of the paper, so its numbers stand in a table of their own.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import pandas as pd

from experiments import compared
from experiments.compared import Compared, Comparison, Control, over
from experiments.table4 import runs as plan
from experiments.table4.runs import ABOUT, NAME, SCRATCH, TASKS, TUNED, arm_of
from repro.claims.all_claims import cell_id
from repro.claims.claim import Evidence
from repro.harness.frame import Frame, runs_frame, select
from repro.harness.results import Results
from repro.harness.statistics import mean_interval
from repro.paper.numbers import table4
from repro.report.compare import beside_paper
from repro.report.declared import Shown
from repro.report.figures import Picture
from repro.report.framed import Estimate, estimated, framed
from repro.report.table import Cell, Table

PRETRAINING = "ImageNet-2012"  # of the paper
SHOWN = Shown(NAME)
_SMALL, _LARGE = plan.WIDTHS


def tables(results: Results) -> list[Table]:
    frame = compared.arms_frame(results, NAME)
    made = [
        compared.comparisons_table(results, NAME, comparisons_of(results), ABOUT, "points"),
        compared.arms_table(results, f"{NAME}_arms", frame, ABOUT, updates="steps"),
    ]
    return [*made, of_paper(results)] if beside_paper(results, NAME) else made


def comparisons_of(results: Results) -> dict[str, list[Compared]]:
    return compared.of_places(results, NAME, plan.arms, comparisons, "accuracy")


def comparisons(_runs: Frame) -> list[Comparison]:
    """Fine-tuning against from scratch, in the mean over tasks and for each; and the controls."""
    fine, scratch = (TUNED, _LARGE), (SCRATCH, _LARGE)
    return [
        _of_tasks(fine, scratch, f"{NAME}/transfer"),
        *(
            over(arm_of(task, *fine), arm_of(task, *scratch), text=f"the same, {task}")
            for task in TASKS
        ),
        _of_tasks(fine, (TUNED, _SMALL), f"{NAME}/source"),
        _of_tasks(scratch, (SCRATCH, _SMALL)),
        _of_tasks((TUNED, _SMALL), (plan.LONG, _SMALL), tasks=[plan.FEWEST]),
        _of_tasks((plan.NOISE, _SMALL), (SCRATCH, _SMALL), control="no gain"),
        over(arm_of(plan.FEWEST, TUNED), arm_of(plan.FEWEST, SCRATCH), control="something"),
    ]


def _of_tasks(
    better: tuple[str, int],
    worse: tuple[str, int],
    claim: str = "",
    *,
    control: Control = "",
    tasks: Sequence[str] = tuple(TASKS),
) -> Comparison:
    """Two ways, each with a width, in the mean over tasks."""
    firsts, seconds = ([arm_of(task, *way) for task in tasks] for way in (better, worse))

    def difference(quality: Frame) -> float:
        return float(quality.loc[firsts].to_numpy().mean() - quality.loc[seconds].to_numpy().mean())

    text = " over ".join(f"{way}, D={D}" for way, D in (better, worse))
    text += f", {len(tasks)} of {len(TASKS)} tasks" * (len(tasks) < len(TASKS))
    return Comparison(text, [*firsts, *seconds], difference, claim, control)


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
        shares = select(at_size, group=plan.TRANSFER[dataset])["metrics.accuracy"]
    return mean_interval(list(100 * shares))


def evidence(results: Results) -> Iterator[tuple[str, Evidence]]:
    at_size = runs_frame(results, NAME, done=True, scale="paper")
    for row in table4() if len(at_size) else ():
        mean, low, high = on_paper_data(at_size, row.dataset)
        runs = tuple(at_size["id"])
        ours = Evidence(mean, "measured", runs, low, high, papers_size=True)
        yield cell_id(NAME, row.dataset), ours
    yield from compared.claims_of(comparisons_of(results))


def figures(results: Results) -> Iterator[Picture]:
    ways = (TUNED, SCRATCH, plan.LONG)
    panels = {task: [arm_of(task, way) for way in ways] for task in (plan.FEWEST, plan.MOST)}
    yield "curves", compared.curves(compared.arms_frame(results, NAME), panels), {}
