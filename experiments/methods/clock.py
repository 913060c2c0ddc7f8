"""The pipeline schedules on one clock: idle time and memory."""

from collections.abc import Callable

from experiments.methods.recorded import kept_micro_batches, method_of
from experiments.methods.runs import (
    NAME,
    PAPER_SIZE,
    PIPELINES,
    PROFILE,
    SCHEDULES,
    SIMULATED_M,
    K,
)
from repro.gpipe.schedule.kinds import make_schedule
from repro.harness.results import Results, Run
from repro.paper import theory
from repro.report.compare import rows_of
from repro.report.grid import Cell, Column, Grid, amount, declared, plain, share
from repro.report.table import Table, memory


def _idle_by_formula(name: str) -> float:
    """Idle/total of equal ranks with F:B = 1:2 and free messages, without recomputation."""
    formulas: dict[str, float] = {
        "naive": 1 - 1 / K,
        # Each of a rank's two stages takes half as long (arXiv:2104.04473, section 2.2).
        "interleaved": (K - 1) / (2 * SIMULATED_M + K - 1),
        # F, I and W take equally long (arXiv:2401.10241, Table 2).
        "zero-bubble": (K - 1) / (3 * SIMULATED_M + K - 1),
    }
    return formulas.get(name, theory.bubble_over_total(K, SIMULATED_M))


def schedules(results: Results) -> Table:
    rows = rows_of(results, experiment=NAME, group=SCHEDULES, M=SIMULATED_M)
    equal = Grid.of(rows, lambda run: (method_of(run), run.remat))
    full = Grid.of(
        rows_of(results, experiment=NAME, group=PAPER_SIZE),
        lambda run: (method_of(run), run.remat),
    )

    def idle(name: str) -> Cell:
        return equal.cell(lambda run: share(run.bubble_idle_over_total), "simulated", name, "never")

    def kept(name: str) -> Cell:
        run = equal.run("simulated", name, "never")
        if run is None:
            return Cell()
        spec = run.spec
        per_rank = spec.stages_per_rank or 1
        schedule = make_schedule(spec.schedule, K * per_rank, spec.M, "never", per_rank)
        return amount(kept_micro_batches(schedule), 1)

    def at_full_size(cell: Callable[[Run], Cell], remat: str) -> Callable[[str], Cell]:
        return lambda name: full.cell(cell, "simulated", name, remat)

    def seconds(run: Run) -> Cell:
        return amount(run.step_s)

    def peak(run: Run) -> Cell:
        return Cell(run.peak_gib_max, memory(run.peak_gib_max))

    columns: list[Column[str]] = [
        Column("schedule", plain),
        Column(("idle/total", "arithmetic"), lambda name: share(_idle_by_formula(name))),
        Column(("idle/total", "simulated"), idle),
        Column(("micro-batches kept", "counted"), kept),
        Column(("step (s), simulated", "no recompute"), at_full_size(seconds, "never")),
        Column(("step (s), simulated", "recomputed"), at_full_size(seconds, "always")),
        Column(("peak memory, counted", "no recompute"), at_full_size(peak, "never")),
        Column(("peak memory, counted", "recomputed"), at_full_size(peak, "always")),
    ]
    note = (
        f"K={K}, M={SIMULATED_M}; idle time is that of equal stages with F:B = 1:2, without "
        f"recomputation. Steps and memory, of the fullest rank, are those of Table 2's Transformer "
        f"with N={2 * SIMULATED_M} and Adam on {PROFILE}."
    )
    title = "Which schedule idles least, and what memory does it take?"
    names = PIPELINES if rows else ()
    return declared("methods_schedules", title, note, names, columns, NAME)
