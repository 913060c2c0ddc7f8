"""How far the cost model is off: predicted beside published and measured steps and memory."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import expm1, isnan, nan

from matplotlib.figure import Figure

from experiments.costs import gpu
from experiments.costs.cells import SOURCES, Cell, cells, on_gpus
from experiments.costs.error import Quantity, bar_of
from experiments.costs.runs import GPU, NAME, lingvo_memory, torchgpipe_memory
from repro.harness.results import GIB, Results, Run
from repro.paper.numbers import Peer
from repro.report import grid
from repro.report.compare import rows_of
from repro.report.declared import Shown
from repro.report.grid import Column, amount, declared, plain
from repro.report.style import model_name
from repro.report.table import Table

GB = 10**9
SHOWN = Shown(
    NAME,
    ("source", "model", "error (%) throughput", "error (%) ratio"),
    lines={"model": ("median error", "worst error")},
)


def tables(results: Results) -> list[Table]:
    if not rows_of(results, experiment=NAME):
        return []
    made = [speed(results), memory(results)]
    if on_gpus(results):
        made += [gpu.stages(results), gpu.recomputation(results)]
    return made


def answer(tables: Mapping[str, Table]) -> str:
    median, worst = (
        tables[NAME].text("error (%) ratio", source="all", model=f"{which} error")
        for which in ("median", "worst")
    )
    return (
        f"Simulated ratios of throughput are off by {median} % in the median and by {worst} % at "
        "worst."
    )


def figures(_results: Results, _rows: list[Run]) -> Iterator[tuple[str, Figure | None, str]]:
    """None: errors are few numbers, and steps of different devices make no curve."""
    return iter(())


@dataclass(frozen=True)
class Line:
    """One line of the table: a cell, or the errors of several cells.

    Attributes:
        source: of the real steps.
        model: name of the model, or which error of the cells it is.
        absolute: error of the throughput; NaN if it is not known.
        ratio: error of the ratio to the source's base; NaN of the base.
        cell: the cell; None if the line is about several.
    """

    source: str
    model: str
    absolute: float
    ratio: float
    cell: Cell | None = None


def speed(results: Results) -> Table:
    every_cell = cells(results)
    lines = []
    for letter, source in SOURCES.items():
        of_source = [cell for cell in every_cell if cell.source == letter]
        lines += [_line(source, cell) for cell in of_source]
        lines += _summaries(source, of_source)
    if every_cell:
        judged = [cell for cell in every_cell if cell.source != "rehearsal"]
        lines += _summaries("all", judged)

    columns: list[Column[Line]] = [
        Column("source", lambda line: plain(line.source)),
        Column("model", lambda line: plain(line.model)),
        Column("K", lambda line: _setting(line, "K")),
        Column("M", lambda line: _setting(line, "M")),
        Column("N", lambda line: _setting(line, "N")),
        Column(("examples/s", "quoted"), lambda line: _real(line, "quoted")),
        Column(("examples/s", "measured"), lambda line: _real(line, "measured")),
        Column(("examples/s", "simulated"), _simulated),
        Column(("error (%)", "throughput"), lambda line: _percent(line.absolute, line)),
        Column(("error (%)", "ratio"), _ratio_error),
    ]
    note = (
        "Error: simulated over real, minus 1; of the ratio, both are first divided by the base "
        "cell of the same source and model, its first line. The median and the worst error count a "
        "step that is predicted twice as long as one that is predicted half as long."
    )
    title = "How far the cost model is off: simulated against published and measured steps"
    return declared(NAME, title, note, lines, columns, NAME)


def _line(source: str, cell: Cell) -> Line:
    model = model_name(cell.run.model)
    if cell.run.group.endswith(GPU):  # where both rules were measured
        model += f", {cell.run.remat}"
    return Line(source, model, cell.absolute_error, cell.ratio_error, cell)


def _summaries(source: str, of_source: list[Cell]) -> list[Line]:
    """The median and the worst error of some cells; nothing without cells."""
    quantities: tuple[Quantity, Quantity] = ("throughput", "ratio")
    bars = [bar_of(of_source, quantity) for quantity in quantities]
    if not any(bars):
        return []
    medians = [expm1(bar.median) if bar else nan for bar in bars]
    worst = [expm1(bar.worst) if bar else nan for bar in bars]
    return [
        Line(source, "median error", medians[0], medians[1]),
        Line(source, "worst error", worst[0], worst[1]),
    ]


def _setting(line: Line, name: str) -> grid.Cell:
    return plain(getattr(line.cell.run, name)) if line.cell else grid.Cell("")


def _real(line: Line, fidelity: str) -> grid.Cell:
    """The real throughput in the column of its fidelity; Lingvo's has no unit."""
    if line.cell is None or not line.cell.has_unit:
        return grid.Cell()
    is_published = line.cell.run.fidelity == "simulated"
    if (fidelity == "quoted") != is_published:
        return grid.Cell()
    return amount(line.cell.throughput("real"), 1)


def _simulated(line: Line) -> grid.Cell:
    return amount(line.cell.throughput("predicted"), 1) if line.cell else grid.Cell()


def _percent(error: float, line: Line) -> grid.Cell:
    """An error in percent; with its sign if it is that of one cell."""
    if isnan(error):
        return grid.Cell()
    return grid.Cell(100 * error, format(100 * error, "+.0f" if line.cell else ".0f"))


def _ratio_error(line: Line) -> grid.Cell:
    if line.cell and line.cell.is_base:
        return grid.Cell(text="base")
    return _percent(line.ratio, line)


@dataclass(frozen=True)
class Counted:
    """A run whose peak memory is counted.

    Attributes:
        run: simulated; its peaks are counted.
        peer: torchgpipe's row for it; None for Lingvo's settings, which give no bytes.
    """

    run: Run
    peer: Peer | None

    @property
    def activations_gib(self) -> float:
        """Sum of the peaks of all stages without 12 bytes for each parameter; NaN for Lingvo."""
        if self.peer is None:
            return nan
        return sum(self.run.peak_gib_per_stage) - self.quoted("model_memory_gib")

    @property
    def fullest(self) -> float:
        """Bytes of the fullest stage."""
        return self.run.peak_gib_max * GIB

    @property
    def device(self) -> float:
        """Bytes of the device."""
        modelled = self.run.rounds[-1].modelled
        return (modelled and modelled.memory) or nan

    def quoted(self, name: str) -> float:
        """A number of torchgpipe's row; NaN if there is none."""
        value = self.peer.values[name] if self.peer else None
        return nan if value is None else value


def memory(results: Results) -> Table:
    """Counted memory beside torchgpipe's table, and whether Lingvo's settings fit."""
    recorded = rows_of(results, experiment=NAME, status="done")
    settings = [*torchgpipe_memory(), *((spec, None) for spec in lingvo_memory())]
    lines = [Counted(run, peer) for spec, peer in settings for run in recorded if run.spec == spec]
    columns: list[Column[Counted]] = [
        Column("source", lambda line: plain("torchgpipe" if line.peer else "Lingvo")),
        Column("model", lambda line: plain(_size(line.run))),
        Column("K", lambda line: plain(line.run.K)),
        Column("optimizer", lambda line: plain(line.run.spec.optimizer)),
        Column(
            ("activations (GiB)", "quoted"),
            lambda line: amount(line.quoted("peak_activation_gib")),
        ),
        Column(("activations (GiB)", "counted"), lambda line: amount(line.activations_gib)),
        Column(
            "error (%)",
            lambda line: _percent_of(line.activations_gib, line.quoted("peak_activation_gib")),
        ),
        Column(("fullest stage (GB)", "counted"), lambda line: amount(line.fullest / GB)),
        Column("device (GB)", lambda line: amount(line.device / GB, 0)),
        Column("fits", lambda line: plain("yes" if line.fullest <= line.device else "no")),
    ]
    note = (
        "torchgpipe's number is what the allocators of all GPUs had cached at most, without 12 "
        "bytes a parameter; ours is the peak of live tensors, so fragments and workspace are not "
        "in it. Lingvo publishes that 94 layers run on 8 accelerators of 16 GB."
    )
    title = "How far counted memory is off: torchgpipe's table, and Lingvo's settings"
    return declared("costs_memory", title, note, lines, columns, NAME)


def _size(run: Run) -> str:
    """`AmoebaNet-D, L=18, D=416`."""
    args = run.spec.model_args
    sizes = [f"{name}={args[name]}" for name in ("L", "D") if name in args]
    return ", ".join([model_name(run.model), *sizes])


def _percent_of(counted: float, quoted: float) -> grid.Cell:
    error = 100 * (counted / quoted - 1)
    return grid.Cell() if isnan(error) else grid.Cell(error, f"{error:+.0f}")
