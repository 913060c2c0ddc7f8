"""Which recorded runs are compared: selection of runs, their settings, and the names of these."""

import textwrap
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from math import inf
from typing import Any

from repro.harness.results import Results, Run
from repro.harness.spec import TINY, RunSpec, canonical
from repro.report.ratio import batch_name
from repro.report.style import MARKERS, model_name

# Fields of a spec that a setting names only where settings differ in them.
_WHERE_SEVERAL = (
    "library",
    "transport",
    "trace",
    "optimizer",
    "lr",
    "seed",
    "warmup",
    "steps",
)
_UPDATES = {
    "sgd": "SGD",
    "rmsprop": "RMSProp",
    "rmsprop-momentum": "RMSProp with momentum",
    "adam": "Adam",
    "adamw": "AdamW",
}
_EMULATION = ("stretch", "steps", "warmup", "trace", "transport")  # how an emulation is run
_REAL_LAYERS = ("data", "compute", "device")  # labels of runs with real layers


def rows_of(results: Results, **wanted: Any) -> list[Run]:
    """The recorded runs whose attributes have these values."""
    runs = results.runs
    if "experiment" in wanted:
        runs = results.by_experiment.get(wanted.pop("experiment"), [])
    return matching(runs, **wanted)


def matching(runs: Iterable[Run], **wanted: Any) -> list[Run]:
    """The runs whose attributes have these values."""
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
    """The recorded experiments that have a number in the paper."""
    return {name for name, about in results.listings.items() if about.paper or about.neurips}


def fidelities(rows: Iterable[Run]) -> list[str]:
    """The fidelities that these rows have, in the order in which they are shown."""
    present = {row.fidelity for row in rows}
    return [fidelity for fidelity in MARKERS if fidelity in present]


def suffix(fidelity: str) -> str:
    """What a file's name ends in: nothing for measured."""
    return "" if fidelity == "measured" else f"_{fidelity}"


@dataclass(frozen=True)
class Setting:
    """Recorded runs of one experiment that differ in K, M and fidelity alone: one line of a figure.

    Attributes:
        model: name of the model.
        plan: the schedule and the re-materialization.
        details: what else the numbers depend on, `laptop, L=4, N=32, remat always`.
        rows: the runs.
    """

    model: str
    plan: tuple[str, str]
    details: str
    rows: list[Run]

    @property
    def title(self) -> str:
        """`Transformer (laptop, N=32, remat always, attention plain)`."""
        name = model_name(self.model)
        return f"{name} ({self.details})" if self.details else name

    @property
    def wide(self) -> str:
        """The title on lines that fit a figure."""
        return textwrap.fill(self.title, 92, break_on_hyphens=False)

    @property
    def narrow(self) -> str:
        """The title on lines that fit half a figure."""
        details = textwrap.fill(self.details, 46, break_on_hyphens=False)
        return f"{model_name(self.model)}\n{details}"


def settings(results: Results, rows: list[Run]) -> list[Setting]:
    """The runs split by all that their specs fix except K, M and fidelity, and by place."""
    split: dict[str, list[Run]] = {}
    for run in rows:
        split.setdefault(_settings_key(run), []).append(run)
    differing = _differing_fields(results, rows)
    return [
        Setting(
            runs[0].model,
            (runs[0].schedule, runs[0].remat),
            _details(results, runs, differing),
            runs,
        )
        for runs in split.values()
    ]


def settled(results: Results, rows: list[Run]) -> list[tuple[Setting, Run]]:
    """Each run with the setting that it belongs to."""
    return [(setting, run) for setting in settings(results, rows) for run in setting.rows]


def _settings_key(run: Run) -> str:
    """Equal for runs that differ in K, M and fidelity alone."""
    spec = run.spec.model_dump(mode="json", exclude={"K", "M", "fidelity"})
    if run.spec.profile:
        # How an emulation is run changes nothing of what it and its simulation model.
        spec |= dict.fromkeys(_EMULATION)
    spec["balance"] = run.cut_by
    return canonical({"spec": spec, "place": run.place})


def _differing_fields(results: Results, rows: list[Run]) -> set[str]:
    """The fields of `_WHERE_SEVERAL` in which these runs differ, `link` and `where`."""
    differing = {
        field for field in _WHERE_SEVERAL if len({getattr(run.spec, field) for run in rows}) > 1
    }
    if len({link_name(run.spec) for run in rows if not run.spec.profile}) > 1:
        differing.add("link")
    if len({where(results, run) for run in rows if run.spec.profile}) > 1:
        differing.add("where")
    return differing


def _details(results: Results, runs: list[Run], differing: set[str]) -> str:
    """`laptop, L=4, N=32, remat always, attention plain`.

    What is usual is left out: schedule gpipe, one replica, cut by time. Runs on a modelled device
    name its profile in place of the scale.
    """
    run = runs[0]
    spec = run.spec
    modelled = spec.profile is not None
    details = []
    if not modelled or "where" in differing:
        details.append(where(results, run))
    details += [f"{name}={value}" for name, value in spec.model_args.items()]
    details.append(batch_name(run))
    if modelled:
        details.append(f"device profile {spec.profile}")
    details.append(f"remat {run.remat}")
    if run.schedule != "gpipe":
        details.append(run.schedule)
    if run.D > 1:
        details.append(f"{run.D} replicas")
    if run.cut_by == "given":
        details.append("balance given")
    elif run.cut_by != "time":
        details.append(f"balance by {run.cut_by}")
    if not modelled and "link" in differing:
        details.append(f"link {link_name(spec)}")
    for field in _WHERE_SEVERAL:
        if field in differing and not (modelled and field in _EMULATION):
            details.append(f"{field} {getattr(spec, field)}")
    labels = next((run.labels for run in runs if run.labels), {})
    for name, value in labels.items():
        known = spec.model_args.get(name) == value
        if not known and not (modelled and name in _REAL_LAYERS):
            details.append(f"{name.replace('_', ' ')} {value}")
    return ", ".join(details)


def link_name(spec: RunSpec) -> str:
    """`100 MB/s`; `not throttled` where messages are as fast as the machine passes them on."""
    return speed_name(spec.link.bytes_per_second or inf if spec.link else inf)


def speed_name(speed: float) -> str:
    """The same of bytes per second."""
    if speed == inf:
        return "not throttled"
    return f"{speed / 1e9:g} GB/s" if speed >= 1e9 else f"{speed / 1e6:g} MB/s"


def optimizers(rows: Iterable[Run], *, always: bool = False) -> str:
    """The optimizer of each fidelity's steps; empty where all have the same, unless `always`."""
    fidelities_of: dict[str, set[str]] = {}
    for run in rows:
        name = _UPDATES.get(run.spec.optimizer, run.spec.optimizer)
        fidelities_of.setdefault(name, set()).add(run.fidelity)
    if not fidelities_of or (len(fidelities_of) == 1 and not always):
        return ""
    order = list(MARKERS)
    kinds = {name: sorted(present, key=order.index) for name, present in fidelities_of.items()}
    names = sorted(kinds, key=lambda name: order.index(kinds[name][0]))
    steps = (f"{name} in {' and '.join(kinds[name])} steps" for name in names)
    return f"Optimizer: {', '.join(steps)}."


def where(results: Results, row: Run) -> str:
    """The scale that a run was measured at, and the machine where the results come from several."""
    return f"{row.scale} on {row.machine}" if len(results.machines) > 1 else row.scale
