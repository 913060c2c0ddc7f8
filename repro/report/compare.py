"""Which recorded runs are compared: selection of runs, and what they have in common."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache, lru_cache
from typing import Any

from repro.harness.catalog import find, names
from repro.harness.frame import Frame
from repro.harness.results import Results, Round, Run
from repro.harness.schema import TrainRound
from repro.harness.spec import RunSpec
from repro.harness.vary import baselines, compared
from repro.report.style import model_name


def rows_of(results: Results, experiment: str = "", **wanted: Any) -> list[Run]:
    """The runs with these attributes, without controls."""
    runs = results.by_experiment.get(experiment, []) if experiment else results.runs
    return [
        run
        for run in runs
        if not run.spec.control
        if all(getattr(run, name) == value for name, value in wanted.items())
    ]


@lru_cache(maxsize=1)
def of_exhibits(results: Results) -> Results:
    """The runs that exhibits are made of.

    Runs at scale smoke only show that everything runs: beside the paper's numbers they would
    look like a reproduction that failed. Journals also hold runs that their experiment once had.
    """
    kept = [run for run in results.runs if run.scale != "smoke" and _is_planned(run)]
    return replace(results, runs=kept)


def _is_planned(run: Run) -> bool:
    plan = _plan_of(run.experiment, run.scale)
    controlled = baselines(run.spec)[0] if run.spec.control else {}
    return plan is None or _settings(run.spec.model_copy(update=controlled)) in plan


@cache
def _plan_of(experiment: str, scale: Any) -> set[str] | None:
    """The settings of an experiment's runs; None of one's own experiment or runs."""
    if experiment not in names() or (source := find(experiment)).accumulate:
        return None
    return {_settings(run) for group in source.build(scale).groups for run in group.runs}


def _settings(spec: RunSpec) -> str:
    """All of a spec; of a timed step without the number of blocks, which may have changed."""
    return compared(spec, **{"warmup": 0, "steps": 0} if spec.task == "train" else {})


def told_apart(frame: Frame, names: Sequence[str]) -> list[str]:
    """What tells each line's run from others: its values of these columns, and `differs_in`."""
    varied = [name for name in names if frame[name].nunique() > 1]
    texts = []
    for line in frame.to_dict("records"):
        parts = [_in_words(name, line[name]) for name in varied]
        texts.append(", ".join(filter(None, [*parts, line["differs_in"]])))
    return texts


def _in_words(name: str, value: Any) -> str:
    if name == "model":
        return model_name(value)
    words = {"D": "D=", "N": "N=", "recompute": "recompute "}
    return f"{words.get(name, '')}{value}"


def predicted_step(round_: Round) -> float | None:
    """Seconds of a step by the layers that were timed in its round; None if none were."""
    assert isinstance(round_.record, TrainRound)
    return next(iter(round_.record.predicted.values()), None)


def fits(run: Run) -> bool:
    """Whether no stage of a run is counted not to fit its device.

    That is known of modelled runs alone, and true of all others.
    """
    modelled = run.rounds[-1].modelled if run.done else None
    if modelled is None or modelled.memory is None:
        return True
    # Without a mini-batch, not even micro-batches of one example fit.
    peaks = run.rounds[-1].record.peak_bytes or [0]
    return modelled.batch > 0 and max(peaks) <= modelled.memory


def link_name(spec: RunSpec) -> str:
    return str(spec.link or "not throttled")
