"""The breakdown of a step (NeurIPS version of arXiv:1811.06965, Table 4), part by part.

The pie bears neither model nor K nor M. The paper's text says two partitions; M=16 is inferred from
the pie's own bubble, so that row is fitted and proves nothing.
"""

from collections.abc import Iterator

import pandas as pd

from repro.experiments.breakdown.runs import ABOUT, NAME, OPEN_MS, K, M
from repro.harness.frame import Frame, runs_frame, select
from repro.harness.results import Results
from repro.harness.sizes import MODELLED_AMOEBANET
from repro.harness.text import percent, printed
from repro.paper import theory
from repro.paper.numbers import breakdown
from repro.report.claim import Claim, number
from repro.report.compare import fits
from repro.report.framed import framed, or_status, with_parts
from repro.report.table import Table

LONG_NAMES = {"setup": "set-up", "imbalance": "load imbalance", "update": "weight update"}
PIE = {slice_.part: slice_.percent for slice_ in breakdown()}
OFF = 2.0  # points of the step: the project's tolerance for the pie since its first version
_ORDER = ["computation", "recompute", "imbalance", "bubble", "setup", "update", "transfer"]
# The pipeline of equal stages that recomputes early: its step is 4M + 3(K-1) forwards long.
_STEP = theory.step_time(K, M, "early")
ARITHMETIC = {
    "computation": 3 * M / _STEP,
    "recompute": M / _STEP,
    "bubble": theory.bubble(K, M, "early"),
}
FITTED = {
    "bubble": "M=16 was inferred from this slice",
    "setup": "the profile's 40 ms were taken from this slice",
}


def simulated(results: Results) -> Frame:
    """A line for each simulated run with a column for each part's share of K x step."""
    return with_parts(runs_frame(results, NAME, fidelity="simulated"))


def tables(results: Results) -> list[Table]:
    """A line for each part: the paper's share, that of equal stages, and the simulated one."""
    table = pd.DataFrame({"part": [LONG_NAMES.get(part, part) for part in _ORDER]}, index=_ORDER)
    table["paper"] = pd.Series(PIE) / 100
    table["arithmetic"] = pd.Series(ARITHMETIC)
    runs = select(simulated(results), M=M)
    parts = pd.DataFrame({part: or_status(runs, part) for part in _ORDER})
    for where, line in parts.set_index(runs["where"]).iterrows():
        table["simulated" if len(runs) == 1 else f"simulated at {where}"] = line
    forms = dict.fromkeys(table.columns, percent)
    forms["paper"] = lambda share: f"{printed(100 * share)} %"
    found = {part: claim.verdict for part, claim in _claims(results).items()}
    table["verdict"] = pd.Series(found, dtype=object)
    return [framed(NAME, table, ABOUT, forms=forms, K=K, M=M, off=OFF)]


def claims(results: Results) -> Iterator[Claim]:
    yield from _claims(results).values()


def _claims(results: Results) -> dict[str, Claim]:
    """Of each part but the update: AmoebaNet-D at the paper's size, with every M."""
    frame = select(simulated(results), done=True)
    frame = frame.loc[[args == MODELLED_AMOEBANET["paper"] for args in frame["model_args"]]]
    # A simulation that is counted not to fit its device shows nothing.
    frame = frame.loc[frame["run"].map(fits).astype(bool)]
    frame = frame.sort_values("M", key=lambda Ms: Ms != M, kind="stable")  # the inferred one first
    if {*frame["M"]} != {*OPEN_MS}:
        frame = frame[:0]
    return {
        part: Claim(
            "Step breakdown",
            f"{LONG_NAMES.get(part, part)}, share of the step",
            [number(100 * share) for share in frame[part]],
            "simulated",
            paper=percent,
            off=OFF,
            unit="%",
            fitted=part in FITTED,
            why=FITTED.get(part, f"with M = {M}, {M // 2} and {2 * M}"),
        )
        for part, percent in PIE.items()
        if part != "update"
    }
