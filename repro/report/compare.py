"""Which recorded runs are compared: selection of runs, and what they have in common."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

from repro.harness.frame import Frame
from repro.harness.results import Results, Run
from repro.harness.spec import TINY, RunSpec
from repro.report.style import MARKERS, model_name


def rows_of(results: Results, experiment: str = "", **wanted: Any) -> list[Run]:
    """The runs with these attributes, without controls."""
    runs = results.by_experiment.get(experiment, []) if experiment else results.runs
    return [
        run
        for run in runs
        if not run.spec.control
        if all(getattr(run, name) == value for name, value in wanted.items())
    ]


def beside_paper(results: Results, experiment: str) -> bool:
    """Whether the paper's numbers and verdicts on them are shown with an experiment's results.

    Not at the scales `TINY` alone, whose models only show that everything runs: beside them the
    paper's numbers would look like a reproduction that failed.
    """
    done = rows_of(results, experiment=experiment, status="done")
    return any(row.scale not in TINY for row in done)


@lru_cache(maxsize=1)
def without_tiny(results: Results) -> Results:
    """The results without tiny runs of paper experiments that a larger scale has too."""
    larger = {name for name in of_paper(results) if beside_paper(results, name)}
    kept = [run for run in results.runs if run.scale not in TINY or run.experiment not in larger]
    return replace(results, runs=kept)


def of_paper(results: Results) -> set[str]:
    return {name for name, about in results.listings.items() if about.paper or about.neurips}


def fidelities(rows: Iterable[Run]) -> list[str]:
    present = {row.fidelity for row in rows}
    return [fidelity for fidelity in MARKERS if fidelity in present]


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
    words = {"D": "D=", "N": "N=", "remat": "recompute "}
    return f"{words.get(name, '')}{value}"


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
    speed = spec.link.bytes_per_second if spec.link else None
    if speed is None:
        return "not throttled"
    return f"{speed / 1e9:g} GB/s" if speed >= 1e9 else f"{speed / 1e6:g} MB/s"
