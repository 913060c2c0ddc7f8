"""Table 3 of arXiv:1811.06965v5, throughput without fast links: quoted beside ours."""

from collections.abc import Mapping
from functools import partial
from math import inf, isnan, nan

from experiments.costs.error import error_bar, meaning, with_error
from experiments.table3.claims import evidence
from experiments.table3.figures import figures as figures
from experiments.table3.runs import DEVICE, NAME, M
from experiments.table3.series import (
    KS,
    Line,
    all_series,
    free_step,
    ideal,
    link_speed,
    over_free_link,
    quoted,
    runs_by_line,
    textbook,
    throttled,
    title_of,
)
from repro.claims.all_claims import verdict_on
from repro.claims.cells import CELL, throughput_id
from repro.claims.claim import Evidence
from repro.gpipe.partition.layer_costs import LinkSpeed
from repro.harness.results import Results, Run
from repro.harness.spec import RunSpec
from repro.report.compare import beside_paper, rows_of, speed_name, where
from repro.report.declared import Shown
from repro.report.grid import Cell, Column, Grid, amount, declared, plain, quotient, settings, share
from repro.report.ratio import NO_INTERVAL, over
from repro.report.rounds import costs, parts
from repro.report.style import model_name
from repro.report.table import EMPTY, Table

TOLERANCE = CELL  # of a ratio, for "reproduced" and "consistent"
STAGES: Column[Line] = Column("K", lambda line: plain(line.K))
SHOWN = Shown(
    "table3",
    (
        "model",
        "K",
        "quoted over K=2",
        "simulated over K=2",
        "simulated against quoted",
        "emulated over K=2",
        "verdict",
    ),
)


def tables(results: Results) -> list[Table]:
    if not rows_of(results, experiment=NAME):
        return []
    return [throughput(results), links(results), throttled_links(results)]


def answer(tables: Mapping[str, Table]) -> str:
    table = tables["table3"]
    images, text = ({"model": name, "K": "8"} for name in ("AmoebaNet-D", "Transformer"))
    return (
        "Over slow links K=8 has, simulated, "
        f"{table.number('simulated over K=2', **images)} times the throughput of K=2 for "
        f"AmoebaNet-D and {table.number('simulated over K=2', **text)} times for the Transformer; "
        f"the paper prints {table.text('quoted over K=2', **images)} and "
        f"{table.text('quoted over K=2', **text)}."
    )


def model_column(grid: Grid) -> Column[Line]:
    return Column("model", lambda line: plain(title_of(line.series, grid)))


def over_k2(results: Results, run: Run) -> Cell:
    """Throughput over that of K=2 with everything else equal, as Table 3 is divided."""
    return quotient(over(results, run, K=2))


def throughput(results: Results) -> Table:
    """Table 3, one line a model and K."""
    grid = runs_by_line(results)
    quoting = beside_paper(results, NAME)

    def printed(line: Line) -> Cell:
        value = quoted(line.series.model, line.K)
        return Cell(value, f"{value:g}")

    bar = error_bar(results)

    def ratio(line: Line, fidelity: str) -> Cell:
        cell = grid.cell(partial(over_k2, results), fidelity, *line)
        if fidelity != "simulated" or isnan(cell.value) or line.K == 2:
            return cell
        return with_error(cell.value, bar)

    def against(line: Line, fidelity: str) -> Cell:
        value, theirs = ratio(line, fidelity).value, quoted(line.series.model, line.K)
        off = value / theirs
        hidden = line.K == 2 or isnan(off) or line.series.scaled_down
        return Cell(off, EMPTY if hidden else f"{off - 1:+.1%}")

    columns = [model_column(grid), STAGES]
    if quoting:
        columns.append(Column(("quoted", "over K=2"), printed))
    for fidelity in ("simulated", "emulated", "measured"):
        if fidelity not in grid.fidelities:
            continue
        ends = ((fidelity, "low"), (fidelity, "high"))
        cell = partial(ratio, fidelity=fidelity)
        columns.append(Column((fidelity, "over K=2"), cell, ends=ends))
        if quoting:
            cell = partial(against, fidelity=fidelity)
            name, csv_name = (fidelity, "against quoted"), (fidelity, "over quoted")
            columns.append(Column(name, cell, csv=csv_name))
    if quoting:
        columns.append(Column(("", "verdict"), partial(_verdict, evidence(results))))
    columns.append(Column(("textbook", "over K=2"), lambda line: amount(textbook(line.K))))
    columns.append(Column(("ideal", "over K=2"), lambda line: amount(ideal(line.K))))
    note = (
        f"Throughput over that of K=2 at M={M}, the same N and re-materialization; simulated and "
        f"emulated on the device profile {DEVICE}{meaning(bar)}."
    )
    title = "Throughput without fast interconnect, normalised to K=2"
    if quoting:
        title = "Table 3 (v5 and NeurIPS): throughput without fast interconnect, normalised to K=2"
        note += (
            f" The tolerance is {TOLERANCE:.0%} of the quoted ratio; a measurement stands before a "
            "simulation."
        )
    lines = [Line(series, K) for series in all_series(grid) for K in KS]
    return declared("table3", title, note, lines, columns, NAME)


def _verdict(ours: Mapping[str, Evidence], line: Line) -> Cell:
    """The verdict on a cell of Table 3; none on K=2, by which the others are divided."""
    if line.K == 2 or line.series.scaled_down:
        return Cell("")
    identity = throughput_id(NAME, line.series.model, line.K, M)
    return plain(verdict_on(identity, ours.get(identity)))


def links(results: Results) -> Table:
    """What transfers take of the simulated step, and the step without them; the cut is kept."""
    grid = runs_by_line(results)
    lines = []
    for series in all_series(grid):
        for K in KS:
            run = grid.run("simulated", series, K)
            if run is not None and run.done:
                lines.append(Line(series, K))

    def simulated(line: Line) -> Run:
        return grid.runs["simulated", *line]

    def free_over_free(line: Line) -> Cell:
        base = grid.run("simulated", line.series, 2)
        seconds = nan if base is None or not base.done else free_step(base)
        return amount(seconds / free_step(simulated(line)))

    def simulated_over_k2(line: Line) -> Cell:
        return amount(over(results, simulated(line), K=2).value)

    def message_mib(line: Line) -> Cell:
        stages = costs(simulated(line))
        return Cell() if stages is None else amount(max(stages.activations) / 2**20)

    def message_over_forward(line: Line) -> Cell:
        stages = costs(simulated(line))
        if stages is None:
            return Cell()
        return amount(stages.link.seconds(int(max(stages.activations))) / max(stages.forward))

    columns: list[Column[Line]] = [
        model_column(grid),
        STAGES,
        Column(("step (ms)", "simulated"), lambda line: amount(1e3 * simulated(line).step_s, 1)),
        Column(
            ("transfer", "simulated"),
            lambda line: share(parts(simulated(line)).get("transfer", nan)),
        ),
        Column(
            ("free link", "step over step"),
            lambda line: amount(free_step(simulated(line)) / simulated(line).step_s, 3),
        ),
    ]
    if beside_paper(results, NAME):
        printed = ("over K=2", "quoted")
        columns.append(Column(printed, lambda line: amount(quoted(line.series.model, line.K))))
    columns += [
        Column(("over K=2", "simulated"), simulated_over_k2),
        Column(("over K=2", "free link"), free_over_free),
        Column(("message", "MiB"), message_mib),
        Column(("message", "time over F"), message_over_forward),
    ]
    note = (
        "Transfer is the share of K x step in which a stage waits for a message; a free link's "
        "messages take no time. Message is the largest between two stages, its time over F of the "
        "slowest stage: below 1 it can hide behind compute."
    )
    title = "Table 3, simulated: how much of the step the slow link is"
    return declared("table3_links", title, note, lines, columns, NAME)


def throttled_links(results: Results) -> Table:
    def message_ms(run: Run) -> Cell:
        size = message_bytes(run.spec)
        if isnan(size) or link_speed(run) == inf:
            return amount(nan)
        link = LinkSpeed(bytes_per_second=link_speed(run))
        return amount(1e3 * link.seconds(int(size)))

    columns: list[Column[Run]] = [
        Column("model", lambda run: plain(model_name(run.model))),
        Column("where", lambda run: plain(where(results, run))),
        Column("link", lambda run: plain(speed_name(link_speed(run)))),
        *settings(lambda run: run, "status"),
        Column("rounds", lambda run: plain(len(run.rounds))),
        Column("", lambda run: Cell(link_speed(run)), csv="bytes_per_second"),
        Column(("measured", "step (ms)"), lambda run: amount(1e3 * run.step_s, 1)),
        Column(
            ("measured", "transfer"),
            lambda run: share(parts(run).get("transfer", nan)),
        ),
        Column(("message", "KiB"), lambda run: amount(message_bytes(run.spec) / 1024, 0)),
        Column(("message", "ms on this link"), message_ms),
        Column(
            ("measured", "step over step"),
            lambda run: quotient(over_free_link(results, run)),
            ends=(("measured", "step over step: low"), ("measured", "step over step: high")),
        ),
    ]
    note = (
        "Scaled-down models on CPU processes, which show a trend. Step over step is over the run "
        f"of the same round whose link is not throttled, with its bootstrap 95 % interval "
        f"({NO_INTERVAL}; ~ where it spans 1)."
    )
    title = "Table 3, measured small: K=2 with a link throttled to several speeds"
    return declared("table3_throttled", title, note, throttled(results), columns, NAME)


def message_bytes(spec: RunSpec) -> float:
    """Bytes of one micro-batch of float32 between stages; NaN where the cut decides (AmoebaNet)."""
    if spec.model != "transformer" or not {"T", "d"} <= spec.model_args.keys():
        return nan
    return 4.0 * spec.N / spec.M * spec.model_args["T"] * spec.model_args["d"]
