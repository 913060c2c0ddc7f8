"""What was recorded, as pandas frames: a line for each run, or for each run and round.

Exhibits are made from `runs_frame` with groupby, pivot and merge. `repro.results` gives the other.
"""

from typing import Any, TypeAlias

import pandas as pd

from repro.harness.results import SPEEDUPS, Results, Run
from repro.harness.schema import LearnRound
from repro.methods.named import name_of

# A pandas.DataFrame. The types that pandas has do not know what stands in a column or a group.
Frame: TypeAlias = Any

# Attributes of a run that are columns of its line.
_OF_RUN = (
    "experiment", "machine", "scale", "group", "id", "status", "done", "model", "K", "M", "N", "D",
    "schedule", "remat", "library", "fidelity", "device", "cut_by", "commit", "unit", "step_s",
    "throughput", "bubble_idle_over_total", "bubble_idle_over_work", "peak_gib_max",
    "peak_gib_per_stage", "balance", "labels",
)  # fmt: skip
_OF_SPEC = (
    "task", "seed", "optimizer", "lr", "steps", "trace", "transport", "profile", "memory",
    "model_args", "shared", "devices",
)  # fmt: skip

# Of these, the attributes of a run and those of a round are columns of `rounds_frame`.
_OF_EACH_ROUND = (
    "experiment", "model", "K", "M", "N", "D", "schedule", "remat", "fidelity", "device", "status",
    "peak_gib_max", "peak_gib_per_stage", "machine", "scale", "group", "library", "differs_in",
    "unit",
)  # fmt: skip
_OF_ROUND = (
    "step_s", "throughput", "bubble_idle_over_total", "bubble_idle_over_work", "commit", "loss",
    "load",
)  # fmt: skip
ROUND_COLUMNS = (
    "experiment", "run", "round", "model", "K", "M", "N", "D", "schedule", "remat", "fidelity",
    "device", "status", "step_s", "throughput", "speedup_vs_k1", "speedup_vs_k2m1",
    "bubble_idle_over_total", "bubble_idle_over_work", "peak_gib_max", "peak_gib_per_stage",
    "ci_low", "ci_high", "commit", "machine", "scale", "group", "library", "differs_in", "unit",
    "loss", "setup_s", "load",
)  # fmt: skip


def rounds_frame(results: Results) -> Frame:
    """A line for each run and round, and one for a run without rounds.

    Times are in seconds, throughputs in examples a second, memory in GiB; what is unknown is NaN.
    A speedup is over the baseline in the same round. ci_low and ci_high are the bootstrap 95 %
    interval of speedup_vs_k1 over all rounds of the run.
    """
    lines = []
    for run in results.runs:
        of_run = {"run": run.id} | {name: getattr(run, name) for name in _OF_EACH_ROUND}
        of_run["ci_low"], of_run["ci_high"] = results.speedup(run, K=1)[1:]
        bases = {name: results.baseline(run, **changed) for name, changed in SPEEDUPS.items()}
        timed = {
            name: {each.name: each.throughput for each in base.rounds} if base else {}
            for name, base in bases.items()
        }
        for round_ in run.rounds:
            line = of_run | {name: getattr(round_, name) for name in _OF_ROUND}
            line |= {"round": round_.name, "setup_s": round_.values["setup_s"]}
            for name, throughputs in timed.items():
                base = throughputs.get(round_.name, float("nan"))
                line[name] = round_.throughput / base
            lines.append(line)
        if not run.rounds:
            lines.append(of_run)
    return pd.DataFrame(lines, columns=list(ROUND_COLUMNS))


def runs_frame(results: Results, *experiments: str, **wanted: Any) -> Frame:
    """A line for each run of these experiments (none: of all) with these settings, in plan order.

    Columns are the attributes of `Run`: seconds in step_s, examples a second in throughput, GiB in
    peak_gib_*; NaN where nothing was measured. Of the spec there are seed, optimizer, steps and the
    like. `method` is its name in `repro.methods.named`. `where` is the scale, and the machine where
    results come from several; `rounds` is their number; `record` is that of the newest round, None
    without one; `spec` is the whole spec, and `run` the run. Of trainings there are columns such as
    `metrics.bleu`, on test data after the last step. The index is the place in `Results.runs`.
    """
    several = len(results.machines) > 1
    lines = {
        index: _line(run, several)
        for index, run in enumerate(results.runs)
        if not experiments or run.experiment in experiments
    }
    columns = dict.fromkeys(
        [*_OF_RUN, *_OF_SPEC, "method", "where", "rounds", "record", "spec", "run"]
    )
    columns |= dict.fromkeys(name for line in lines.values() for name in line)
    frame = pd.DataFrame([*lines.values()], index=[*lines], columns=[*columns])
    return select(frame, **wanted)


def _line(run: Run, several: bool) -> dict[str, Any]:
    line = {name: getattr(run, name) for name in _OF_RUN}
    line |= {name: getattr(run.spec, name) for name in _OF_SPEC}
    line["method"] = name_of(
        library=run.library,
        schedule=run.schedule,
        K=run.K,
        D=run.D,
        tensor_parallel=run.spec.tensor_parallel,
        zero=run.spec.zero,
    )
    line["where"] = f"{run.scale} on {run.machine}" if several else run.scale
    line["rounds"] = len(run.rounds)
    line["record"] = run.rounds[-1].record if run.rounds else None
    line |= {"spec": run.spec, "run": run}
    if isinstance(line["record"], LearnRound):
        line["parameters"] = line["record"].parameters
        line |= {f"metrics.{name}": value for name, value in line["record"].metrics.items()}
    return line


def select(frame: Frame, **wanted: Any) -> Frame:
    """The lines with these values; of a list of values each is allowed."""
    for name, value in wanted.items():
        column = frame[name]
        allowed = column.isin(value) if isinstance(value, list | tuple) else column == value
        frame = frame.loc[allowed]
    return frame


def ratios(results: Results, frame: Frame, **changed: Any) -> Frame:
    """Throughput of each line's run over that of its baseline, inside common rounds.

    The baseline is the run at the same place that differs in the changed fields alone, such as K=1.

    Returns:
        Columns ratio, low and high (the bootstrap 95 % interval, NaN for few rounds) for each line
        of `frame`; NaN without a baseline or for a run that is not done, three ones for a baseline.
    """
    lines = [ratio_of(results, run, results.baseline(run, **changed)) for run in frame["run"]]
    return pd.DataFrame(lines, columns=["ratio", "low", "high"], index=frame.index)


def ratio_of(results: Results, run: Run, base: Run | None) -> tuple[float, float, float]:
    """Throughput of a run over that of another with its interval; three ones over itself."""
    if base is None or not run.done:
        return float("nan"), float("nan"), float("nan")
    return (1.0, 1.0, 1.0) if base is run else results.ratio(run, base)[:3]
