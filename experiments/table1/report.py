"""Table 1: the largest model that fits, quoted beside counted at the same size and measured small.

The paper's memory cells are sums over all accelerators: 12 bytes a parameter, and peak activations.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from experiments.table1.cells import checked, here, runs
from experiments.table1.figures import FIGURES
from experiments.table1.fits import (
    BATCH,
    MODELS,
    NAME,
    Found,
    M,
    activations,
    amount,
    as_printed,
    device_memory,
    found,
    found_size,
    given,
    only,
    searched,
    short,
    swapped,
    times,
)
from experiments.table1.laws import laws
from experiments.table1.why import differences
from repro.harness.results import Results, Run
from repro.paper import Size, table1, table1_claims
from repro.report.compare import beside_paper, rows_of
from repro.report.style import model_name
from repro.report.table import EMPTY, Table, number, table_of_frames

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pandas import DataFrame


FOLDED = ("table1_check*", "table1_varied*", "table1_printed*")


def tables(results: Results) -> list[Table]:
    """The tables of the experiment, at scale smoke only those that do not hold it against the paper."""
    if not rows_of(results, experiment=NAME):
        return []
    if not beside_paper(results, NAME):
        made = [here(results), checked(results)]
        return [table for table in made if table is not None]
    made = [main(results), memory(results), why(results), *runs(results), laws(results)]
    return [table for table in made if table is not None]


def figures(results: Results, rows: list[Run]) -> "Iterator[tuple[str, Figure | None, str]]":
    """What fills memory, the laws, and the largest models; none of a size that is not held against the paper."""
    if beside_paper(results, NAME):
        for name, (make, caption) in FIGURES.items():
            yield name, make(results, rows), caption


def main(results: Results) -> Table:
    """Table 1, one line a column of the paper's, and those that only the small scale has."""
    fits = found(results)
    note = (
        "Counted: the real stages and schedule on fake tensors of float32, plain attention, N=128 "
        f"(AmoebaNet-D) or 32, M={M} (not printed, so inferred; a table below has others), Naive-1 "
        "without GPipe; where none fits, the part of the memory that the smallest takes. "
        "Measured, small: scaled-down models, trained within a limit for each stage's process; "
        "only their ratios compare. Times: parameters over those of that column; (text) is what "
        "the paper says, other quoted ratios are of its "
        f"cells.{''.join(_naive(model, fits) for model in MODELS)}"
    )
    title = (
        "Table 1 (v5 and NeurIPS): the largest model that fits, on 8 GB (AmoebaNet-D) and 16 GiB "
        "(Transformer) each"
    )
    return table_of_frames(
        "table1",
        title,
        note,
        _framed([_line(place, fits) for place in _columns(fits)]),
        experiment=NAME,
    )


def _naive(model: str, fits: list[Found]) -> str:
    """Why the counted factors over Naive-1 are so much larger than the paper's."""
    most = only(searched(model, fits)[::-1], lambda fit: not fit.naive)
    less = only(
        [fit for fit in fits if fit.spec.model == model],
        lambda fit: fit.naive and BATCH[model] > fit.spec.N,
    )
    if not (most and most.best and less and less.best) or less.spec.fidelity != "counted":
        return ""
    ratio = most.best.parameters / less.best.parameters
    return (
        f" Naive-1 of {model_name(model)} hardly fits at N={BATCH[model]} in float32; over one of "
        f"N={less.spec.N}, {less.size(less.best)}, {most.column} has {ratio:.1f} times the "
        "parameters."
    )


def memory(results: Results) -> Table:
    """Table 1's memory cells, of the paper's own sizes."""
    fits = found(results)
    note = (
        f"The paper's own sizes, M={M}; sums over accelerators. 12 bytes each: weights, gradients "
        "and RMSProp's mean square of every parameter. Peak activations: everything else at the "
        "peak of each stage. Activations / parameters: over 12 bytes each. Quoted, corrected: the "
        "Transformer's two Naive-1 cells put in each other's place."
    )
    lines = [_memory_line(place, fits) for place in _columns(fits) if place[3] is not None]
    title = (
        "Table 1 (v5 and NeurIPS): what the memory is taken by, GB (AmoebaNet-D) and GiB "
        "(Transformer)"
    )
    return table_of_frames("table1_memory", title, note, _framed(lines), experiment=NAME)


def _framed(lines: list[dict[tuple[str, str], Any]]) -> "DataFrame":
    from pandas import DataFrame, MultiIndex

    shown = DataFrame([list(line.values()) for line in lines])
    shown.columns = MultiIndex.from_tuples(list(lines[0]))
    return shown


def _columns(fits: list[Found]) -> list[tuple[str, str, int, Size | None]]:
    """(model, column, K, the paper's cell) of every line, in the order of K."""
    places: dict[tuple[str, int, str], Size | None] = {
        (size.model, size.accelerators, size.name): size for size in table1()
    }
    for fit in fits:
        if fit.spec.fidelity == "measured" and not fit.given:
            places.setdefault((fit.spec.model, fit.spec.K, fit.column), None)
    order = sorted(places, key=lambda place: (MODELS.index(place[0]), place[1], place[2]))
    return [(model, name, K, places[model, K, name]) for model, K, name in order]


def _line(
    place: tuple[str, str, int, Size | None], fits: list[Found]
) -> dict[tuple[str, str], Any]:
    model, name, _, size = place
    full = searched(model, fits)
    counted = only(full, lambda fit: fit.column == name) if size else None
    own = [
        fit
        for fit in fits
        if fit.spec.model == model and fit.spec.fidelity == "measured" and not fit.given
    ]
    own = [fit for fit in own if fit.spec.memory != device_memory(model)]
    small = only(own, lambda fit: fit.column == name)
    line: dict[tuple[str, str], Any] = {("", "model"): model_name(model), ("", "column"): name}
    line["largest", "quoted"] = _size(size)
    line["largest", "counted"] = found_size(counted) if size else EMPTY
    line["largest", "measured, small"] = EMPTY if own and small is None else found_size(small)
    line["parameters", "quoted"] = as_printed(size)
    line["parameters", "counted"] = (
        short(counted.best.parameters) if counted and counted.best else EMPTY
    )
    for base in ("Naive-1", "Pipeline-1"):
        words = f"times {base}'s"
        line[words, "quoted"] = _claim(size, base)
        line[words, "counted"] = times(
            counted, only(full, lambda fit, base=base: fit.column == base)
        )
        line[words, "measured, small"] = times(
            small, only(own, lambda fit, base=base: fit.column == base)
        )
    return line


def _memory_line(
    place: tuple[str, str, int, Size | None], fits: list[Found]
) -> dict[tuple[str, str], Any]:
    model, name, _, size = place
    assert size is not None
    counted = only(given(fits, size), lambda fit: fit.naive or fit.spec.M == M)
    cut = counted.one if counted else None
    ratio = size.peak_activation_gb / size.parameter_memory_gb
    line: dict[tuple[str, str], Any] = {("", "model"): model_name(model), ("", "column"): name}
    line["12 bytes each", "quoted"] = f"{size.parameter_memory_gb:g}"
    line["12 bytes each", "counted"] = amount(model, 12 * cut.parameters) if cut else EMPTY
    line["peak activations", "quoted"] = f"{size.peak_activation_gb:g}"
    line["peak activations", "counted"] = amount(model, activations(cut)) if cut else EMPTY
    line["activations / parameters", "quoted"] = number(ratio)
    line["activations / parameters", "quoted, corrected"] = number(
        1 / ratio if swapped(size) else ratio
    )
    line["activations / parameters", "counted"] = (
        number(activations(cut) / (12 * cut.parameters)) if cut else EMPTY
    )
    return line


def _size(size: Size | None) -> str:
    if size is None:
        return EMPTY
    return f"L={size.L}" if size.D is None else f"({size.L}, {size.D})"


def _claim(size: Size | None, base: str) -> str:
    """What the text says, else the ratio of the printed parameters."""
    under = next(
        (one for one in table1() if size and (one.model, one.name) == (size.model, base)), None
    )
    if size is None or under is None or size.parameters < under.parameters:
        return EMPTY
    said = [
        c
        for c in table1_claims()
        if (c.model, c.accelerators, c.over) == (size.model, size.accelerators, base)
    ]
    if said and size.name != base:
        return f"{said[0].times:g}x (text)"
    return f"{size.parameters / under.parameters:.1f}x"


def why(results: Results) -> Table | None:
    """Every cell that differs, each with one sentence computed from the counts."""
    from pandas import DataFrame

    lines = differences(found(results))
    if not lines:
        return None
    note = (
        "One line for each printed cell that counting does not give, or that the paper itself "
        "contradicts."
    )
    return table_of_frames(
        "table1_why",
        "Table 1: where counted differs from quoted",
        note,
        DataFrame(lines),
        experiment=NAME,
    )
