"""The paper's memory law and its variants, held against counted curves over M, K and N.

A law gives terms without their constants, so constants are fitted, none below 0, to the counted
points by relative error. What is judged is how far the best of them stays from the counts: over one
variable alone, and over all.
"""

from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

from experiments.table1.fits import MODELS, NAME, Found, found, of_stage
from repro.harness.spec import ENOUGH
from repro.paper.theory import MEMORY_LAWS, MemoryLaw
from repro.report.style import model_name
from repro.report.table import EMPTY, Table, percent, table_of_frames

if TYPE_CHECKING:
    from repro.harness.results import Results

# fixed before the results: relative errors up to which a law holds, or nearly
HOLDS, ROUGHLY = 0.10, 0.30
_AXES = ("M", "K", "N")


@dataclass(frozen=True)
class Point:
    """Counted: the peak activations of the stage that has most, in bytes."""

    K: int
    M: int
    N: int
    size: int


def points(results: "Results", model: str, checkpoint: str) -> list[Point]:
    """The counted curves of one model, of the size that was counted most often."""
    fits = curves(results, model, checkpoint)
    return [Point(f.spec.K, f.spec.M, f.spec.N, max(map(of_stage, f.one.stages))) for f in fits]


def curves(results: "Results", model: str, checkpoint: str) -> list[Found]:
    """The fits behind them."""
    sets: dict[str, list[Found]] = {}
    for fit in found(
        results, model=model, checkpoint=checkpoint, memory=ENOUGH, fidelity="counted"
    ):
        sets.setdefault(repr(fit.spec.model_args), []).append(fit)
    return max(sets.values(), key=len, default=[])


def axis(some: list[Point], name: str) -> list[Point]:
    """The most points that differ in this variable alone."""
    others = [other for other in _AXES if other != name]

    def along(base: Point) -> list[Point]:
        return [
            p for p in some if all(getattr(p, other) == getattr(base, other) for other in others)
        ]

    return max(map(along, some), key=len, default=[])


def constants(law: MemoryLaw, some: list[Point]) -> list[float]:
    """Of the law's terms, so that relative errors are least."""
    from scipy.optimize import nnls

    rows = [[term / p.size for term in law.terms(p.K, p.M, p.N)] for p in some]
    return list(nnls(rows, [1.0] * len(some))[0])


def said(law: MemoryLaw, fitted: list[float], K: float, M: float, N: float) -> float:
    """Bytes by the law."""
    return sum(c * term for c, term in zip(fitted, law.terms(K, M, N), strict=True))


def errors(law: MemoryLaw, some: list[Point]) -> dict[Point, float]:
    """By how much the law, at its best, is off at each point, relative to what is counted."""
    fitted = constants(law, some)
    return {p: said(law, fitted, p.K, p.M, p.N) / p.size - 1 for p in some}


def laws(results: "Results") -> Table | None:
    """One line for each model and law: its errors over M, K, N and all, and what they say."""
    from pandas import DataFrame

    lines = []
    for model in MODELS:
        for law in MEMORY_LAWS:
            some = points(results, model, "always" if law.recomputes else "never")
            if all(len(axis(some, name)) > 2 for name in _AXES):  # more than a law has constants
                lines.append(_judged(model, law, some))
        lines += _gradients(model, curves(results, model, "always"))
    if not lines:
        return None
    note = (
        "Peak activations of the fullest stage (activations, boundary inputs, messages, buffers), "
        "counted. Constants are fitted to the points that are judged, over one variable with the "
        "others fixed, then over all. A law holds over a variable where it is nowhere off by more "
        f"than {HOLDS:.0%}, roughly up to {ROUGHLY:.0%}; over all together, where layers that are "
        "no part of L count too, is shown and not judged."
    )
    return table_of_frames(
        "table1_laws",
        "Laws of memory against counts",
        note,
        DataFrame(lines).fillna(EMPTY),
        experiment=NAME,
    )


def _judged(model: str, law: MemoryLaw, some: list[Point]) -> dict[str, str]:
    off = {name: errors(law, axis(some, name)) for name in _AXES}
    whole = errors(law, some)
    line = {"model": model_name(model), "law": law.name, "source": law.source}
    for name in _AXES:
        values = sorted(getattr(p, name) for p in off[name])
        line[f"worst over {name}"] = (
            f"{percent(max(map(abs, off[name].values())))} ({values[0]} to {values[-1]})"
        )
    worst = max(whole, key=lambda p: abs(whole[p]))
    line["over all, median"] = percent(median(map(abs, whole.values())))
    line["over all, worst"] = f"{100 * whole[worst]:+.0f}% at K={worst.K}, M={worst.M}, N={worst.N}"
    return line | {
        "verdict": _verdict({name: max(map(abs, found.values())) for name, found in off.items()})
    }


def _verdict(worst: dict[str, float]) -> str:
    """`holds over M and N, roughly over K`."""
    words = {"holds": [], "holds roughly": [], "does not hold": []}
    for name, error in worst.items():
        words[
            "holds" if error <= HOLDS else "holds roughly" if error <= ROUGHLY else "does not hold"
        ].append(name)
    return "; ".join(f"{word} over {' and '.join(names)}" for word, names in words.items() if names)


def _gradients(model: str, some: list[Found]) -> list[dict[str, str]]:
    """Whether more micro-batches need more memory for gradients."""
    if not some:
        return []
    over = axis([Point(f.spec.K, f.spec.M, f.spec.N, _held(f)) for f in some], "M")
    one = sum(stage.bytes_of("parameters") for stage in some[0].one.stages)
    held = max(point.size for point in over)
    words = (
        f"with M from {min(p.M for p in over)} to {max(p.M for p in over)} at most "
        f"{held / 2**20:,.0f} MiB are there at the peak, and one gradient for each parameter takes "
        f"{one / 2**20:,.0f}"
    )
    added = ": those of every micro-batch are added to the same"
    words = f"does not hold: {words}{added}" if held <= one else f"holds: {words}"
    law = "more micro-batches need more gradient memory"
    return [{"model": model_name(model), "law": law, "source": "some summaries", "verdict": words}]


def _held(fit: Found) -> int:
    return sum(stage.bytes_of("gradients") for stage in fit.one.stages)
