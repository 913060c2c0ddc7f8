"""How far the cost model is off in a setting, for other experiments to show as a range."""

from functools import lru_cache
from itertools import product
from math import expm1, nan
from typing import Any

import pandas as pd

from experiments.costs.cells import cells
from experiments.costs.runs import GPU, HERE
from repro.harness.error_bars import (
    ANY,
    DATA_SHEET,
    FEWEST,
    LAYERS,
    ErrorBar,
    nine_of_ten,
    off,
    setting,
)
from repro.harness.frame import Frame, select
from repro.harness.results import Results
from repro.harness.spec import TINY, RunSpec

BARS = "costs_bars"
OFF = {"step": "absolute", "ratio": "ratio"}  # what is off -> the column of `cells`


@lru_cache(maxsize=2)
def bars(results: Results) -> Frame:
    """A line for each source of durations and setting: known steps, and their errors in percent.

    An error is |log(predicted / real)|, so that half as fast and twice as fast are equally wrong. A
    ratio is over the source's own base, such as K=2, M=1. Steps of one GPU do not count there: they
    vary M and the rule of re-materialization, but not K. Nor do steps of tiny models, which are too
    short to say anything.
    """
    judged = cells(results)
    judged = judged.loc[~judged["scale"].isin(TINY)]
    settings = [setting(*at) for at in zip(judged["N"] / judged["M"], judged["K"], strict=True)]
    groups = judged["group"].astype(str)
    durations = pd.Series(DATA_SHEET, judged.index).mask(groups.str.endswith(HERE), LAYERS)
    judged = judged.assign(setting=settings, durations=durations)
    judged["ratio"] = judged["ratio"].mask(groups.str.endswith(GPU))
    lines = []
    for kind, name in product((DATA_SHEET, LAYERS), (*sorted({*settings}, reverse=True), ANY)):
        chosen = select(judged, durations=kind)
        chosen = chosen if name == ANY else select(chosen, setting=name)
        line: dict[str, Any] = {"durations": kind, "setting": name}
        for what, column in OFF.items():
            sizes = chosen[column].dropna().map(off)
            line[f"{what} known"] = len(sizes)
            line[f"{what} median"] = 100 * expm1(sizes.median())
            line[f"{what} 90 %"] = 100 * expm1(nine_of_ten([*sizes]))
        lines.append(line)
    return pd.DataFrame(lines)


def with_range(results: Results, value: float, spec: RunSpec) -> tuple[float, float, float]:
    """A simulated ratio, and where nine of ten ratios by data sheets lie in the run's setting.

    Where fewer than `FEWEST` are known, of any setting; NaN where none is.
    """
    by_setting = select(bars(results), durations=DATA_SHEET).set_index("setting")
    known = by_setting["ratio known"]
    name = setting(spec.N / spec.M / spec.D, spec.K)
    name = name if known.get(name, 0) >= FEWEST else ANY
    if not known[name]:
        return value, nan, nan
    return value, *ErrorBar(1 + by_setting.at[name, "ratio 90 %"] / 100).ends(value)


def meaning(results: Results) -> str:
    """What the range behind a simulated ratio is, for the end of a note; empty without any."""
    if not select(bars(results), durations=DATA_SHEET)["ratio known"].any():
        return ""
    return (
        "; (low to high) is the range of a simulated ratio, within which nine of ten known ratios "
        "of its setting were predicted (`costs_bars`)"
    )
