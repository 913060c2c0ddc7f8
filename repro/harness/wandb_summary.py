"""Weights & Biases: what is mirrored of runs, of a whole experiment, and of the report.

One W&B run stands for each measured or emulated run. Its config has the settings, its history has
a point for each round, and its summary has the medians under the same names. Names differ in their
first 20 characters, since narrow columns show no more. What stands before the slash is a section
of panels in W&B. After each experiment one W&B run has a table of all its runs (so simulated and
counted runs need no W&B run each) and its timelines. After the report, one W&B run has the page,
the figures, and the main table of each exhibit. `repro dashboard` builds panels from the same
names.
"""

import io
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from repro.gpipe.schedule.timeline import Timeline
from repro.harness.frame import COLUMNS, all_runs, run_line
from repro.harness.results import Place, Results, Run
from repro.harness.schema import LearnRound, TrainRound
from repro.harness.spec import run_name
from repro.harness.wandb_mirror import Mode, mirror
from repro.io.redact import redact
from repro.io.untrusted import LARGE, read_text

if TYPE_CHECKING:
    import pandas as pd
    import wandb
    from PIL.Image import Image

Picture = Callable[[Timeline, str, str], "Image"]  # of the timeline, a title and the fidelity

PAGE = "report"  # the name of the page among W&B's media
# Tables of the report about all experiments. Those of one experiment begin with its name.
GENERAL = ("verdicts",)
_POINTS = 500  # of the loss of a training
# Medians of a round and of a run, by their columns. Seconds, examples a second, shares of K x step
# time and of work.
_TIMED = {
    "step_s": "time/step_s",
    "throughput": "time/throughput",
    "idle_over_total": "idle/over_total",
    "idle_over_work": "idle/over_work",
}
_PEAK = "memory/peak_gib"  # of the fullest stage
# Columns of a run's line -> names in the summary; the other ones are settings.
_NUMBERS = {**_TIMED, "peak_gib_max": _PEAK} | {
    column: column.replace("speedup_vs_", "speedup/").replace("_ci", "")
    for column in COLUMNS
    if column.startswith("speedup_vs_")
}


def places(results: Results) -> list[Place]:
    return list(dict.fromkeys(run.place for run in results.runs if run.done))


def runs_table(experiment: str) -> str:
    return f"runs/{experiment}"


def name_part(text: str) -> str:
    """A text as a part of a name in W&B, whose plots want letters, digits and underscores."""
    return re.sub(r"[^A-Za-z0-9]+", "_", text).strip("_")


def log_run(
    mode: Mode, results: Results, run: Run, directory: Path, tags: Sequence[str], picture: Picture
) -> str | None:
    """Mirror one measured or emulated run, with a picture of its median step; as `mirror`."""
    row = _known(run_line(results, run))
    row.pop("peak_gib_per_stage", None)  # a number each in the history
    config = {"method": run.spec.method}
    config |= {column: value for column, value in row.items() if column not in _NUMBERS}
    summary = {_NUMBERS[column]: value for column, value in row.items() if column in _NUMBERS}
    timeline = results.timeline(run)
    name = run_name(run.id, "measured", run.differs_in)

    def fill(mirrored: "wandb.Run") -> None:
        import wandb

        for step, point in _points(run):
            mirrored.log(_known(point), step)
        if timeline is not None:
            image = wandb.Image(picture(timeline, name, run.fidelity), caption=name)
            mirrored.log({"timeline": image})
        if isinstance(record := run.rounds[-1].record, LearnRound):
            metrics = _known(record.metrics)
            mirrored.log({f"test/{name_part(key)}": value for key, value in metrics.items()})
        mirrored.summary.update(summary)

    about = {"group": run.experiment, "job_type": run.fidelity, "name": name, "tags": tags}
    return mirror(mode, directory, fill, about | {"config": config | run.spec.plain()})


def log_experiment(
    mode: Mode, results: Results, place: Place, directory: Path, tags: Sequence[str]
) -> str | None:
    """Mirror the table of an experiment's runs and its timelines, at one place; as `mirror`."""
    name = place.experiment
    lines = [index for index, run in enumerate(results.runs) if run.place == place]

    def fill(run: "wandb.Run") -> None:
        import wandb

        run.log({runs_table(name): _table(all_runs(results).loc[lines])})
        trace = results.chrome_trace([results.runs[index] for index in lines])
        if trace["traceEvents"]:  # one Chrome trace for ui.perfetto.dev
            artifact = wandb.Artifact(f"{name}-timelines", type="timelines")
            with artifact.new_file(f"{name}.trace.json") as file:
                file.write(redact(json.dumps(trace)))
            run.log_artifact(artifact)

    about = {"group": name, "job_type": "all runs", "name": f"{name}, all runs", "tags": tags}
    return mirror(mode, directory, fill, about | {"config": place._asdict()})


def log_report(mode: Mode, plots: Path, experiments: Iterable[str], directory: Path) -> str | None:
    report = Report(plots, tuple(experiments))

    def fill(run: "wandb.Run") -> None:
        import wandb

        frames = {name: report.read(path) for name, path in report.tables().items()}
        logged: dict[str, Any] = {name: _table(each) for name, each in frames.items() if len(each)}
        for name, path in report.figures().items():
            logged[name] = wandb.Image(str(path), caption=path.stem)
        if report.page.is_file():
            text = redact(read_text(report.page, LARGE, within=plots))
            logged[PAGE] = wandb.Html(text, inject=False, data_is_not_path=True)
        run.log(logged)

    about = dict.fromkeys(("group", "job_type", "name"), "report")
    return mirror(mode, directory, fill, about | {"config": {"experiments": [*report.experiments]}})


class Report(NamedTuple):
    """The files of a report that are mirrored, by their names in W&B; others are left alone."""

    plots: Path
    experiments: tuple[str, ...]

    @property
    def page(self) -> Path:
        return self.plots / "report.html"

    def tables(self, *experiments: str) -> dict[str, Path]:
        """The main table of each experiment, which has the shortest name; and the general ones."""
        of_each = [self.files("csv", name) for name in experiments or (*GENERAL, *self.experiments)]
        mains = [min(paths, key=lambda path: len(path.stem)) for paths in of_each if paths]
        return {f"tables/{name_part(path.stem)}": path for path in mains}

    def figures(self, *experiments: str) -> dict[str, Path]:
        paths = self.files("png", *experiments)
        return {f"plots/{name_part(path.stem)}": path for path in paths}

    def read(self, path: Path) -> "pd.DataFrame":
        """One of the tables; an empty cell is NaN."""
        import pandas as pd

        text = read_text(path, LARGE, within=self.plots)
        return pd.read_csv(io.StringIO(text), keep_default_na=False, na_values=[""])

    def files(self, kind: str, *experiments: str) -> list[Path]:
        """The files of experiments; without any, of all, and the general ones."""
        names = experiments or (*self.experiments, *GENERAL)
        return [
            path
            for path in sorted(self.plots.glob(f"*.{kind}"))
            if any(path.stem == name or path.stem.startswith(f"{name}_") for name in names)
        ]


def _points(run: Run) -> Iterator[tuple[int, dict[str, Any]]]:
    """The history, as (step of W&B, values): each round or, of a training, the loss of its steps.

    `idle/bubble` is (K-1)/(M+K-1), the idle share by theory; `share/*` are shares of K x step time.
    """
    newest = run.rounds[-1].record
    if isinstance(newest, LearnRound):
        every = math.ceil(len(newest.loss) / _POINTS)
        for step in range(every, len(newest.loss) + 1, every):
            yield step, {"train/loss": newest.loss[step - 1]}
        return
    for number, each in enumerate(run.rounds):
        point: dict[str, Any] = {}
        if isinstance(each.record, TrainRound):
            point = {name: getattr(each, column) for column, name in _TIMED.items()}
            point |= {"idle/bubble": (run.K - 1) / (run.M + run.K - 1), "step/loss": each.loss}
            point |= {f"share/{part}": share for part, share in each.breakdown.items()}
        gib = [peak / 2**30 for peak in each.record.peak_bytes or ()]
        point[_PEAK] = max(gib, default=None)
        yield number, point | {f"memory/stage_{j}_gib": value for j, value in enumerate(gib)}


def _table(frame: "pd.DataFrame") -> "wandb.Table":
    """A table without what is private; W&B knows no lists, so they become JSON."""
    import wandb

    text = frame.to_json(None, orient="split", double_precision=15, default_handler=str)
    split = json.loads(text or "{}")
    # All cells at once, since each look for secrets takes a while.
    rows: Any = json.loads(redact(json.dumps(split["data"])))
    cells: Any = [[json.dumps(v) if isinstance(v, list | dict) else v for v in row] for row in rows]
    return wandb.Table(columns=split["columns"], data=cells)


def _known(values: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: value
        for name, value in values.items()
        if value is not None and not (isinstance(value, float) and math.isnan(value))
    }
