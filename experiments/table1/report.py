"""Table 1: the largest model that fits, quoted beside counted at the same size and measured small.

The paper's memory cells are sums over all accelerators: 12 bytes a parameter, and peak activations.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

from matplotlib.figure import Figure

from experiments.table1 import gpu
from experiments.table1.accountings import accountings
from experiments.table1.cells import allocator_check, measured_small, varied
from experiments.table1.figures import FIGURES
from experiments.table1.fits import (
    BYTES_PER_PARAMETER,
    MODELS,
    Fit,
    as_printed,
    largest_size,
    memory_text,
    printed_fit,
    recorded_fits,
    search_fit,
    short,
    small_columns,
    swapped,
    times,
    unit,
)
from experiments.table1.laws import laws
from experiments.table1.runs import ACCOUNTINGS, N_OF, NAME, OPTIMIZER, M
from repro.harness.results import Results, Run
from repro.paper import Size, table1
from repro.report.compare import beside_paper, rows_of
from repro.report.declared import Shown
from repro.report.grid import Column, declared, plain
from repro.report.style import model_name
from repro.report.table import EMPTY, Table, number

BASE = "Pipeline-1"  # the column that others are divided by
SHOWN = Shown(
    "table1",
    (
        "model",
        "column",
        "largest quoted",
        "largest counted",
        "parameters quoted",
        "parameters counted",
        "largest why",
    ),
    figure="table1_kinds",
)


def tables(results: Results) -> list[Table]:
    if not rows_of(results, experiment=NAME):
        return []
    made = [measured_small(results), allocator_check(results)]
    if beside_paper(results, NAME):
        lines = table1_lines(results)
        made = [
            main(lines),
            accountings(results),
            memory(lines),
            varied(results),
            *made,
            laws(results),
        ]
    if columns := gpu.measured_columns(results):
        made += [gpu.largest(columns), gpu.printed_activations(columns), gpu.memory(columns)]
    return [table for table in made if not table.missing]


def answer(tables: Mapping[str, Table]) -> str:
    table = tables[NAME]
    largest = {"model": "Transformer", "column": "Pipeline-128"}
    images = {"model": "AmoebaNet-D", "column": "Pipeline-8"}
    return (
        f"On 128 accelerators we count a largest Transformer of "
        f"{table.text('parameters counted', **largest)} parameters where the paper prints "
        f"{table.text('parameters quoted', **largest)}, and on 8 an AmoebaNet-D of "
        f"{table.text('parameters counted', **images)} where it prints "
        f"{table.text('parameters quoted', **images)}."
    )


def figures(results: Results, rows: list[Run]) -> Iterator[tuple[str, Figure | None, str]]:
    if beside_paper(results, NAME):
        for name, (make, caption) in FIGURES.items():
            yield name, make(results, rows), caption


@dataclass(frozen=True)
class Line:
    """One column of Table 1, which is a line of ours.

    Attributes:
        name: of the column, `Pipeline-8`.
        size: the paper's cells; None where only the small models have this column.
        printed: the paper's size, counted.
        counted: the counted search.
        small: the search that was measured small.
    """

    model: str
    name: str
    size: Size | None
    printed: Fit | None
    counted: Fit | None
    small: Fit | None


def table1_lines(results: Results) -> list[Line]:
    """The columns of Table 1 and those of the small models, by model and K."""
    fits = recorded_fits(results)
    sizes = {(size.model, size.name): size for size in table1()}
    lines = []
    for model in MODELS:
        small = small_columns(fits, model)
        stages = {size.name: size.accelerators for size in table1() if size.model == model}
        for name, fit in small.items():
            stages.setdefault(name, fit.spec.K)
        for name in sorted(stages, key=lambda name: (stages[name], name)):
            size = sizes.get((model, name))
            printed = printed_fit(fits, size) if size else None
            counted = search_fit(fits, model, name)
            lines.append(Line(model, name, size, printed, counted, small.get(name)))
    return lines


HEAD: list[Column[Line]] = [
    Column(("", "model"), lambda line: plain(model_name(line.model))),
    Column(("", "column"), lambda line: plain(line.name)),
]


def main(lines: list[Line]) -> Table:
    """Table 1: the largest model and its parameters, quoted, counted and measured."""
    bases = {line.model: line for line in lines if line.name == BASE}
    columns = [
        *HEAD,
        _text("largest", "quoted", lambda line: _size(line.size)),
        _text("largest", "counted", _largest_counted),
        _text("largest", "measured, small", _largest_measured),
        _text("largest", "why", _why),
        _text("parameters", "quoted", lambda line: as_printed(line.size)),
        _text("parameters", "counted", _parameters_counted),
        _text(f"parameters over {BASE}'s", "quoted", partial(_times_quoted, bases)),
        _text(f"parameters over {BASE}'s", "counted", partial(_times_counted, bases)),
    ]
    note = (
        f"Counted on fake tensors of float32 at N={N_OF['amoebanet-d']} (AmoebaNet-D) or "
        f"{N_OF['transformer']}, M={M}, with the {ACCOUNTINGS[OPTIMIZER]} of RMSProp with "
        "momentum; measured: scaled-down models that were trained within a limit. Why: how much of "
        "a device's memory the printed size takes, by counting."
    )
    title = (
        "Table 1 (v5 and NeurIPS): the largest model that fits, on 8 GB (AmoebaNet-D) and 16 GiB "
        "(Transformer) each"
    )
    return declared("table1", title, note, lines, columns, NAME)


def _text(group: str, name: str, text: Callable[[Line], str]) -> Column[Line]:
    """A column of texts, which stand in the csv file too."""
    return Column((group, name), lambda line: plain(text(line)))


def _size(size: Size | None) -> str:
    if size is None:
        return EMPTY
    return f"L={size.L}" if size.D is None else f"({size.L}, {size.D})"


def _largest_counted(line: Line) -> str:
    return largest_size(line.counted) if line.size else EMPTY


def _largest_measured(line: Line) -> str:
    return largest_size(line.small) if line.small else EMPTY


def _why(line: Line) -> str:
    if line.counted is None or line.printed is None:
        return EMPTY
    if line.counted.largest and line.counted.largest.args == line.printed.cut.args:
        return "as printed"
    if line.printed.share > 1:
        return f"printed size does not fit ({line.printed.share:.0%})"
    return f"printed size leaves room ({line.printed.share:.0%})"


def _parameters_counted(line: Line) -> str:
    largest = line.counted.largest if line.counted else None
    return short(largest.parameters) if largest else EMPTY


def _times_quoted(bases: Mapping[str, Line], line: Line) -> str:
    """The ratio of the printed parameters; Naive-1 is smaller, and has none."""
    base = bases[line.model].size
    if line.size is None or base is None or line.size.parameters < base.parameters:
        return EMPTY
    return f"{line.size.parameters / base.parameters:.1f}x"


def _times_counted(bases: Mapping[str, Line], line: Line) -> str:
    return times(line.counted, bases[line.model].counted)


def memory(lines: list[Line]) -> Table:
    """The paper's own sizes, counted: parameters, their 12 bytes, the fullest stage."""
    columns: list[Column[Line]] = [
        *HEAD,
        _text("", "size", lambda line: _size(line.size)),
        _text("parameters", "quoted", lambda line: as_printed(line.size)),
        _text("parameters", "counted", _printed_parameters),
        _text("12 bytes each", "quoted", lambda line: f"{_printed(line).parameter_memory_gb:g}"),
        _text("12 bytes each", "counted", _parameter_bytes),
        _text("bytes of a parameter", "quoted", _bytes_per_parameter),
        _text("fullest stage", "counted", lambda line: _stage_bytes(line, max)),
        _text("emptiest stage", "counted", lambda line: _stage_bytes(line, min)),
    ]
    note = (
        f"Counted at M={M} with the {ACCOUNTINGS[OPTIMIZER]} of RMSProp with momentum; 12 bytes a "
        "parameter are sums over accelerators. The Transformer's two cells of Naive-1 are swapped "
        "in print, so its bytes of a parameter are taken from the other one."
    )
    title = "The paper's sizes, counted: GB (AmoebaNet-D) and GiB (Transformer)"
    lines = [line for line in lines if line.size]
    return declared("table1_memory", title, note, lines, columns, NAME)


def _printed(line: Line) -> Size:
    assert line.size is not None
    return line.size


def _printed_parameters(line: Line) -> str:
    return f"{line.printed.cut.parameters:,}" if line.printed else EMPTY


def _parameter_bytes(line: Line) -> str:
    if line.printed is None:
        return EMPTY
    return memory_text(line.model, BYTES_PER_PARAMETER * line.printed.cut.parameters)


def _stage_bytes(line: Line, extreme: Callable[[Iterable[int]], int]) -> str:
    """Of the fullest or the emptiest stage."""
    if line.printed is None:
        return EMPTY
    return memory_text(line.model, extreme(stage.total for stage in line.printed.cut.stages))


def _bytes_per_parameter(line: Line) -> str:
    size = _printed(line)
    quoted = size.peak_activation_gb if swapped(size) else size.parameter_memory_gb
    return number(quoted * unit(size.model)[1] / size.parameters, 1)
