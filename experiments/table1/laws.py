"""The paper's memory law and its variants, held against counted curves over M, K and N.

A law gives terms without their constants, so constants are fitted, none below 0, to the counted
points by relative error. What is judged is how far the best of them stays from the counts: over one
variable alone, and over all.
"""

from typing import Any

import pandas as pd
from scipy.optimize import nnls

from experiments.table1.fits import UNITS, activations, all_fits, table_of
from repro.harness.frame import select
from repro.harness.results import Results
from repro.harness.spec import UNLIMITED_MEMORY
from repro.paper.theory import MEMORY_LAWS, MemoryLaw
from repro.report.table import EMPTY, Table

# Fixed before the results: relative errors up to which a law holds, or holds roughly.
HOLDS, ROUGHLY = 0.10, 0.30
AXES = ("M", "K", "N")


def points(results: Results, model: str, remat: str) -> pd.DataFrame:
    """Peak activations of the fullest stage over M, K and N, of the size that has most counts."""
    frame = select(
        all_fits(results), fidelity="counted", memory=UNLIMITED_MEMORY, model=model, remat=remat
    )
    frame = _most(frame, frame["model_args"].map(repr))
    return frame.assign(bytes=[max(activations(cut, "rmsprop")) for cut in frame["cut"]])


def axis(points: pd.DataFrame, name: str) -> pd.DataFrame:
    return _most(points, [points[other] for other in AXES if other != name])


def _most(frame: pd.DataFrame, by: Any) -> pd.DataFrame:
    """The largest group of a frame; of several as large the first."""
    return max((group for _, group in frame.groupby(by, sort=False)), key=len, default=frame)


def errors(law: MemoryLaw, points: pd.DataFrame) -> pd.Series:
    """Relative errors of a law at these points, with the constants that make them least."""
    places = zip(points["K"], points["M"], points["N"], strict=True)
    terms = pd.DataFrame([law.terms(*place) for place in places], points.index)
    shares = terms.div(points["bytes"], axis="index")
    constants, _ = nnls(shares, [1.0] * len(shares))
    return shares @ constants - 1


def worst(law: MemoryLaw, points: pd.DataFrame) -> dict[str, float]:
    return {name: float(errors(law, axis(points, name)).abs().max()) for name in AXES}


def laws(results: Results) -> Table:
    """One line for each model and law: its errors over M, K, N and all, and a verdict."""
    lines = []
    for model in UNITS:
        for law in MEMORY_LAWS:
            counted = points(results, model, "always" if law.recomputes else "never")
            # more points than a law has constants
            if all(len(axis(counted, name)) > 2 for name in AXES):
                line = {"model": model, "law": law.name, "source": law.source}
                lines.append(line | _judged(law, counted))
        lines += _gradient_claim(model, points(results, model, "always"))
    frame = pd.DataFrame(lines).fillna(EMPTY)
    return table_of(results, "table1_laws", frame, holds=HOLDS, roughly=ROUGHLY)


def _judged(law: MemoryLaw, points: pd.DataFrame) -> dict[str, str]:
    over = worst(law, points)
    ends = {name: axis(points, name)[name].agg(["min", "max"]) for name in AXES}
    line = {f"worst over {n}": f"{over[n]:.1%} ({ends[n].min()} to {ends[n].max()})" for n in AXES}
    off = errors(law, points)
    line["over all, median"] = f"{off.abs().median():.1%}"
    at = off.abs().idxmax()
    place = ", ".join(f"{name}={points.at[at, name]}" for name in ("K", "M", "N"))
    line["over all, worst"] = f"{off[at]:+.0%} at {place}"
    words = [
        ("holds", [name for name in AXES if over[name] <= HOLDS]),
        ("holds roughly", [name for name in AXES if HOLDS < over[name] <= ROUGHLY]),
        ("does not hold", [name for name in AXES if over[name] > ROUGHLY]),
    ]
    line["verdict"] = "; ".join(
        f"{word} over {' and '.join(names)}" for word, names in words if names
    )
    return line


def _gradient_claim(model: str, points: pd.DataFrame) -> list[dict[str, str]]:
    """Whether gradients take more than one for each parameter; none where nothing was counted."""
    if points.empty:
        return []
    cuts = axis(points, "M")["cut"]
    gradients = max(sum(stage.bytes_of("gradients") for stage in cut.stages) for cut in cuts)
    parameters = sum(stage.bytes_of("parameters") for stage in points["cut"].iloc[0].stages)
    claim = "more micro-batches need more gradient memory"
    verdict = "does not hold" if gradients <= parameters else "holds"
    return [{"model": model, "law": claim, "source": "some summaries", "verdict": verdict}]
