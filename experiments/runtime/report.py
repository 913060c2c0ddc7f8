"""What the runtime costs: our step over what it should take, and over what others take.

Layers of known duration wait, one layer a stage, so the best possible step is known:
(M+K-1)F + M(R+B) + (K-1)B with early recompute (arXiv:1811.06965v5, section 2.3). On a GPU one
stage stands beside a plain loop.
"""

from collections.abc import Iterator
from typing import Any

import pandas as pd

from repro.experiments.runtime.runs import ABOUT, NAME
from repro.harness.frame import ratio_of, runs_frame
from repro.harness.results import Results, Run
from repro.harness.statistics import interval_of_sets
from repro.paper import theory
from repro.report.claim import Estimate
from repro.report.framed import framed, with_interval
from repro.report.style import model_name
from repro.report.table import Table

OVER = "our step over it"


def tables(results: Results) -> list[Table]:
    """A line for each step of ours and what it is compared with."""
    frame = runs_frame(results, NAME, library="repro", done=True)
    lines = [
        (*line, beside, over)
        for line in frame[["where", "run", "K", "M", "step_s"]].itertuples(index=False, name=None)
        for beside, over in _beside(results, line[1])
    ]
    table = pd.DataFrame(lines, columns=["where", "step", "K", "M", "step (ms)", "beside", "over"])
    table = with_interval(table, OVER, table.pop("over").tolist())
    table["step"] = [_name(run) for run in table["step"]]
    table["step (ms)"] *= 1e3
    return [framed(NAME, table, ABOUT)]


def _beside(results: Results, run: Run) -> Iterator[tuple[str, Estimate]]:
    """What a step is compared with, and its ratio to that."""
    if run.fidelity == "emulated":
        F = run.spec.model_args["forward_s"]
        best = theory.step_time(run.K, run.M, "early", F, F, 2 * F)
        sets = [[seconds / best for seconds in round_.blocks] for round_ in run.rounds]
        yield "arithmetic", interval_of_sets(sets)
    others: dict[str, dict[str, Any]] = {"plain loop": {"library": "loop"}}
    if run.fidelity == "measured" and run.K > 1:
        others["K=1 on the same GPU"] = {"K": 1}
    elif run.recompute == "always":
        others["ours, not recomputing"] = {"recompute": "never"}
    for name, changed in others.items():
        if base := results.baseline(run, **changed):
            ratio, low, high = ratio_of(results, run, base)  # of throughputs
            yield name, (1 / ratio, 1 / high, 1 / low)


def _name(run: Run) -> str:
    """The model, whether it recomputes, and a number format that is not float32."""
    of, given = run.model, run.spec.model_args
    if of == "timed":
        return f"{1e3 * given['forward_s']:g} ms forward, emulated"
    is_half = of.endswith(":bfloat16")
    if is_half:
        of, given = given["of"], given["given"]
    name = "GPT" if "V" in given else model_name(of)
    if "variant" in given:
        name = "ConvNeXt-T"
    format_ = ", bfloat16" if is_half else ""
    return f"{name}{format_}{', recomputes' if run.recompute == 'always' else ''}"
