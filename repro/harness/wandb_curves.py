"""What the runs of an experiment show against K and against M: the lines of W&B's line plots.

The mirror logs these lines, and `repro dashboard` builds its panels from them, so both use the same
names. A name is `<quantity>_by_<axis>/<experiment>/<line>`: `bubble_by_M/table2/mlp_emulated_K4`.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from repro.harness.results import Place, Results, Run
from repro.harness.spec import TIMED, canonical
from repro.harness.wandb_mirror import name_part

Axis = Literal["K", "M"]
AXES: tuple[Axis, ...] = ("K", "M")


class Quantity(NamedTuple):
    """What is drawn: the column of a run's row, and what a reader calls it."""

    column: str
    title: str


QUANTITIES = {
    "speedup": Quantity("speedup_vs_k1", "speedup over K=1"),
    "throughput": Quantity("speedup_vs_k2m1", "throughput over K=2, M=1"),
    "bubble": Quantity("bubble_idle_over_total", "bubble (idle share of K x step)"),
    "memory": Quantity("peak_gib_max", "peak memory of the fullest stage (GiB)"),
}
# How a step was taken, which tells no two lines apart. A given balance fits one K alone.
_NO_SETTING = {"balance", "stretch", "steps", "warmup", "model_args"}
_LONGEST_PART = 32  # characters of one setting in the name of a line


@dataclass(frozen=True)
class Curve:
    """One line: a quantity of runs that differ in K alone, or in M alone.

    Attributes:
        quantity: a key of `QUANTITIES`.
        axis: what the runs differ in.
        experiment: that they belong to.
        model: that they compute; empty for the paper's formula.
        fidelity: how the numbers are known.
        group: that the runs belong to; empty for the formula.
        fixed: what the runs have in common besides, `K4`.
        line: what tells the line from others, `mlp_emulated_K4`.
        points: K or M -> value of the quantity, the smallest K or M first.
    """

    quantity: str
    axis: Axis
    experiment: str
    model: str
    fidelity: str
    group: str
    fixed: str
    line: str
    points: Mapping[int, float]

    @property
    def prefix(self) -> str:
        """The part of the name that all lines of this quantity and axis share."""
        return f"{self.quantity}_by_{self.axis}"

    @property
    def metric(self) -> str:
        """The name under which W&B has the line."""
        return f"{self.prefix}/{self.experiment}/{self.line}"


@dataclass
class _Line:
    """Runs that differ in K alone, or in M alone, and what these runs have in common."""

    name: str
    fixed: str
    setting: dict[str, Any]
    runs: list[Run] = field(default_factory=list)


def places(results: Results) -> list[Place]:
    """Each machine, scale and experiment that has a finished run."""
    return list(dict.fromkeys(run.place for run in results.runs if run.done))


def curves(results: Results, place: Place) -> list[Curve]:
    """All lines of an experiment at one place. A line has two points at least."""
    runs = [run for run in results.runs if run.place == place and run.done]
    runs = [run for run in runs if run.spec.task == "train"]
    rows = {run.id: results.row(run) for run in runs}
    drawn: list[Curve] = []
    for axis in AXES:
        for line in _lines(runs, axis):
            for quantity, (column, _) in QUANTITIES.items():
                values = {getattr(run, axis): rows[run.id][column] for run in line.runs}
                points = {x: values[x] for x in sorted(values) if not math.isnan(values[x])}
                if len(points) > 1:
                    first = line.runs[0]
                    about = (place.experiment, first.model, first.fidelity, first.group)
                    drawn.append(Curve(quantity, axis, *about, line.fixed, line.name, points))
    return drawn + _formula(place.experiment, runs)


def history(lines: Sequence[Curve]) -> Iterator[dict[str, float]]:
    """The lines as W&B's history: one flat dict for each value of K, then for each of M."""
    for axis in AXES:
        along = [line for line in lines if line.axis == axis]
        for x in sorted({x for line in along for x in line.points}):
            yield {axis: x} | {line.metric: line.points[x] for line in along if x in line.points}


def largest_speedups(lines: Iterable[Curve]) -> dict[str, float]:
    """The largest speedup over K=1 of each model and fidelity, for W&B's summary."""
    largest: dict[str, float] = {}
    for line in lines:
        if line.quantity == "speedup":
            name = largest_name(line)
            largest[name] = max(largest.get(name, 0.0), *line.points.values())
    return largest


def largest_name(line: Curve) -> str:
    """The name of the largest speedup of the model and fidelity of a line."""
    return f"largest_speedup/{line.experiment}/{name_part(line.model)}_{line.fidelity}"


def _lines(runs: Iterable[Run], axis: Axis) -> list[_Line]:
    """The runs, split by all that their specs fix but `axis`; each line with a name of its own."""
    other = "M" if axis == "K" else "K"
    lines: dict[str, _Line] = {}
    for run in runs:
        fixed = f"{other}{getattr(run, other)}"
        name = f"{name_part(run.model)}_{run.fidelity}_{fixed}"
        setting = run.spec.model_dump(mode="json", exclude={axis, *_NO_SETTING})
        setting |= {"cut_by": run.cut_by, **run.spec.model_args, "group": run.group}
        if (
            run.model == "timed" and "L" in run.spec.model_args
        ):  # it has one layer a stage, and one example a micro-batch
            setting |= {"N": run.N / run.M, "L": run.spec.model_args["L"] / run.K}
        if run.fidelity not in TIMED:  # drawn or not, the schedule is the same
            del setting["trace"]
        lines.setdefault(canonical(setting), _Line(name, fixed, setting)).runs.append(run)
    several = [
        line for line in lines.values() if len({getattr(run, axis) for run in line.runs}) > 1
    ]
    for name in dict.fromkeys(line.name for line in several):
        _tell_apart([line for line in several if line.name == name])
    return several


def _tell_apart(lines: Sequence[_Line]) -> None:
    """Append to names that are equal the settings that tell the lines apart, and no others."""
    for setting in dict.fromkeys(name for line in lines for name in line.setting):
        longer = [f"{line.name}_{_setting_part(line, setting)}" for line in lines]
        if len(set(longer)) > len({line.name for line in lines}):
            for line, name in zip(lines, longer, strict=True):
                line.name = name
    # Long values are cut, so two names may still be equal.
    if len({line.name for line in lines}) < len(lines):
        for number, line in enumerate(lines, start=1):
            line.name += f"_{number}"


def _setting_part(line: _Line, setting: str) -> str:
    """`lr_0_1`; the start of a long value."""
    value = line.setting.get(setting)
    text = value if isinstance(value, str) else canonical(value)
    text = "default" if value is None else text
    return name_part(f"{setting} {text}")[:_LONGEST_PART]


def _formula(experiment: str, runs: Iterable[Run]) -> list[Curve]:
    """The paper's (K-1)/(M+K-1), Section 2.3, at the K and M of runs whose bubble is known."""
    known = [run for run in runs if not math.isnan(run.bubble_idle_over_total)]
    Ks = sorted({run.K for run in known if run.K > 1})
    Ms = sorted({run.M for run in known})
    over_K = {f"M{M}": {K: (K - 1) / (M + K - 1) for K in Ks} for M in Ms}
    over_M = {f"K{K}": {M: (K - 1) / (M + K - 1) for M in Ms} for K in Ks}
    return [
        Curve(
            "bubble", axis, experiment, "", "quoted", "", fixed, f"formula_quoted_{fixed}", points
        )
        for axis, lines in zip(AXES, (over_K, over_M), strict=True)
        for fixed, points in lines.items()
        if len(points) > 1
    ]
