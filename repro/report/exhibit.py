"""What Tables 2 and 3 share, and other exhibits of ratios that a cost model gives.

Their frames have a line for each run. `setting` is what of it the paper does not print; `ratio`,
`low` and `high` are its throughput over a base run's, with the ends of its range or interval.
"""

from collections.abc import Mapping, Sequence
from math import nan
from typing import Any

import pandas as pd

from repro.costs.error_bars import RATIO
from repro.harness.frame import Frame, ratio_of, select
from repro.harness.results import Results, Run
from repro.harness.text import TIMES, ranged
from repro.paper import numbers, theory
from repro.report.claim import MODELLED, Claim, Estimate, number
from repro.report.style import model_name
from repro.report.table import NOT_RUN

CELL = ["model", "K", "M"]
ENDS = ["ratio", "low", "high"]
CLOSE = 0.1  # share of a printed ratio within which a measured one has to lie


def printed(name: str) -> Frame:
    """The cells of Table 2 or 3: the paper's ratio, and the textbook's of K M / (M + K - 1)."""
    cells = getattr(numbers, name)()
    base = next(cell for cell in cells if cell.value == 1)
    unit = theory.speedup_over_k1(base.K, base.M, "plain")
    lines = [
        (c.model, c.K, c.M, float(c.value), theory.speedup_over_k1(c.K, c.M, "plain") / unit)
        for c in cells
    ]
    frame = pd.DataFrame(lines, columns=[*CELL, "paper", "textbook"])
    return frame.sort_values(CELL, ignore_index=True)


def over(results: Results, frame: Frame, alike: Sequence[str], **base: Any) -> Frame:
    """The runs with their `ENDS` over the run that has the fields of `base` and is alike in others.

    A modelled ratio has its range, a measured one its 95 % interval. Runs without a base or a step
    are left out.
    """
    bases = select(frame, **base).drop_duplicates(alike)[[*alike, "run"]]
    bases = bases.rename(columns={"run": "base"})
    frame = frame.merge(bases, on=[*alike])
    pairs = zip(frame["run"], frame["base"], strict=True)
    ends = pd.DataFrame([_over(results, *pair) for pair in pairs], columns=ENDS, dtype=float)
    return frame.drop(columns="base").join(ends).dropna(subset="ratio")


def _over(results: Results, run: Run, base: Run) -> Estimate:
    if run is base and run.done:
        return 1.0, nan, nan
    if run.fidelity in MODELLED:
        # Nine of ten published ratios were predicted within this range.
        ratio = run.throughput / base.throughput
        return ratio, ratio / RATIO, ratio * RATIO
    return ratio_of(results, run, base)


def first_text(frame: Frame) -> str:
    """The first line's ratio: `5.61 (4.75 to 6.62)`."""
    return NOT_RUN if frame.empty else ranged(*frame.iloc[0][ENDS])


def claims_on(
    name: str,
    ours: Frame,
    exhibit: str,
    what: str,
    others: str,
    settings: Mapping[str, Any],
    errors: Mapping[str, str],
) -> dict[Any, Claim]:
    """Model, K and M of each cell of a table that does not print 1 -> its claim, the largest first.

    What was measured counts before what was simulated, and of that every setting. Those in
    `settings` of the model need a result. The texts have {model}, {K} and {M}; `others` says what
    the settings are. `errors` says of a model how far such simulations are off; it stands beside
    the largest cell.
    """
    claims = {}
    cells = printed(name).query("paper != 1").sort_values(CELL, ascending=[True, False, False])
    for model, K, M, paper in cells[[*CELL, "paper"]].itertuples(index=False):
        of_cell = select(ours, model=model, K=K, M=M)
        measured = select(of_cell, fidelity="measured")
        simulated = select(of_cell, fidelity="simulated").dropna(subset="ratio")
        best = simulated if measured.empty else measured
        ratios = [*best[ENDS].itertuples(index=False, name=None)]
        if measured.empty:
            ratios += [number(nan)] * len({*settings[model]} - {*best["setting"]})
        inside = best.loc[best["low"].le(paper) & best["high"].ge(paper), "setting"]
        shown = simulated["setting"].head(1) if measured.empty else ()
        why = "".join(f"cut by {setting}" for setting in shown)
        if 0 < len(inside) < len(best):
            why = f"agrees if cut by {' or '.join(dict.fromkeys(inside))}"
        is_largest = all(name != model for name, *_ in claims)
        reasons = why, errors.get(model, "") if is_largest and len(shown) else ""
        words = {"model": model_name(model), "K": K, "M": M}
        claims[model, K, M] = Claim(
            exhibit.format(**words),
            what.format(**words),
            ratios,
            "simulated" if measured.empty else "measured",
            paper=paper,
            off=0.0 if measured.empty else CLOSE * paper,
            unit=TIMES,
            why="; ".join(filter(None, reasons)),
            others=others,
            point=(K, M),
        )
    return claims
