"""What was recorded, as pandas frames with a line for each run.

Exhibits are made from `runs_frame` with groupby, pivot and merge. `repro.results` gives `all_runs`.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np
import pandas as pd

from repro.harness.results import Results, Run
from repro.harness.schema import LearnRound
from repro.harness.spec import BASELINES, FIELDS
from repro.harness.vary import baselines

# A pandas.DataFrame. The types of pandas do not know what is in a column or a group.
Frame: TypeAlias = Any

_SPEEDUPS = {f"speedup_vs_{name}": changed for name, changed in BASELINES.items()}
_ENDS = ("", "_ci_low", "_ci_high")
# fmt: off
# Attributes of a run that are columns of its line, besides the fields of its spec.
_OF_RUN = (
    "experiment", "machine", "scale", "group", "id", "status", "done", "N", "device", "cut_by",
    "commit", "unit", "step_s", "throughput", "idle_over_total", "peak_gib_max",
    "peak_gib_per_stage", "balance", "labels", "differs_in",
)
# Columns of `all_runs` that are fields of a spec and hardly ever differ.
SETTINGS = (
    "task", "seed", "warmup", "steps", "trace", "transport", "profile", "figures", "memory",
    "stages_per_rank", "tensor_parallel", "control",
)
COLUMNS = (
    "experiment", "run", "differs_in", "model", "model_args", "K", "M", "N", "D", "schedule",
    "recompute", "optimizer", "lr", "fidelity", "device", "status", "step_s", "throughput",
    *(f"{name}{end}" for name in _SPEEDUPS for end in _ENDS),
    "idle_over_total", "peak_gib_max", "peak_gib_per_stage",
    "commit", "unit", "rounds", "balance", "cut_by", "labels", "library", "size", "parameters",
    "machine", "scale", "group", *SETTINGS, "training",
)
# What `runs_frame` has besides.
_OF_EXHIBIT = ("method", "where", "devices", "record", "spec", "run")
# fmt: on


def run_line(results: Results, run: Run) -> dict[str, Any]:
    line = _line(run) | {"run": run.id}
    line |= {name: getattr(run, name) for name in ("size", "parameters", "training")}
    line |= {name: line[name] or None for name in ("peak_gib_per_stage", "balance")}
    for name, changed in _SPEEDUPS.items():
        speedup = zip(_ENDS, results.speedup(run, **changed), strict=True)
        line |= {f"{name}{end}": value for end, value in speedup}
    return {name: line[name] for name in COLUMNS}


def all_runs(results: Results) -> Frame:
    """A line for each run, as plain values: runs.csv.

    Times are in seconds, throughputs in examples a second, memory in GiB; what is unknown is NaN.
    A name that ends in _ci_low or _ci_high is one end of the 95 % interval of the quantity
    before it.
    """
    lines = [run_line(results, run) for run in results.runs]
    return pd.DataFrame(lines, columns=list(COLUMNS), dtype=object)


def runs_frame(results: Results, *experiments: str, **wanted: Any) -> Frame:
    """A line for each run of these experiments (none: of all) with these settings, in plan order.

    Columns are attributes of `Run` and of its spec: seconds in step_s, examples a second in
    throughput, GiB in peak_gib_*; NaN where nothing was measured. `method` is its name in
    `repro.methods.named`. `where` is the scale, and the machine where results come from several;
    `rounds` is their number; `record` is that of the newest round, None without one; `spec` is the
    whole spec, and `run` the run. Of trainings there are columns such as `metrics.bleu`, on test
    data with the weights that were kept. Controls are left out, see `controls_frame`. The index is
    the place in `Results.runs`.
    """
    return select(_all_of(results, *experiments), **wanted)


@lru_cache(maxsize=1)  # an exhibit asks for several selections of the same runs
def _all_of(results: Results, *experiments: str) -> Frame:
    return _frame(results, [run for run in _of(results, experiments) if not run.spec.control])


def controls_frame(results: Results, *experiments: str) -> Frame:
    """A line for each control of these experiments (none: of all), as in `runs_frame`.

    `step` is its step over that of the run that it controls, with the ends of its interval in `low`
    and `high`, of so many `blocks`.
    """
    runs = [run for run in _of(results, experiments) if run.spec.control and run.done]
    bases = [results.baseline(run, **baselines(run.spec)[0]) for run in runs]
    found = [(run, results.ratio(base, run)) for run, base in zip(runs, bases, strict=True) if base]
    frame = _frame(results, [run for run, _ in found])
    columns = ["step", "low", "high", "blocks"]
    steps = pd.DataFrame([step for _, step in found], columns=columns, index=frame.index)
    return frame.join(steps)


def _of(results: Results, experiments: Sequence[str]) -> list[Run]:
    return [run for run in results.runs if not experiments or run.experiment in experiments]


def _frame(results: Results, runs: Sequence[Run]) -> Frame:
    index = {id(run): place for place, run in enumerate(results.runs)}
    lines: dict[int, dict[str, Any]] = {}
    for run in runs:
        record = run.rounds[-1].record if run.rounds else None
        own = run.spec.method, results.where(run), run.spec.devices, record, run.spec, run
        lines[index[id(run)]] = line = _line(run) | dict(zip(_OF_EXHIBIT, own, strict=True))
        if isinstance(record, LearnRound):
            line["parameters"] = record.parameters
            line |= {f"metrics.{name}": value for name, value in record.metrics.items()}
    columns = dict.fromkeys([*FIELDS, *_OF_RUN, "rounds", *_OF_EXHIBIT])
    columns |= dict.fromkeys(name for line in lines.values() for name in line)
    frame = pd.DataFrame([*lines.values()], index=[*lines], columns=[*columns])
    # Lines are selected several times faster where texts are no columns of pyarrow.
    return frame.astype(dict.fromkeys(frame.select_dtypes("str"), object)).copy()


def _line(run: Run) -> dict[str, Any]:
    line = {name: getattr(run.spec, name) for name in FIELDS}
    line |= {name: getattr(run, name) for name in _OF_RUN}
    return line | {"rounds": len(run.rounds)}


def select(frame: Frame, **wanted: Any) -> Frame:
    """The lines with these values; of a list of values each is allowed."""
    allowed = np.full(len(frame), True)
    for name, value in wanted.items():
        column = frame[name]
        is_one_of_several = isinstance(value, list | tuple)
        allowed &= column.isin(value) if is_one_of_several else column == value
    return frame[allowed]


def ratios(results: Results, frame: Frame, **changed: Any) -> Frame:
    """Columns ratio, low and high of `ratio_of` for each line's run over its baseline.

    That is the run at the same place that differs in the changed fields alone, such as K=1.
    """
    lines = [ratio_of(results, run, results.baseline(run, **changed)) for run in frame["run"]]
    return pd.DataFrame(lines, columns=["ratio", "low", "high"], index=frame.index)


def ratio_of(results: Results, run: Run, base: Run | None) -> tuple[float, float, float]:
    """Throughput of a run over that of another inside common rounds, with its 95 % interval.

    NaN without another or for a run that is not done; three ones over itself.
    """
    if base is None or not run.done:
        return float("nan"), float("nan"), float("nan")
    return (1.0, 1.0, 1.0) if base is run else results.ratio(run, base)[:3]
