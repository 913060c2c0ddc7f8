"""Is the simulator right? Simulated steps over measured and emulated ones of the same rounds: a table and a figure.

A simulated step has its costs from layers that were timed in the same round, alone and on all
processes at once, and its cut from the run that it is held against; nothing is fitted to a step.
"""

import statistics
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from math import isnan, nan
from typing import TYPE_CHECKING, Any

from experiments.simulator.runs import NAME
from repro.gpipe.schedule.timeline import Timeline
from repro.harness.results import Results, Run
from repro.harness.schema import CalibrateRound
from repro.harness.statistics import interval
from repro.report import grid as shown
from repro.report.compare import matching, rows_of, where
from repro.report.grid import Column, amount, declared, estimate, plain, settings, spread
from repro.report.ratio import NO_INTERVAL
from repro.report.style import FIDELITIES, MARKERS, THEORY, in_pairs, model_name, ticks
from repro.report.table import Table
from repro.simulate import Calibration, settle, simulate

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from repro.harness.spec import RunSpec

GOAL, GOAL_KNOWN = 7.0, 1.5  # percent: with layers timed here, and with stages of known duration
WAYS = ("mixed", "together", "alone")  # how the layers' seconds are had; of known durations none
_PARTS = ("F", "R", "B", "rest")
_TITLE = "Is the simulator right? Simulated steps over measured and emulated ones"
_NOTE = (
    "Error: the simulated step over the measured, or emulated, one of the same round, minus 1; "
    f"median over rounds, [low, high]: bootstrap 95 % interval, {NO_INTERVAL}. Simulated: the "
    "run's schedule and cut on a virtual clock. Its layers take what they took in that round, "
    "timed together (on K processes at once), alone (in turn), or mixed: between the two by the "
    "part of the other stages that computes meanwhile, found on the simulated step itself in "
    "three iterations. Nothing is fitted to a measured step. Stages that wait have known "
    "durations. Parts: the newest round's error with its share in work of each kind, simulated "
    "minus measured busy time over K x measured step; rest: idle time, update and set-up. "
)

_ASIDE = 0.22  # of a category: the cross stands so far to the right, the rounds so far to the left
CAPTION = (
    "Error of the simulated step over the measured one of the same round (simulated): faint dots "
    "are single rounds, a triangle is their median with its bootstrap 95 % interval, "
    f"{NO_INTERVAL}. A cross: the median with layers timed on all processes at once only."
)
FOLDED = ("simulator_points*",)


@dataclass(frozen=True)
class Cell:
    """One run that the simulator is judged on.

    Attributes:
        row: the run.
        errors: way -> simulated over real minus 1, in percent, of every round that has both.
        simulated_s: the simulated step of the way that counts: median over these rounds.
        parts: F, R, B, rest -> what it adds to the error of the newest round, in percent; empty
            without a timeline.
    """

    row: Run
    errors: dict[str, list[float]]
    simulated_s: float
    parts: dict[str, float]

    @property
    def counts(self) -> str:
        """The way that the goal is for: mixed, where layers were timed alone too."""
        return next((way for way in ("known", *WAYS) if self.errors.get(way)), "")

    @property
    def error(self) -> tuple[float, float, float]:
        """Median and interval of the way that counts."""
        return interval(self.errors.get(self.counts, []))

    @property
    def name(self) -> str:
        """For readers."""
        model = model_name(self.row.model) if self.counts != "known" else "known durations"
        return f"{model}, K={self.row.K}, M={self.row.M}"


def cells(results: Results) -> list[Cell]:
    """The measured and emulated runs of the experiment, done or not."""
    found = [
        _cell(results, row)
        for row in rows_of(results, experiment=NAME)
        if row.spec.task == "train" and row.fidelity != "simulated"
    ]
    return sorted(
        found,
        key=lambda cell: (cell.row.fidelity != "measured", cell.row.model, cell.row.M),
    )


def _cell(results: Results, row: Run) -> Cell:
    """One run beside what was timed, or simulated, in its rounds."""
    group = matching(results.runs, place=row.place, group=row.group)
    lines = [line for other in group for line in other.rounds]
    spec = row.spec
    errors: dict[str, list[float]] = {}
    steps: list[float] = []
    last: Timeline | None = None
    for line in row.rounds:
        others = [other.record for other in lines if other.name == line.name]
        if row.fidelity == "emulated":
            found = dict(
                [("known", other.step_s) for other in lines if other.modelled][:1]
            )  # in any round the same
        else:
            timed = next((r.calibration for r in others if isinstance(r, CalibrateRound)), None)
            drawn = {}
            if timed is not None:
                calibration = Calibration.from_plain(timed.model_dump())
                drawn = simulated(calibration, spec, row.balance)
            found = {way: timeline.step_time for way, timeline in drawn.items()}
            last = next(iter(drawn.values()), None)
        for way, seconds in found.items():
            errors.setdefault(way, []).append(100 * (seconds / line.step_s - 1))
        steps += [*found.values()][:1]
    real = results.timeline(row) if last else None
    parts = split(real, last) if real and last else {}
    return Cell(row, errors, statistics.median(steps) if steps else nan, parts)


def simulated(
    calibration: Calibration, spec: "RunSpec", balance: tuple[int, ...]
) -> dict[str, Timeline]:
    """A step with each way to have its costs, the one that counts first; together alone where no other was timed."""
    schedule = spec.make_schedule()
    examples = spec.N // spec.M

    def costs(source: Calibration, together: Any = None) -> Any:
        return source.stages(balance, examples, spec.checkpoint, together)

    found = {"together": simulate(schedule, costs(calibration))}
    if calibration.alone is not None:
        F, R, B = calibration.alone
        alone = replace(calibration, forward=F, recompute=R, backward=B, alone=None)
        mixed = settle(schedule, lambda together: costs(calibration, together))
        found = {
            "mixed": simulate(schedule, mixed),
            **found,
            "alone": simulate(schedule, costs(alone)),
        }
    return found


def split(real: Timeline, drawn: Timeline) -> dict[str, float]:
    """The error of a simulated step by kind of work, in percent; the parts add up to it."""
    whole = real.stages * real.step_time
    parts = {kind: 100 * (drawn.busy(kinds=kind) - real.busy(kinds=kind)) / whole for kind in "FRB"}
    return parts | {"rest": 100 * (drawn.step_time / real.step_time - 1) - sum(parts.values())}


def tables(results: Results) -> list[Table]:
    """The table, with status words where runs are missing; none if the experiment was never planned."""

    def rounds(cell: Cell) -> shown.Cell:
        judged, status = len(cell.errors.get(cell.counts, [])), cell.row.status
        return plain(judged or (status if status != "done" else "no calibration"))

    def step(cell: Cell, name: str) -> shown.Cell:
        own = cell.row.step_s if cell.row.fidelity == name else nan
        return amount(1e3 * (cell.simulated_s if name == "simulated" else own), 1)

    def error(cell: Cell, way: str) -> shown.Cell:
        return estimate(interval(cell.errors.get(way, [])), "+.1f")

    def part_of(cell: Cell, part: str) -> shown.Cell:
        return estimate((cell.parts.get(part, nan), nan, nan), "+.1f")

    def model(cell: Cell) -> str:
        return model_name(cell.row.model) if cell.row.fidelity == "measured" else "known durations"

    columns: list[Column[Cell]] = [
        Column("where", lambda cell: plain(where(results, cell.row))),
        Column("model", lambda cell: plain(model(cell))),
        *settings(lambda cell: cell.row, "K", "M", "N"),
        Column("rounds", rounds),
        *(
            Column(("step (ms)", name), partial(step, name=name))
            for name in ("measured", "emulated", "simulated")
        ),
        spread(("error over emulated (%)", "known"), partial(error, way="known")),
        *(spread(("error over measured (%)", way), partial(error, way=way)) for way in WAYS),
        *(Column(("parts (%)", part), partial(part_of, part=part)) for part in _PARTS),
    ]
    found = cells(results)
    note = _NOTE + " ".join([*_medians(results, found), *_worst(found)])
    return [declared(NAME, _TITLE, note, found, columns, NAME)] if found else []


def _medians(results: Results, found: list[Cell]) -> list[str]:
    """How near the goals are, for each place."""
    said = []
    places = dict.fromkeys(where(results, cell.row) for cell in found)
    for place in places:
        here = [cell for cell in found if where(results, cell.row) == place]
        prefix = f"{place}: " if len(places) > 1 else ""
        judged = [cell for cell in here if cell.counts not in ("", "known")]
        if judged:
            ways = [
                f"{way} {_typical(judged, way):.1f} %"
                for way in WAYS
                if not isnan(_typical(judged, way))
            ]
            typical = statistics.median(abs(cell.error[0]) for cell in judged)
            single = statistics.median(
                abs(e) for cell in judged for e in cell.errors[judged[0].counts]
            )
            verdict = "reached" if max(typical, single) <= GOAL else "reached by medians alone"
            verdict = "missed" if typical > GOAL else verdict
            inside = sum(abs(cell.error[0]) <= GOAL for cell in judged)
            said.append(
                f"{prefix}Median of |error| over {len(judged)} measured cells: {', '.join(ways)}; "
                f"the goal of {GOAL:g} % is {verdict} ({judged[0].counts}), {inside} of "
                f"{len(judged)} cells are within it; in a single round the median is {single:.1f} "
                "%, so much do steps of one run differ."
            )
        known = [abs(cell.error[0]) for cell in here if cell.counts == "known"]
        if known:
            verdict = "reached" if max(known) <= GOAL_KNOWN else "missed"
            said.append(
                f"{prefix}Known durations: |error| {max(known):.2f} %, the goal of {GOAL_KNOWN:g} "
                f"% is {verdict}."
            )
    return said


def _typical(judged: list[Cell], way: str) -> float:
    """Median over cells of the size of their error."""
    known = [abs(statistics.median(cell.errors[way])) for cell in judged if cell.errors.get(way)]
    return statistics.median(known) if known else nan


def _worst(found: list[Cell]) -> list[str]:
    """The cell that is furthest off, and where that sits, which is all that is known of it."""
    judged = [cell for cell in found if cell.counts not in ("", "known") and cell.parts]
    if not judged:
        return []
    cell = max(judged, key=lambda cell: abs(cell.error[0]))
    part = max(_PARTS, key=lambda part: abs(cell.parts[part]))
    words = "idle time, update and set-up" if part == "rest" else f"the time of {part}"
    return [
        f"Furthest off: {cell.name}, {cell.error[0]:+.1f} %; in its newest round "
        f"{sum(cell.parts.values()):+.1f} %, most of it in {words} ({cell.parts[part]:+.1f} %)."
    ]


def figures(results: Results, rows: list[Run]) -> "Iterator[tuple[str, Figure | None, str]]":
    """The one that there is, with its caption."""
    yield "error", figure(results, rows), CAPTION


def figure(results: Results, rows: list[Run]) -> "Figure | None":
    """One panel a model and place, a category an M; measured cells alone."""
    runs = {(row.place, row.id) for row in rows}
    panels: dict[str, list[Cell]] = {}
    for cell in cells(results):
        row = cell.row
        if cell.counts not in ("", "known") and (row.place, row.id) in runs:
            panels.setdefault(
                f"{model_name(row.model)}, K={row.K} ({where(results, row)})", []
            ).append(cell)
    if not panels:
        return None
    drawn, every = in_pairs(len(panels), 3.4)
    for axes, (title, some) in zip(every, panels.items(), strict=True):
        _panel(axes, title, some)
    bounds = [axes.get_ylim() for axes in every]
    for axes in every:
        axes.set_ylim(min(low for low, _ in bounds), max(high for _, high in bounds))
    handles, labels = every[0].get_legend_handles_labels()
    drawn.legend(handles, labels, loc="outside lower center", ncols=len(labels))
    return drawn


def _panel(axes: "Axes", title: str, some: list[Cell]) -> None:
    colour = FIDELITIES["simulated"]
    axes.axhspan(
        -GOAL, GOAL, color="#DDDDDD", alpha=0.6, linewidth=0, label=f"goal: within {GOAL:g} %"
    )
    axes.axhline(0, color=THEORY, linewidth=0.8)
    rounds = [
        (at - _ASIDE, error) for at, cell in enumerate(some) for error in cell.errors[cell.counts]
    ]
    axes.plot(
        *zip(*rounds, strict=True),
        "o",
        ms=4,
        mec="none",
        color="#444444",
        alpha=0.35,
        label="a round",
    )
    spreads = [cell.error for cell in some]
    bars = [
        [0.0 if isnan(spread[k]) else abs(spread[0] - spread[k]) for spread in spreads]
        for k in (1, 2)
    ]
    look = {"fmt": MARKERS["simulated"], "color": colour, "elinewidth": 1.4, "capsize": 3}
    axes.errorbar(
        range(len(some)),
        [spread[0] for spread in spreads],
        bars,
        label="median, 95 % interval",
        **look,
    )
    before = [
        (n + _ASIDE, statistics.median(c.errors["together"]))
        for n, c in enumerate(some)
        if c.counts == "mixed"
    ]
    if before:
        axes.plot(
            *zip(*before, strict=True), "x", color="#444444", label="layers timed together only"
        )
    ticks(axes, list(range(len(some))), [str(cell.row.M) for cell in some])
    axes.set_xlim(-0.6, len(some) - 0.4)
    axes.grid(axis="x", visible=False)
    axes.set(title=title, xlabel="M micro-batches", ylabel="simulated over measured,\nminus 1 (%)")
