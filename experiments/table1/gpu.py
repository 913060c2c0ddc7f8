"""Table 1 measured at the paper's own sizes: stages of 8 GB or 16 GiB that share one GPU."""

from dataclasses import dataclass
from math import nan

from experiments.table1.fits import (
    MODELS,
    Fit,
    activations,
    as_printed,
    largest_size,
    recorded_fits,
    short,
    unit,
)
from experiments.table1.runs import ACCOUNTINGS, CAPPED, NAME, OPTIMIZER, M
from repro.harness.results import Results
from repro.harness.schema import Tried
from repro.harness.spec import TINY
from repro.paper import Size, table1
from repro.report.grid import Cell, Column, amount, declared, plain
from repro.report.style import model_name
from repro.report.table import EMPTY, Table, number

# The printed size is the largest one if no size with more than this many times its parameters
# trains. Fixed before anything was measured.
LARGER = 1.1
INFERRED_FROM = "transformer"  # whose printed activations favour M and the two slots
EXPLAINED = 0.05  # how far counted bytes may be off what the allocator handed out


@dataclass(frozen=True)
class Measured:
    """One column of Table 1 on one machine.

    Attributes:
        printed: the attempt to train the printed size.
        search: for the largest size that trains; None if it was not made.
    """

    size: Size
    printed: Fit
    search: Fit | None

    @property
    def rehearsal(self) -> bool:
        """Whether the models and memories are scaled down, so that nothing can be compared."""
        return self.printed.run.scale in TINY

    @property
    def trained(self) -> bool:
        """Whether the printed size trained."""
        return self.printed.largest is not None

    @property
    def verdict(self) -> str:
        """What the measurement says about the printed size.

        M and the optimizer's slots were inferred from the cells of one model, for which agreement
        is a fit. The search varies D of AmoebaNet-D at the printed L only.
        """
        if self.rehearsal:
            return "none: a rehearsal with small models"
        if not self.trained:
            return "not reproduced: runs out of memory"
        largest = self.search.largest if self.search else None
        if largest is None or self.printed.naive:
            return "consistent: trains"
        if largest.parameters > LARGER * self.size.parameters:
            return "consistent: trains, but larger ones do too"
        if self.size.model == INFERRED_FROM:
            return "fitted: the largest that trains"
        return "reproduced with what is inferred"


def measured_columns(results: Results) -> list[Measured]:
    """The columns that were tried on a GPU, or in a rehearsal of it, in the order of Table 1."""
    fits = [fit for fit in recorded_fits(results, fidelity="measured") if _is_capped(fit)]
    sizes = {(size.model, size.name): size for size in table1()}
    columns = []
    for model in MODELS:
        for fit in fits:
            size = sizes.get((model, fit.column))
            if fit.model != model or size is None or not fit.fixed_size:
                continue
            searches = [
                other
                for other in fits
                if not other.fixed_size
                and (other.model, other.column, other.run.place)
                == (model, fit.column, fit.run.place)
            ]
            columns.append(Measured(size, fit, searches[0] if searches else None))
    return columns


def _is_capped(fit: Fit) -> bool:
    return fit.run.group.endswith(CAPPED)


def largest(columns: list[Measured]) -> Table:
    """Does the printed size train, and which is the largest that does?"""
    table_columns: list[Column[Measured]] = [
        Column(("", "model"), lambda line: plain(model_name(line.size.model))),
        Column(("", "column"), lambda line: plain(line.size.name)),
        Column(("printed size", "tried"), lambda line: plain(line.printed.size(line.printed.cut))),
        Column(("printed size", "measured"), lambda line: plain(_fate(line))),
        Column(("largest", "quoted"), lambda line: plain(_quoted(line))),
        Column(("largest", "measured"), lambda line: plain(_largest(line))),
        Column(("", "verdict"), lambda line: plain(line.verdict)),
    ]
    note = (
        "Each stage is a process whose allocator may hand out 8 GB (AmoebaNet-D, N=128) or 16 GiB "
        f"(Transformer, N=32) of a GPU, in float32; M={M} and {ACCOUNTINGS[OPTIMIZER]} of RMSProp "
        "are inferred from the Transformer's printed activations. The search is over D at the "
        "printed L (AmoebaNet-D) or over L; that of Naive-1 has a smaller N."
    )
    title = "Table 1 measured: the printed sizes, and the largest that train"
    return declared("table1_gpu", title, note, columns, table_columns, NAME)


def _quoted(line: Measured) -> str:
    """The printed parameters; nothing beside the small models of a rehearsal."""
    return EMPTY if line.rehearsal else as_printed(line.size)


def _fate(line: Measured) -> str:
    """`trains`, or `runs out: stage 1`."""
    if line.trained:
        return "trains"
    tried = [tried for tried in line.printed.tried if tried.status == "oom"]
    return f"runs out: {tried[0].reason.split(':')[0]}" if tried else EMPTY


def _largest(line: Measured) -> str:
    if line.search is None or line.search.largest is None:
        return EMPTY
    return f"{short(line.search.largest.parameters)}: {largest_size(line.search)}"


@dataclass(frozen=True)
class Peak:
    """Bytes of one stage while it trained."""

    column: Measured
    tried: Tried
    stage: int

    @property
    def counted(self) -> int:
        return self.tried.counted_bytes[self.stage]

    @property
    def allocated(self) -> int:
        """Tensors and kernels' workspace, as the allocator handed them out."""
        return (self.tried.peak_bytes or [])[self.stage]

    def of_allocator(self, kind: int) -> int:
        """Bytes of tensors (0), of these and workspace (1), reserved (2; on a GPU alone)."""
        of_stage = (self.tried.allocator_bytes or [[]] * (self.stage + 1))[self.stage]
        return of_stage[kind] if kind < len(of_stage) else 0


def memory(columns: list[Measured]) -> Table:
    """Counted bytes of each stage beside what the allocator says."""
    peaks = [
        Peak(column, tried, stage)
        for column in columns
        for tried in column.printed.tried
        if tried.peak_bytes
        for stage in range(len(tried.peak_bytes))
    ]
    table_columns: list[Column[Peak]] = [
        Column("model", lambda peak: plain(model_name(peak.column.size.model))),
        Column("column", lambda peak: plain(peak.column.size.name)),
        Column("stage", lambda peak: plain(peak.stage)),
        Column("counted", lambda peak: _amount(peak, peak.counted)),
        Column("tensors", lambda peak: _amount(peak, peak.of_allocator(0))),
        Column("allocated", lambda peak: _amount(peak, peak.allocated)),
        Column("reserved", lambda peak: _amount(peak, peak.of_allocator(2))),
        Column("counted over allocated", lambda peak: plain(number(_ratio(peak), 3))),
        Column("explained by", lambda peak: plain(_explanation(peak))),
    ]
    note = (
        "GB of AmoebaNet-D, GiB of the Transformer, at the printed sizes that train; in a "
        "rehearsal on a CPU, allocated are live tensors. What is allocated beyond tensors is "
        "kernels' workspace, and what is reserved beyond that are fragments."
    )
    title = "Table 1 measured: memory of each stage, counted and allocated"
    return declared("table1_gpu_memory", title, note, peaks, table_columns, NAME)


def _amount(peak: Peak, size: int) -> Cell:
    return amount(size / unit(peak.column.size.model)[1] if size else nan)


def _ratio(peak: Peak) -> float:
    return peak.counted / peak.allocated


def _explanation(peak: Peak) -> str:
    """Nothing where the count is near; else what it does not see, if that makes up for it."""
    if abs(_ratio(peak) - 1) <= EXPLAINED:
        return ""
    tensors = peak.of_allocator(0)
    if peak.allocated > tensors > 0 and abs(peak.counted / tensors - 1) <= EXPLAINED:
        return "workspace"
    return "not explained"


def printed_activations(columns: list[Measured]) -> Table:
    """Activations of all stages beside the printed ones."""
    lines = [
        (column, tried) for column in columns for tried in column.printed.tried if tried.peak_bytes
    ]
    table_columns: list[Column[tuple[Measured, Tried]]] = [
        Column("model", lambda line: plain(model_name(line[0].size.model))),
        Column("column", lambda line: plain(line[0].size.name)),
        Column("quoted", lambda line: _quoted_activations(line[0])),
        Column("counted", lambda line: _in_unit(line[0], activations(line[0].printed))),
        Column("measured", lambda line: _in_unit(line[0], _measured_activations(*line))),
    ]
    note = (
        "Sums over all stages, as Table 1 has them: GB of AmoebaNet-D, GiB of the Transformer. "
        "Measured is what the allocator handed out, without weights and optimizer state as counted."
    )
    title = "Table 1 measured: activations at the printed sizes"
    return declared("table1_gpu_activations", title, note, lines, table_columns, NAME)


def _quoted_activations(column: Measured) -> Cell:
    return amount(nan if column.rehearsal else column.size.peak_activation_gb)


def _in_unit(column: Measured, size: float) -> Cell:
    return amount(size / unit(column.size.model)[1])


def _measured_activations(column: Measured, tried: Tried) -> float:
    """Allocated bytes without those that count as parameters."""
    counted = sum(tried.counted_bytes)
    parameters = counted - activations(column.printed)
    return sum(tried.peak_bytes or []) - parameters
