"""Table 5 (arXiv:1811.06965v5): what a larger batch gains, under three protocols."""

from collections.abc import Iterator
from functools import lru_cache
from itertools import pairwise
from math import isnan
from typing import Any

import pandas as pd

from repro.experiments import compared
from repro.experiments.compared import Gain, gain
from repro.experiments.table5.runs import ABOUT, NAME, NS, PLAN, UPDATES, arm_of
from repro.harness.frame import Frame
from repro.harness.results import Results
from repro.harness.text import printed, ranged
from repro.paper.numbers import table5
from repro.report.claim import Claim
from repro.report.figures import Picture
from repro.report.framed import estimated, framed
from repro.report.table import Cell, Table

EXHIBIT = "Table 5, batch size"


def tables(results: Results) -> list[Table]:
    """The paper's line, then one for each protocol, with each step to a larger batch."""
    runs = compared.trained(results, NAME)
    Ns = _batches(runs)
    steps = {f"N={more} minus N={less} (BLEU)": (less, more) for less, more in pairwise(Ns)}
    bleu = [size.bleu for size in table5()]
    line: dict[str, Any] = {"protocol": "the paper, 260K to 4M tokens"}
    line |= {
        f"N={N} (BLEU)": Cell(value, printed(value)) for N, value in zip(Ns, bleu, strict=True)
    }
    line |= {name: b - a for name, (a, b) in zip(steps, pairwise(bleu), strict=True)}
    lines = [line]
    for protocol, judged in zip(PLAN, _of_protocols(results), strict=True):
        line = {"protocol": protocol}
        for N in Ns:
            line |= estimated(f"N={N} (BLEU)", compared.mean(runs, arm_of(protocol, N), "bleu"))
        for name, (less, more) in steps.items():
            line |= estimated(name, _gain(results, protocol, less, more).quality)
        lines.append(line | {"verdict": judged.verdict})
    return [framed(NAME, pd.DataFrame(lines), ABOUT)]


def _batches(runs: Frame) -> tuple[int, int, int]:
    return NS[runs["scale"].iloc[0] if len(runs) else "overnight"]


@lru_cache(maxsize=16)
def _gain(results: Results, protocol: str, less: int, more: int) -> Gain:
    return gain(
        compared.trained(results, NAME), "bleu", [arm_of(protocol, more)], [arm_of(protocol, less)]
    )


def _of_protocols(results: Results) -> Iterator[Claim]:
    runs = compared.trained(results, NAME)
    smallest, middle, largest = _batches(runs)
    controls = compared.failing(compared.controls(runs, arm_of(UPDATES, middle)))
    fewest, *_, most = (printed(size.bleu) for size in table5())
    says = f"{fewest} to {most} BLEU"
    for protocol in PLAN:
        found = _gain(results, protocol, smallest, largest)
        step, low, high = _gain(results, protocol, middle, largest).quality
        alone = f"N={largest} minus N={middle} alone: {ranged(step, low, high)}"
        what = f"largest batch minus smallest, {protocol}"
        why = "" if isnan(low) else alone
        yield compared.claim(EXHIBIT, what, found, controls, unit="BLEU", says=says, why=why)


def claims(results: Results) -> Iterator[Claim]:
    yield from _of_protocols(results)
    what = "BLEU of German to English, 4M tokens a batch"
    why = "needs WMT14, a Transformer Big and 4 GPUs"
    at_size = compared.trained(results, NAME, "paper")
    ours = [compared.mean(at_size, arm_of(UPDATES, NS["paper"][-1]), "bleu")]
    yield Claim(EXHIBIT, what, ours, "measured", paper=table5()[-1].bleu, off=0.5, why=why)


def figures(results: Results) -> Iterator[Picture]:
    runs = compared.trained(results, NAME)
    Ns = _batches(runs)[::-1]
    panels = {protocol: {arm_of(protocol, N): f"N={N}" for N in Ns} for protocol in PLAN}
    yield "curves", compared.curves(runs, panels), {}
