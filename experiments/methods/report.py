"""The methods side by side: what each gives and costs, beside one device and beside GPipe."""

from collections.abc import Mapping
from functools import partial
from math import isnan, nan
from typing import Any

from experiments.methods.clock import schedules
from experiments.methods.figures import figures as figures
from experiments.methods.recompute import recomputation
from experiments.methods.recorded import (
    Compared,
    compared,
    label_of,
    losses,
    method_of,
    sent_bytes,
    staleness,
    stashed_bytes,
)
from experiments.methods.runs import (
    COUNTED_DEVICES,
    COUNTED_N,
    COUNTED_T,
    COUNTED_V,
    DEEP,
    NAME,
    SHAPES,
    WORK,
    shallow,
)
from experiments.methods.volume import (
    sent_by_pipeline,
    sent_by_replicas,
    sent_by_tensor_parallel,
)
from repro.harness.results import Results, Run
from repro.report.compare import rows_of, where
from repro.report.declared import Shown
from repro.report.grid import (
    Cell,
    Column,
    amount,
    declared,
    place_column,
    plain,
    quotient,
    share,
    spread,
    status_of,
)
from repro.report.ratio import MARKS
from repro.report.style import model_name
from repro.report.table import Table, memory

MIB, GIB = 2**20, 2**30
SHOWN = Shown(
    NAME,
    (
        "model",
        "method",
        "throughput over one device, measured",
        "peak MiB measured",
        "sent MiB measured",
        "idle/total measured",
        "updates late",
    ),
    figure="methods_schedules",
    lines={"model": ("Transformer",)},
)


def tables(results: Results) -> list[Table]:
    if not rows_of(results, experiment=NAME):
        return []
    return [side_by_side(results), shapes(results), recomputation(results), schedules(results)]


def answer(tables: Mapping[str, Table]) -> str:
    gpipe, naive, data = (
        tables[NAME].text(
            "throughput over one device, measured", model="Transformer", method=method
        )
        for method in ("gpipe", "naive", "data")
    )
    return (
        f"Without recomputation, GPipe on two devices has {gpipe} times the throughput of one, "
        f"naive model parallelism {naive} and data parallelism {data} (measured, Transformer)."
    )


def throughput(results: Results, line: Compared) -> Cell:
    """Throughput over that of one device; without it, why there is none."""
    if line.run.spec.shared and line.run.done:
        return Cell(text="not timed")
    ratio = line.ratio(results)
    return Cell(text=status_of(line.run)) if isnan(ratio.value) else quotient(ratio)


def sent(run: Run) -> Cell:
    """MiB that the process which sends most sends in a step."""
    return amount(sent_bytes(run) / MIB)


def side_by_side(results: Results) -> Table:
    lines = [line for group in WORK for line in compared(results, group)]

    def oldest(line: Compared) -> Cell:
        late = staleness(line.run)
        if late:
            return Cell(max(late), f"{max(late)}, {memory(stashed_bytes(line.run) / GIB)} stashed")
        synchronous = line.run.library != "pipedream"
        return plain("none") if synchronous and line.run.done else Cell()

    def last_loss(line: Compared) -> Cell:
        values = losses(line.run)
        return amount(values[-1], 5) if values else Cell()

    columns: list[Column[Compared]] = [
        *place_column(lines, lambda line: where(results, line.run)),
        Column("model", lambda line: plain(model_name(line.run.model))),
        Column("method", lambda line: plain(label_of(line.run))),
        Column("devices", lambda line: plain(line.run.spec.devices)),
        spread(("throughput", "over one device, measured"), partial(throughput, results)),
        Column(("peak MiB", "measured"), lambda line: amount(1024 * line.run.peak_gib_max, 1)),
        Column(("sent MiB", "measured"), lambda line: sent(line.run)),
        Column(("idle/total", "measured"), lambda line: share(line.run.bubble_idle_over_total)),
        Column("updates late", oldest),
        Column(("loss", "measured"), last_loss),
    ]
    shared = ""
    if any(line.run.spec.shared for line in lines):
        shared = " Not timed: four processes share the cores."
    note = (
        "One device is single without recomputation, in the same round; memory and sent bytes are "
        f"of the device with most of them, the loss of the last step.{shared} {MARKS}"
    )
    title = "What does each method give and cost on the same work?"
    return declared(NAME, title, note, lines, columns, NAME)


def shapes(results: Results) -> Table:
    """Deep and narrow against shallow and wide."""
    lines = [line for line in compared(results, SHAPES) if method_of(line.run) != "single"]

    def shape(line: Compared) -> Cell:
        args = line.run.spec.model_args
        return plain(f"L={args['L']}, d={args['d']}")

    def counted(line: Compared) -> Cell:
        spec = line.run.spec
        T, V = spec.model_args.get("T", COUNTED_T), spec.model_args.get("V", COUNTED_V)
        size = _volume(method_of(line.run), spec.model_args, spec.N, T, V, spec.devices)
        return amount(size / MIB)

    def at_full_size(line: Compared) -> Cell:
        args = deep if line.run.spec.model_args["L"] in numbers_of_blocks else wide
        method = method_of(line.run)
        size = _volume(method, args, COUNTED_N, COUNTED_T, COUNTED_V, COUNTED_DEVICES)
        return amount(size / GIB)

    deep = DEEP["paper"]
    wide = shallow(deep)
    numbers_of_blocks = {args["L"] for args in DEEP.values()}
    columns: list[Column[Compared]] = [
        *place_column(lines, lambda line: where(results, line.run)),
        Column("Transformer", shape),
        Column("method", lambda line: plain(method_of(line.run))),
        spread(("throughput", "over one device, measured"), partial(throughput, results)),
        Column(("sent MiB", "measured"), lambda line: sent(line.run)),
        Column(("sent MiB", "counted"), counted),
        Column(("sent GiB at full size", "counted"), at_full_size),
    ]
    note = (
        "Both shapes have the same number of weights in their blocks; one device is that of the "
        f"same shape. Full size: {COUNTED_DEVICES} devices, N={COUNTED_N}, T={COUNTED_T}, and "
        f"L={deep['L']}, d={deep['d']} against L={wide['L']}, d={wide['d']}. {MARKS}"
    )
    title = "What must a device send for a deep, narrow model, and what for a shallow, wide one?"
    return declared("methods_shapes", title, note, lines, columns, NAME)


def _volume(method: str, args: dict[str, Any], N: int, T: int, V: int, devices: int) -> float:
    """Bytes that a device sends in a step; NaN for a method without a rule."""
    if method == "gpipe":
        return sent_by_pipeline(args, N, T, devices)
    if method == "tensor":
        return sent_by_tensor_parallel(args, N, T, devices)
    return sent_by_replicas(args, V, devices) if method == "data" else nan
