"""Which recorded runs are compared: selection of runs, and what they have in common."""

import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import inf
from typing import Any

from repro.harness.frame import Frame
from repro.harness.results import Results, Run
from repro.harness.spec import TINY, RunSpec, canonical
from repro.harness.vary import varied
from repro.report.style import MARKERS, model_name

# Fields of a spec that a setting names where settings differ in them.
_NAMED = (
    "schedule", "D", "balance", "partitioner", "link", "library", "optimizer", "lr", "seed",
    "profile",
)  # fmt: skip
_EMULATION = ("stretch", "steps", "warmup", "trace", "transport")  # how an emulation is run
_UPDATES = {
    "sgd": "SGD",
    "rmsprop": "RMSProp",
    "rmsprop-momentum": "RMSProp with momentum",
    "adam": "Adam",
}

NOT_FITTING = "counted not to fit the device"


def rows_of(results: Results, experiment: str = "", **wanted: Any) -> list[Run]:
    """The runs with these attributes, without controls."""
    runs = results.by_experiment.get(experiment, []) if experiment else results.runs
    return matching((run for run in runs if not run.spec.control), **wanted)


def matching(runs: Iterable[Run], **wanted: Any) -> list[Run]:
    return [
        run for run in runs if all(getattr(run, name) == value for name, value in wanted.items())
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


def suffix(fidelity: str) -> str:
    return "" if fidelity == "measured" else f"_{fidelity}"


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


@dataclass(frozen=True)
class Setting:
    """Runs of one experiment that differ in K, M and fidelity alone: one line of a figure."""

    model: str
    plan: tuple[str, str]  # the schedule, and which micro-batches are recomputed
    details: str  # what else the numbers depend on, `laptop, L=4, N=32, remat always`
    rows: list[Run]  # the runs

    @property
    def title(self) -> str:
        name = model_name(self.model)
        return f"{name} ({self.details})" if self.details else name

    @property
    def narrow(self) -> str:
        """The title on lines that fit half a figure."""
        return textwrap.fill(self.title, 46, break_on_hyphens=False)


def settings(results: Results, rows: Sequence[Run]) -> list[Setting]:
    """The runs split by all that their specs fix except K, M and fidelity, and by place."""
    split: dict[str, list[Run]] = {}
    for run in rows:
        split.setdefault(_settings_key(run), []).append(run)
    named = varied([run.spec for run in rows], _NAMED)
    return [
        Setting(of[0].model, (of[0].schedule, of[0].remat), _details(results, of, named), of)
        for of in split.values()
    ]


def _settings_key(run: Run) -> str:
    """Equal for runs that differ in K, M and fidelity alone."""
    spec = run.spec.model_dump(mode="json", exclude={"K", "M", "fidelity"})
    if run.spec.profile:
        # How an emulation is run changes nothing of what it and its simulation model.
        spec |= dict.fromkeys(_EMULATION)
    spec["balance"] = run.cut_by
    return canonical({"spec": spec, "place": run.place})


def _details(results: Results, runs: list[Run], named: list[str]) -> str:
    run = runs[0]
    spec = run.spec
    values = {name: getattr(spec, name) for name in named} | {"balance": run.cut_by}
    # Where each cell takes the largest mini-batch that fits, N is that of one cell.
    largest = spec.memory is not None and run.fidelity == "simulated"
    batch = "the largest N that fits" if largest else f"N={run.N}"
    labels = next((run.labels for run in runs if run.labels), {})
    details = [
        results.where(run),
        *(f"{name}={value}" for name, value in spec.model_args.items()),
        batch,
        f"remat {run.remat}",
        *(f"{name} {link_name(spec) if name == 'link' else values[name]}" for name in named),
        *(
            f"{name.replace('_', ' ')} {value}"
            for name, value in labels.items()
            if spec.model_args.get(name) != value
        ),
    ]
    return ", ".join(details)


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
    return speed_name(spec.link.bytes_per_second or inf if spec.link else inf)


def speed_name(speed: float) -> str:
    if speed == inf:
        return "not throttled"
    return f"{speed / 1e9:g} GB/s" if speed >= 1e9 else f"{speed / 1e6:g} MB/s"


def optimizers(rows: Iterable[Run]) -> str:
    """The optimizer of each fidelity's steps; empty where all have the same."""
    used = {(run.fidelity, _UPDATES.get(run.spec.optimizer, run.spec.optimizer)) for run in rows}
    kinds: dict[str, list[str]] = {}
    for fidelity, name in sorted(used, key=lambda pair: [*MARKERS].index(pair[0])):
        kinds.setdefault(name, []).append(fidelity)
    if len(kinds) < 2:
        return ""
    steps = (f"{name} in {' and '.join(present)} steps" for name, present in kinds.items())
    return f"Optimizer: {', '.join(steps)}."
