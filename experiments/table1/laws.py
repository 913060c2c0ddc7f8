"""The paper's memory law and its variants, held against counted curves over M, K and N.

A law gives terms without their constants, so constants are fitted, none below 0, to the counted
points by relative error. What is judged is how far the best of them stays from the counts: over one
variable alone, and over all.
"""

from dataclasses import dataclass
from functools import cached_property, partial
from statistics import median

from scipy.optimize import nnls

from experiments.table1.fits import MODELS, Fit, recorded_fits, stage_activations
from experiments.table1.runs import NAME
from repro.harness.results import Results
from repro.harness.spec import UNLIMITED_MEMORY
from repro.paper.theory import MEMORY_LAWS, MemoryLaw
from repro.report.grid import Cell, Column, declared, plain
from repro.report.style import model_name
from repro.report.table import EMPTY, Table, percent

# Fixed before the results: relative errors up to which a law holds, or holds roughly.
HOLDS, ROUGHLY = 0.10, 0.30
_AXES = ("M", "K", "N")


@dataclass(frozen=True)
class Point:
    """Counted bytes at K, M and N."""

    K: int
    M: int
    N: int
    size: int


def law_fits(results: Results, model: str, checkpoint: str) -> list[Fit]:
    """The counts of one model over M, K and N, of the size that was counted most often."""
    by_size: dict[str, list[Fit]] = {}
    for fit in recorded_fits(
        results, model=model, checkpoint=checkpoint, memory=UNLIMITED_MEMORY, fidelity="counted"
    ):
        by_size.setdefault(repr(fit.spec.model_args), []).append(fit)
    return max(by_size.values(), key=len, default=[])


def activation_points(results: Results, model: str, checkpoint: str) -> list[Point]:
    """Peak activations of the fullest stage over M, K and N."""
    points = []
    for fit in law_fits(results, model, checkpoint):
        size = max(stage_activations(stage) for stage in fit.cut.stages)
        points.append(Point(fit.spec.K, fit.spec.M, fit.spec.N, size))
    return points


def axis(points: list[Point], name: str) -> list[Point]:
    """The most points that differ in this variable alone."""
    others = [other for other in _AXES if other != name]
    lines: dict[tuple[int, ...], list[Point]] = {}
    for point in points:
        lines.setdefault(tuple(getattr(point, other) for other in others), []).append(point)
    return max(lines.values(), key=len, default=[])


def constants(law: MemoryLaw, points: list[Point]) -> list[float]:
    """The constants of the law's terms that give the least relative errors."""
    rows = [[term / p.size for term in law.terms(p.K, p.M, p.N)] for p in points]
    return list(nnls(rows, [1.0] * len(points))[0])


def law_bytes(law: MemoryLaw, fitted: list[float], K: float, M: float, N: float) -> float:
    """Bytes by a law with these constants."""
    terms = law.terms(K, M, N)
    return sum(constant * term for constant, term in zip(fitted, terms, strict=True))


def errors(law: MemoryLaw, points: list[Point]) -> dict[Point, float]:
    """Point -> how far the law, fitted to all of them, is off, relative to the count."""
    fitted = constants(law, points)
    return {p: law_bytes(law, fitted, p.K, p.M, p.N) / p.size - 1 for p in points}


@dataclass(frozen=True)
class Judged:
    model: str
    law: MemoryLaw
    points: list[Point]

    @property
    def name(self) -> str:
        return self.law.name

    @property
    def source(self) -> str:
        return self.law.source

    @cached_property
    def worst(self) -> dict[str, float]:
        """Variable -> the largest relative error over it."""
        over = {name: errors(self.law, axis(self.points, name)) for name in _AXES}
        return {name: max(abs(error) for error in found.values()) for name, found in over.items()}

    @cached_property
    def errors(self) -> dict[Point, float]:
        """Point -> relative error, fitted over all points."""
        return errors(self.law, self.points)

    def worst_over(self, name: str) -> str:
        """`15.1% (1 to 64)`."""
        values = [getattr(point, name) for point in axis(self.points, name)]
        return f"{percent(self.worst[name])} ({min(values)} to {max(values)})"

    @property
    def median_error(self) -> str:
        """Over all points."""
        return percent(median(abs(error) for error in self.errors.values()))

    @property
    def worst_point(self) -> str:
        """`+35% at K=1, M=16, N=64`."""
        p = max(self.errors, key=lambda point: abs(self.errors[point]))
        return f"{100 * self.errors[p]:+.0f}% at K={p.K}, M={p.M}, N={p.N}"

    @property
    def verdict(self) -> str:
        """`holds over M and N; holds roughly over K`."""
        variables: dict[str, list[str]] = {"holds": [], "holds roughly": [], "does not hold": []}
        for name, error in self.worst.items():
            if error <= HOLDS:
                variables["holds"].append(name)
            elif error <= ROUGHLY:
                variables["holds roughly"].append(name)
            else:
                variables["does not hold"].append(name)
        return "; ".join(
            f"{word} over {' and '.join(names)}" for word, names in variables.items() if names
        )


@dataclass(frozen=True)
class GradientClaim:
    """The claim that more micro-batches need more gradient memory, against the counts over M."""

    model: str
    gradients: int
    parameters: int

    name = "more micro-batches need more gradient memory"
    source = "some summaries"
    median_error = EMPTY
    worst_point = EMPTY

    def worst_over(self, name: str) -> str:
        """Nothing is fitted."""
        return EMPTY

    @property
    def verdict(self) -> str:
        """It does not hold if gradients take no more than one for each parameter."""
        return "does not hold" if self.gradients <= self.parameters else "holds"


def laws(results: Results) -> Table:
    """One line for each model and law: its errors over M, K, N and all, and a verdict."""
    lines: list[Judged | GradientClaim] = []
    for model in MODELS:
        for law in MEMORY_LAWS:
            points = activation_points(results, model, "always" if law.recomputes else "never")
            # more points than a law has constants
            if all(len(axis(points, name)) > 2 for name in _AXES):
                lines.append(Judged(model, law, points))
        lines += _gradient_claim(results, model)
    columns: list[Column[Judged | GradientClaim]] = [
        Column("model", lambda line: plain(model_name(line.model))),
        Column("law", lambda line: plain(line.name)),
        Column("source", lambda line: plain(line.source)),
        *(Column(f"worst over {name}", partial(_worst_over, name)) for name in _AXES),
        Column("over all, median", lambda line: plain(line.median_error)),
        Column("over all, worst", lambda line: plain(line.worst_point)),
        Column("verdict", lambda line: plain(line.verdict)),
    ]
    note = (
        "Counted peak activations of the fullest stage, against laws whose constants are fitted to "
        "the same points. A law holds over a variable, the others fixed, if it is nowhere off by "
        f"more than {HOLDS:.0%}, roughly up to {ROUGHLY:.0%}; over all is not judged."
    )
    return declared("table1_laws", "Laws of memory against counts", note, lines, columns, NAME)


def _worst_over(name: str, line: Judged | GradientClaim) -> Cell:
    return plain(line.worst_over(name))


def _gradient_claim(results: Results, model: str) -> list[GradientClaim]:
    """None where nothing was counted."""
    fits = law_fits(results, model, "always")
    if not fits:
        return []
    points = []
    for fit in fits:
        gradients = sum(stage.bytes_of("gradients") for stage in fit.cut.stages)
        points.append(Point(fit.spec.K, fit.spec.M, fit.spec.N, gradients))
    parameters = sum(stage.bytes_of("parameters") for stage in fits[0].cut.stages)
    most = max(point.size for point in axis(points, "M"))
    return [GradientClaim(model, most, parameters)]
