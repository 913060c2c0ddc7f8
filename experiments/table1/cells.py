"""Behind Table 1: the paper's sizes, what is not printed varied, what was trained, an allocator."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from experiments.table1.fits import (
    Fit,
    activations,
    as_printed,
    largest_size,
    memory_text,
    recorded_fits,
    short,
    times,
)
from experiments.table1.runs import MEMORY, NAME
from repro.harness.results import Results
from repro.harness.schema import Tried
from repro.harness.spec import UNLIMITED_MEMORY
from repro.paper import Size, table1, torchgpipe
from repro.report.grid import Cell, Column, declared, plain
from repro.report.style import model_name
from repro.report.table import EMPTY, Table, number, percent

MIB = 2**20


def printed(results: Results) -> Table:
    """The paper's own sizes: what they take by our count, beside torchgpipe's measurement."""
    fits = [
        fit
        for fit in recorded_fits(results, fidelity="counted")
        if fit.fixed_size and fit.spec.memory != UNLIMITED_MEMORY
    ]
    columns: list[Column[Fit]] = [
        *HEAD,
        Column("size", lambda fit: plain(fit.size(fit.cut))),
        Column("M", lambda fit: plain(fit.spec.M)),
        Column("parameters, quoted", lambda fit: plain(as_printed(_printed_size(fit)))),
        Column("counted", lambda fit: plain(f"{fit.cut.parameters:,}")),
        Column("peak activations, quoted", _quoted_activations),
        Column("peak activations, counted", lambda fit: _bytes(fit, activations(fit.cut))),
        Column("torchgpipe, quoted", _torchgpipe_activations),
        Column("fullest stage, counted", lambda fit: _bytes(fit, max(_totals(fit)))),
        Column("emptiest", lambda fit: _bytes(fit, min(_totals(fit)))),
        Column("of the memory", lambda fit: plain(percent(fit.share))),
    ]
    note = (
        "Each of the paper's sizes, counted at its N; activations are of all stages together. "
        "torchgpipe's are of its own cell, M=128, read from its allocator's cache on Tesla P40s, "
        "which keeps more than tensors take."
    )
    return declared("table1_printed", "The paper's sizes, counted", note, fits, columns, NAME)


HEAD: list[Column[Fit]] = [
    Column("model", lambda fit: plain(model_name(fit.model))),
    Column("column", lambda fit: plain(fit.column)),
]


def _printed_size(fit: Fit) -> Size | None:
    sizes = {(size.model, size.name): size for size in table1()}
    return sizes.get((fit.model, fit.column))


def _quoted_activations(fit: Fit) -> Cell:
    size = _printed_size(fit)
    return plain(f"{size.peak_activation_gb:g}" if size else EMPTY)


def _torchgpipe_activations(fit: Fit) -> Cell:
    """Of the cells that torchgpipe measured too: AmoebaNet-D with one example a micro-batch."""
    if fit.model != "amoebanet-d":
        return plain(EMPTY)
    if fit.naive:
        return plain("out of memory")
    if fit.spec.M != fit.spec.N:
        return plain(EMPTY)
    for peer in torchgpipe("amoebanetd_memory"):
        gib = peer.values["peak_activation_gib"]
        if peer.name.split()[0] == f"pipeline-{fit.spec.K}" and gib is not None:
            return plain(f"{gib:g} GiB")
    return plain(EMPTY)


def _bytes(fit: Fit, size: int) -> Cell:
    return plain(memory_text(fit.model, size))


def _totals(fit: Fit) -> list[int]:
    return [stage.total for stage in fit.cut.stages]


@dataclass(frozen=True)
class Varied:
    """The largest models in one setting that the paper does not print."""

    model: str
    setting: str
    sizes: Mapping[int, str]  # by K


def varied(results: Results) -> Table:
    """The largest model against what is not printed: M, attention, N of Naive-1."""
    sizes: dict[tuple[str, str], dict[int, str]] = {}
    for fit in recorded_fits(results, fidelity="counted"):
        if fit.fixed_size or set(fit.spec.model_args) - {"attention"}:
            continue
        text = largest_size(fit)
        if fit.largest:
            text += f": {short(fit.largest.parameters)}"
        sizes.setdefault((fit.model, _setting(fit)), {})[fit.spec.K] = text
    lines = [Varied(model, setting, by_k) for (model, setting), by_k in sizes.items()]
    columns: list[Column[Varied]] = [
        Column("model", lambda line: plain(model_name(line.model))),
        Column("setting", lambda line: plain(line.setting)),
    ]
    Ks = dict.fromkeys(K for line in lines for K in line.sizes)
    columns += [Column(f"K={K}", partial(_varied_size, K)) for K in Ks]
    note = (
        "Counted on 8 GB (AmoebaNet-D) and 16 GiB (Transformer; decimal: 16 GB) a stage, all but "
        "Naive-1 with re-materialization."
    )
    title = "The largest model against what the paper does not print"
    return declared("table1_varied", title, note, lines, columns, NAME)


def _varied_size(K: int, line: Varied) -> Cell:
    return plain(line.sizes.get(K, EMPTY))


def _setting(fit: Fit) -> str:
    """`N=32, M=16`, `N=32, Naive-1, fused attention`."""
    parts = [f"N={fit.spec.N}", "Naive-1" if fit.naive else f"M={fit.spec.M}"]
    if "attention" in fit.spec.model_args:
        parts.append(f"{fit.spec.model_args['attention']} attention")
    if fit.spec.memory != MEMORY[fit.model]:
        parts.append("decimal GB")
    return ", ".join(parts)


def measured_small(results: Results) -> Table:
    """What really trained within a limit, and what did not."""
    fits = [fit for fit in recorded_fits(results, fidelity="measured") if not fit.fixed_size]
    naives = {(fit.model, fit.run.scale): fit for fit in fits if fit.naive}

    def scale_up(fit: Fit) -> Cell:
        return plain(times(fit, naives.get((fit.model, fit.run.scale))))

    columns: list[Column[Fit]] = [
        *HEAD,
        Column("scale", lambda fit: plain(fit.run.scale)),
        Column("limit", lambda fit: plain(f"{(fit.spec.memory or 0) / MIB:,.0f} MiB")),
        Column("N", lambda fit: plain(fit.spec.N)),
        Column("M", lambda fit: plain(fit.spec.M)),
        Column("counted", lambda fit: plain(fit.size(fit.counted) if fit.counted else "none")),
        Column("measured", lambda fit: plain(largest_size(fit))),
        Column("scale-up", scale_up),
        Column("measured peaks, MiB", _measured_peaks),
        Column("measured over counted", _measured_over_counted),
        Column("next size", _next_size),
    ]
    note = (
        "Each size was trained for two steps by K processes, each within the limit: on live "
        "tensors on a CPU, on the allocator on a GPU. The next size ran out of memory on the stage "
        "that is named; measured over counted is of the fullest stage."
    )
    return declared("table1_here", "Table 1 measured small", note, fits, columns, NAME)


def _trained_largest(fit: Fit) -> Tried | None:
    for tried in fit.tried:
        if fit.largest and tried.args == fit.largest.args:
            return tried
    return None


def _measured_peaks(fit: Fit) -> Cell:
    trained = _trained_largest(fit)
    if trained is None or not trained.peak_bytes:
        return plain(EMPTY)
    return plain(" ".join(f"{peak / MIB:.1f}" for peak in trained.peak_bytes))


def _measured_over_counted(fit: Fit) -> Cell:
    trained = _trained_largest(fit)
    if trained is None or not trained.peak_bytes:
        return plain(EMPTY)
    return plain(number(max(trained.peak_bytes) / max(trained.counted_bytes), 3))


def _next_size(fit: Fit) -> Cell:
    """`L=18: stage 1`, the stage that ran out of memory."""
    for tried in fit.tried:
        if tried.status == "oom" and fit.next and tried.args == fit.next.args:
            return plain(f"{fit.size(fit.next)}: {tried.reason.split(':')[0]}")
    return plain(EMPTY)


@dataclass(frozen=True)
class Checked:
    """Bytes of one stage of one run, counted and by the allocator's events."""

    fit: Fit
    stage: int
    counted: int
    tensors: int
    with_workspace: int


def allocator_check(results: Results) -> Table:
    """Counted memory of each stage against what the allocator's own events say."""
    lines = []
    for fit in recorded_fits(results, fidelity="measured", memory=UNLIMITED_MEMORY):
        for tried in fit.tried:
            pairs = zip(tried.counted_bytes, tried.allocator_bytes or [], strict=False)
            for stage, (counted, (tensors, with_workspace)) in enumerate(pairs):
                lines.append(Checked(fit, stage, counted, tensors, with_workspace))
    columns: list[Column[Checked]] = [
        Column("model", lambda line: plain(model_name(line.fit.model))),
        Column("K", lambda line: plain(line.fit.spec.K)),
        Column("M", lambda line: plain(line.fit.spec.M)),
        Column("checkpoint", lambda line: plain(line.fit.spec.checkpoint)),
        Column("stage", lambda line: plain(line.stage)),
        Column("counted, KiB", lambda line: _kib(line.counted)),
        Column("measured, KiB", lambda line: _kib(line.tensors)),
        Column("kernels' workspace, KiB", lambda line: _kib(line.with_workspace - line.tensors)),
        Column("counted over measured", lambda line: plain(number(line.counted / line.tensors, 4))),
    ]
    note = (
        "Small models, N=8, trained by K processes. Measured: the peak of live tensor bytes from "
        "torch.profiler's memory events; how much higher it is with the memory that kernels take "
        "inside one operator, which counting does not see, is their workspace."
    )
    title = "Counted memory against the allocator's events"
    return declared("table1_check", title, note, lines, columns, NAME)


def _kib(size: int) -> Cell:
    return plain(f"{size / 1024:,.1f}")
