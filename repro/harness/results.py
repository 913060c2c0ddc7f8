"""Everything recorded, as data frames: one row per run, one line per run and round.

Nothing is measured here. A file that cannot be read is left out with one warning that names it.
"""

import math
import statistics
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from repro.gpipe.schedule.timeline import COLUMNS as SPAN_COLUMNS
from repro.gpipe.schedule.timeline import Timeline
from repro.harness.outside import read_table
from repro.harness.pack import unpack
from repro.harness.record import Folder, warn
from repro.harness.spec import TIMED, RunSpec, compared, differences
from repro.harness.statistics import ratio

GIB = 2**30
# Of each spec.
SETTINGS = (
    "task",
    "seed",
    "warmup",
    "steps",
    "trace",
    "transport",
    "profile",
    "figures",
    "memory",
    "stretch",
)
COLUMNS = [
    *(
        "experiment",
        "run",
        "differs_in",
        "model",
        "model_args",
        "K",
        "M",
        "N",
        "D",
        "schedule",
        "remat",
        "optimizer",
        "lr",
    ),
    *("fidelity", "device", "status", "step_s", "throughput"),
    *("speedup_vs_k1", "speedup_vs_k1_ci_low", "speedup_vs_k1_ci_high"),
    *("speedup_vs_k2m1", "speedup_vs_k2m1_ci_low", "speedup_vs_k2m1_ci_high"),
    *(
        "bubble_idle_over_total",
        "bubble_idle_over_work",
        "peak_gib_max",
        "peak_gib_per_stage",
        "commit",
    ),
    *(
        "unit",
        "rounds",
        "balance",
        "cut_by",
        "labels",
        "library",
        "size",
        "parameters",
        "machine",
        "scale",
        "group",
    ),
    *SETTINGS,
]
SPEEDUPS = {"speedup_vs_k1": {"K": 1}, "speedup_vs_k2m1": {"K": 2, "M": 1}}
ROUND_COLUMNS = [
    *("machine", "scale", "experiment", "group", "run", "round", "commit", "step_s", "throughput"),
    *(
        "bubble_idle_over_total",
        "bubble_idle_over_work",
        "loss",
        "setup_s",
        "breakdown",
        "checks",
        "fit",
    ),
    *("modelled", "calibration", "load"),
]


Place = tuple[str, str, str]  # machine, scale, experiment
PLACE = ("machine", "scale", "experiment")


@dataclass(frozen=True)
class Results:
    """What a results folder holds.

    Attributes:
        rows: one row per run, columns `COLUMNS`: seconds in step_s (median over rounds), examples
            per second in throughput, GiB in peak_gib_*; NaN where unknown. differs_in is what tells
            the run from others of its experiment (`repro.harness.spec.differences`). A name that
            ends in _ci_low or _ci_high is one end of the bootstrap 95 % interval of the quantity
            before it. balance is the number of layers of each stage, cut_by the rule that it comes
            from.
        rounds: one line per run and round, columns `ROUND_COLUMNS`; step_s is the median of the
            round's steps, checks maps the name of a check to {verdict, value, evidence}; load is
            the share of the usable cores that other processes took during the round, NaN where it
            was not recorded and for runs on no clock.
        specs: run id -> spec.
        folders: the experiments found.
    """

    rows: pd.DataFrame
    rounds: pd.DataFrame
    specs: dict[str, RunSpec]
    folders: list[Folder]
    # read so far
    _timelines: dict[Path, Timeline | None] = field(default_factory=dict, repr=False, compare=False)

    @cached_property
    def records(self) -> list[dict[str, Any]]:
        """The rows as one mapping each."""
        return self.rows.to_dict("records")  # pyright: ignore[reportReturnType]

    @cached_property
    def _lines(self) -> dict[Place, dict[str, list[dict[str, Any]]]]:
        """The lines of `rounds`, by place and run."""
        found: dict[Place, dict[str, list[dict[str, Any]]]] = {}
        for line in self.rounds.to_dict("records"):
            found.setdefault(_place(line), {}).setdefault(line["run"], []).append(line)  # pyright: ignore
        return found

    @cached_property
    def _baselines(self) -> dict[Place, dict[Hashable, str]]:
        """The runs of each place by what they have in common with those that they may be the baseline of."""
        found: dict[Place, dict[Hashable, str]] = {}
        for row in self.records:
            found.setdefault(_place(row), {}).setdefault(
                compared(self.specs[row["run"]]), row["run"]
            )
        return found

    def rounds_of(self, row: Mapping[str, Any]) -> list[dict[str, Any]]:
        """The lines of one run at its own place: two experiments may hold the same run."""
        return self._lines.get(_place(row), {}).get(row["run"], [])

    def baseline(self, row: Mapping[str, Any], **changed: Any) -> str | None:
        """Id of the run at the same place that differs in the changed fields alone (`spec.baseline`)."""
        return self._baselines[_place(row)].get(compared(self.specs[row["run"]], **changed))

    def ratio(self, row: Mapping[str, Any], base: str) -> tuple[float, float, float, int]:
        """Throughput of a row's run over that of another run of its place (`statistics.ratio`)."""
        return ratio(
            [*self.rounds_of(row), *self.rounds_of({**row, "run": base})], row["run"], base
        )

    def timeline(self, row: Mapping[str, Any]) -> Timeline | None:
        """The spans of the median step in the newest round of a row's run; None when none was recorded."""
        for folder in self.folders:
            path = folder.path / str(row["run"]) / "timeline.parquet"
            if folder.path.parts[-3:] == _place(row) and path.exists():
                if path not in self._timelines:
                    self._timelines[path] = _timeline(path, int(row["K"]))
                return self._timelines[path]
        return None


def _place(row: Mapping[str, Any]) -> Place:
    return row["machine"], row["scale"], row["experiment"]


def _timeline(path: Path, stages: int) -> Timeline | None:
    try:
        spans = read_table(path, SPAN_COLUMNS)
        return Timeline.from_rows(spans, stages) if spans else None
    except ValueError as error:
        warn(path, f"{error} (--force measures the run again)")
        return None


def load(results: Path) -> Results:
    """Everything recorded under a folder, except under a `reference` folder inside it."""
    unpack(results)
    found = sorted(path.parent for path in results.rglob("experiment.json"))
    folders = [Folder(path) for path in found if _is_place(path, results)]
    folders = [folder for folder in folders if folder.about()]
    rows: list[dict[str, Any]] = []
    lines: list[dict[str, Any]] = []
    specs: dict[str, RunSpec] = {}
    for folder in folders:
        own_rows, own_lines, own_specs = _experiment(folder)
        rows += own_rows
        lines += own_lines
        specs |= own_specs
    return Results(
        pd.DataFrame(rows, columns=COLUMNS),
        pd.DataFrame(lines, columns=ROUND_COLUMNS),
        specs,
        folders,
    )


def _is_place(path: Path, results: Path) -> bool:
    """Whether it is a folder <machine>/<scale>/<experiment>, and none of the committed ones inside other results."""
    inside = path.relative_to(results).parts
    if 0 < len(inside) < 3 or len(path.parts) < 3:
        warn(path / "experiment.json", "it lies in no folder <machine>/<scale>/<experiment>")
        return False
    return "reference" not in inside


def _experiment(
    folder: Folder,
) -> tuple[list[dict[str, Any]], list[dict[str, Any]], dict[str, RunSpec]]:
    """Rows, round lines and specs of one experiment's folder."""
    about = folder.about()
    specs = folder.specs(about)
    markers = folder.markers()
    # Records from before the load was looked at have none.
    loads = {name: marker.get("load") for name, marker in markers.items()}
    place = {
        "machine": folder.path.parts[-3],
        "scale": folder.path.parts[-2],
        "experiment": folder.path.name,
    }
    metrics = {run: folder.lines(run, markers) for run in specs}
    lines = [
        {
            **place,
            "group": about["runs"][run],
            "run": run,
            "commit": markers[line["round"]]["commit"],
            "load": _load_of(specs[run], loads[line["round"]]),
            **_round(specs[run], line),
        }
        for run in specs
        for line in metrics[run]
    ]
    rounds = {run: [line for line in lines if line["run"] == run] for run in specs}
    # Of several runs with everything in common the first is the baseline.
    baselines = {compared(specs[run]): run for run in reversed(specs)}
    different = differences(specs)
    rows = []
    for run in specs:
        here = about["identity"].get("device", "") if metrics[run] else ""
        # A simulated step is of the device whose profile it has, and of none where layers say what
        # they take.
        device = (specs[run].profile or "") if specs[run].fidelity == "simulated" else here
        row = _row(run, specs[run], metrics[run], rounds[run], folder.status(run))
        for name, changed in SPEEDUPS.items():
            base = baselines.get(compared(specs[run], **changed))
            row |= _speedup(name, run, base, [*rounds[run], *rounds[base]] if base else [])
        rows.append(
            {
                **row,
                **place,
                "differs_in": different[run],
                "device": device,
                "group": about["runs"][run],
            }
        )
    return rows, lines, specs


def _load_of(spec: RunSpec, load: float | None) -> float:
    """Share of the cores that others took; NaN where nobody looked, or where no clock measured what they disturb."""
    return math.nan if load is None or spec.fidelity not in TIMED else load


def _round(spec: RunSpec, line: Mapping[str, Any]) -> dict[str, Any]:
    """One line of metrics.jsonl, its steps reduced to their medians."""
    step = _median(line["step_s"])
    return {
        "round": line["round"],
        "step_s": step,
        "throughput": ((line.get("modelled") or {}).get("batch") or spec.N) / step,
        "bubble_idle_over_total": _median(line["bubble_idle_over_total"]),
        "bubble_idle_over_work": _median(line["bubble_idle_over_work"]),
        "loss": _median(line["loss"][-1:]),
        "setup_s": line["setup_s"],
        "breakdown": line["breakdown"],
        "checks": line.get("checks", {}),
        **{name: line.get(name) for name in ("fit", "modelled", "calibration")},
    }


def _row(
    run: str,
    spec: RunSpec,
    lines: list[dict[str, Any]],
    rounds: list[dict[str, Any]],
    status: dict[str, Any],
) -> dict[str, Any]:
    """One run over all its rounds: `lines` as recorded, `rounds` as `_round` has them."""
    if status["status"] == "done" and not lines:  # damaged: it has to be measured again
        status = {"status": "planned", "reason": ""}
    last = lines[-1] if lines else {}
    peaks = next((line["peak_bytes"] for line in reversed(lines) if line.get("peak_bytes")), None)
    gib = tuple(peak / GIB for peak in peaks) if peaks else None
    return {
        "run": run,
        **spec.model_dump(
            include={
                "model",
                "model_args",
                "K",
                "M",
                "N",
                "D",
                "schedule",
                "optimizer",
                "lr",
                "fidelity",
            }
        ),
        **spec.model_dump(include=set(SETTINGS)),
        "remat": spec.checkpoint,
        "status": f"{status['status']}({status['reason']})"
        if status["reason"]
        else status["status"],
        **{
            name: _median([line[name] for line in rounds])
            for name in ("step_s", "throughput", "bubble_idle_over_total", "bubble_idle_over_work")
        },
        "peak_gib_max": max(gib) if gib else math.nan,
        "peak_gib_per_stage": gib,
        "commit": ", ".join(dict.fromkeys(str(line["commit"]) for line in rounds)),
        "unit": last.get("unit", ""),
        "rounds": len(lines),
        "balance": tuple(last["balance"]) if last else None,
        "cut_by": spec.balance if isinstance(spec.balance, str) else "given",
        "labels": last.get("labels", {}),
        "library": spec.library,
        **_batch(last.get("modelled")),
        **_size(spec, last.get("fit")),
    }


def _batch(modelled: Mapping[str, Any] | None) -> dict[str, int]:
    """N where a cost model chose it."""
    return {"N": modelled["batch"]} if modelled else {}


def _size(spec: RunSpec, fit: Mapping[str, Any] | None) -> dict[str, Any]:
    """Of the largest model that fits; of any other run nothing."""
    found = (fit or {}).get("largest")
    if found is None:
        return {"size": "nothing fits" if fit else "", "parameters": math.nan}
    return {"size": spec.grown(found["args"]), "parameters": found["parameters"]}


def _speedup(
    name: str, run: str, base: str | None, lines: Iterable[dict[str, Any]]
) -> dict[str, float]:
    """A speedup with its interval; a baseline has none over itself."""
    value, low, high = ratio(lines, run, base)[:3] if base else (math.nan,) * 3
    if base == run:
        low = high = math.nan
    return {name: value, f"{name}_ci_low": low, f"{name}_ci_high": high}


def _median(values: Sequence[float | None]) -> float:
    """The median; NaN of nothing, or where one is null, which stands for a number that was not finite."""
    known = [value for value in values if value is not None]
    return statistics.median(known) if known and len(known) == len(values) else math.nan
