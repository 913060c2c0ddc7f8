"""Table 1: the largest model that fits, quoted beside counted at the same size and measured small.

The paper's memory cells are sums over all accelerators: 12 bytes a parameter, and peak activations.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from matplotlib.figure import Figure

from experiments.table1.cells import allocator_check, measured_small, printed, varied
from experiments.table1.figures import FIGURES
from experiments.table1.fits import (
    BYTES_PER_PARAMETER,
    MODELS,
    Fit,
    activations,
    as_printed,
    counted_columns,
    largest_size,
    memory_text,
    printed_sizes,
    recorded_fits,
    short,
    small_columns,
    swapped,
    times,
    unit,
)
from experiments.table1.laws import laws
from experiments.table1.runs import N_OF, NAME, M
from repro.harness.results import Results, Run
from repro.paper import Size, table1, table1_claims
from repro.report.compare import beside_paper, rows_of
from repro.report.grid import Column, declared, plain
from repro.report.style import model_name
from repro.report.table import EMPTY, Table, number

FOLDED = ("table1_check*", "table1_varied*", "table1_printed*")


def tables(results: Results) -> list[Table]:
    """The tables of the experiment; at scale smoke only those without the paper's numbers."""
    if not rows_of(results, experiment=NAME):
        return []
    made = [measured_small(results), allocator_check(results)]
    if beside_paper(results, NAME):
        made = [main(results), memory(results), printed(results), varied(results), *made]
        made.append(laws(results))
    return [table for table in made if not table.missing]


def figures(results: Results, rows: list[Run]) -> Iterator[tuple[str, Figure | None, str]]:
    """What fills memory, the laws, and the largest models; none at scale smoke."""
    if beside_paper(results, NAME):
        for name, (make, caption) in FIGURES.items():
            yield name, make(results, rows), caption


@dataclass(frozen=True)
class Line:
    """One column of Table 1, which is a line of ours.

    Attributes:
        model: name of the model.
        name: of the column, `Pipeline-8`.
        size: the paper's cells; None where only the small models have this column.
        printed: the paper's size, counted with M=16 first.
        counted: the counted columns of this model.
        small: the columns of this model that were measured small.
    """

    model: str
    name: str
    size: Size | None
    printed: list[Fit]
    counted: dict[str, Fit]
    small: dict[str, Fit]


def _lines(results: Results) -> list[Line]:
    """The columns of Table 1 and those of the small models, by model and K."""
    fits = recorded_fits(results)
    sizes = {(size.model, size.name): size for size in table1()}
    lines = []
    for model in MODELS:
        counted, small = counted_columns(fits, model), small_columns(fits, model)
        stages = {size.name: size.accelerators for size in table1() if size.model == model}
        for name, fit in small.items():
            stages.setdefault(name, fit.spec.K)
        for name in sorted(stages, key=lambda name: (stages[name], name)):
            size = sizes.get((model, name))
            own = printed_sizes(fits, size) if size else []
            own = sorted(own, key=lambda fit: fit.spec.M)
            lines.append(Line(model, name, size, own, counted, small))
    return lines


HEAD: list[Column[Line]] = [
    Column(("", "model"), lambda line: plain(model_name(line.model))),
    Column(("", "column"), lambda line: plain(line.name)),
]


def main(results: Results) -> Table:
    """Table 1: the largest model, its parameters and the scale-up, quoted, counted and measured."""
    columns = [
        *HEAD,
        _text("largest", "quoted", lambda line: _size(line.size)),
        _text("largest", "counted", _largest_counted),
        _text("largest", "measured, small", _largest_measured),
        _text("largest", "why", _why),
        _text("parameters", "quoted", lambda line: as_printed(line.size)),
        _text("parameters", "counted", _parameters_counted),
    ]
    for base in ("Naive-1", "Pipeline-1"):
        group = f"times {base}'s"
        columns += [
            _text(group, "quoted", partial(_claim, base)),
            _text(group, "counted", partial(_times_counted, base)),
            _text(group, "measured, small", partial(_times_measured, base)),
        ]
    note = (
        f"Counted on fake tensors of float32 at N={N_OF['amoebanet-d']} (AmoebaNet-D) or "
        f"{N_OF['transformer']}, M={M}; measured: scaled-down models that were trained within a "
        "limit. Why: how much of a device's memory the printed size takes, by counting; "
        "(text): what the paper's text says, other quoted ratios are of its cells."
    )
    title = (
        "Table 1 (v5 and NeurIPS): the largest model that fits, on 8 GB (AmoebaNet-D) and 16 GiB "
        "(Transformer) each"
    )
    return declared("table1", title, note, _lines(results), columns, NAME)


def _text(group: str, name: str, text: Callable[[Line], str]) -> Column[Line]:
    """A column of texts, which stand in the csv file too."""
    return Column((group, name), lambda line: plain(text(line)))


def _size(size: Size | None) -> str:
    if size is None:
        return EMPTY
    return f"L={size.L}" if size.D is None else f"({size.L}, {size.D})"


def _largest_counted(line: Line) -> str:
    return largest_size(line.counted.get(line.name)) if line.size else EMPTY


def _largest_measured(line: Line) -> str:
    if line.small and line.name not in line.small:
        return EMPTY
    return largest_size(line.small.get(line.name))


def _why(line: Line) -> str:
    """Why the counted size is another than the printed one."""
    counted = line.counted.get(line.name)
    if counted is None or not line.printed:
        return EMPTY
    printed = line.printed[0]
    if counted.largest and counted.largest.args == printed.cut.args:
        return "as printed"
    if printed.share > 1:
        return f"printed size does not fit ({printed.share:.0%})"
    return f"printed size leaves room ({printed.share:.0%})"


def _parameters_counted(line: Line) -> str:
    fit = line.counted.get(line.name)
    return short(fit.largest.parameters) if line.size and fit and fit.largest else EMPTY


def _claim(base: str, line: Line) -> str:
    """The scale-up that the text states, else the ratio of the printed parameters."""
    bases = [size for size in table1() if (size.model, size.name) == (line.model, base)]
    if line.size is None or not bases or line.size.parameters < bases[0].parameters:
        return EMPTY
    for claim in table1_claims():
        claimed = (claim.model, claim.accelerators, claim.over)
        if claimed == (line.model, line.size.accelerators, base) and line.name != base:
            return f"{claim.times:g}x (text)"
    return f"{line.size.parameters / bases[0].parameters:.1f}x"


def _times_counted(base: str, line: Line) -> str:
    return times(line.counted.get(line.name), line.counted.get(base)) if line.size else EMPTY


def _times_measured(base: str, line: Line) -> str:
    return times(line.small.get(line.name), line.small.get(base))


def memory(results: Results) -> Table:
    """Table 1's memory cells, and the same counted at the paper's own sizes."""
    lines = [line for line in _lines(results) if line.size]
    columns: list[Column[Line]] = [
        *HEAD,
        _text("12 bytes each", "quoted", lambda line: f"{_printed(line).parameter_memory_gb:g}"),
        _text("12 bytes each", "counted", lambda line: _bytes_text(line, _parameter_bytes)),
        _text("peak activations", "quoted", lambda line: f"{_printed(line).peak_activation_gb:g}"),
        _text("peak activations", "counted", lambda line: _bytes_text(line, _activation_bytes)),
        _text("activations / parameters", "quoted", lambda line: number(_ratio(line))),
        _text("activations / parameters", "quoted, corrected", _corrected),
        _text("activations / parameters", "counted", _counted_ratio),
        _text("quoted activations", "are those of", _matching_setting),
        _text("quoted bytes", "of a parameter", _bytes_per_parameter),
    ]
    note = (
        f"The paper's own sizes at M={M}, sums over accelerators: 12 bytes a parameter (weights, "
        "gradients, RMSProp's mean square), and everything else at the peak of each stage. "
        "Corrected: with the Transformer's two Naive-1 cells, which are swapped in print, in each "
        "other's place; are those of: the M (for Naive-1 the N) that gives the printed activations."
    )
    title = (
        "Table 1 (v5 and NeurIPS): what the memory is taken by, GB (AmoebaNet-D) and GiB "
        "(Transformer)"
    )
    return declared("table1_memory", title, note, lines, columns, NAME)


def _printed(line: Line) -> Size:
    assert line.size is not None
    return line.size


def _parameter_bytes(fit: Fit) -> int:
    return BYTES_PER_PARAMETER * fit.cut.parameters


def _activation_bytes(fit: Fit) -> int:
    return activations(fit.cut)


def _bytes_text(line: Line, bytes_of: Callable[[Fit], int]) -> str:
    return memory_text(line.model, bytes_of(line.printed[0])) if line.printed else EMPTY


def _ratio(line: Line) -> float:
    size = _printed(line)
    return size.peak_activation_gb / size.parameter_memory_gb


def _corrected(line: Line) -> str:
    return number(1 / _ratio(line) if swapped(_printed(line)) else _ratio(line))


def _counted_ratio(line: Line) -> str:
    if not line.printed:
        return EMPTY
    return number(_activation_bytes(line.printed[0]) / _parameter_bytes(line.printed[0]))


def _matching_setting(line: Line) -> str:
    """The M, or the N of Naive-1, at which the counted activations are the printed ones.

    Activations grow evenly with the examples of a micro-batch, so a line through two counts gives
    the examples. For Naive-1 the line goes through zero.
    """
    size = _printed(line)
    quoted = size.parameter_memory_gb if swapped(size) else size.peak_activation_gb
    target = quoted * unit(size.model)[1]
    points = [(fit.spec.N / fit.spec.M, _activation_bytes(fit)) for fit in line.printed]
    if size.name == "Naive-1":
        points.append((0, 0))
    if len(points) < 2:
        return EMPTY
    (most, high), (least, low) = max(points), min(points)
    examples = least + (target - low) * (most - least) / (high - low)
    if examples <= 0:
        return EMPTY
    if size.name == "Naive-1":
        return f"N={examples:.0f}"
    return f"M={N_OF[size.model] / examples:.0f}"


def _bytes_per_parameter(line: Line) -> str:
    size = _printed(line)
    quoted = size.peak_activation_gb if swapped(size) else size.parameter_memory_gb
    return number(quoted * unit(size.model)[1] / size.parameters, 1)
