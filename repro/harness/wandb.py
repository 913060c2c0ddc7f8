"""Weights & Biases: copies of recorded runs, and a workspace that shows them.

Each measured or emulated run is a W&B run: settings are its config, rounds its history, medians its
summary. One more for each experiment has a table of all its runs. Names are columns of runs.csv.

W&B is offline unless asked otherwise, whether or not an API key exists. Nothing private leaves this
machine: only records are copied, which have no secrets. Trouble with W&B is one line on stderr and
never fails a run.
"""

import json
import math
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from repro.harness.frame import COLUMNS, all_runs, run_line, select
from repro.harness.results import GIB, Place, Results, Run
from repro.harness.schema import LearnRound
from repro.harness.spec import run_name
from repro.io.untrusted import refuse_links

if TYPE_CHECKING:
    import wandb
    import wandb_workspaces.workspaces as ws

Mode = Literal["offline", "online", "disabled"]
About = dict[str, Any]  # what `wandb.init` takes
Fill = Callable[["wandb.Run"], None]
PROJECT = "gpipe-repro"
_MODES: dict[str, Mode] = {"offline": "offline", "online": "online", "disabled": "disabled"}
_MODES |= {"dryrun": "offline", "run": "online", "shared": "online"}  # further words of WANDB_MODE
# Variables that name, describe or place one run; a command here may write several.
_OF_ONE_RUN = re.compile(
    r"WANDB_(NAME|NOTES|TAGS|DIR|ROOT_DIR|FORK_FROM|(RUN|RESUME|JOB|SWEEP|LAUNCH)(_\w+)?)"
)
# W&B keeps nothing about the machine, the code and the job, whose variables would be the config.
_OFF = ("disable_git", "disable_code", "sagemaker_disable")
_OFF += ("x_disable_machine_info", "x_disable_meta", "x_disable_stats")
_TIMED = ("step_s", "throughput", "idle_over_total", "idle_over_work")  # of a round and of a run
# Columns of a run that are results; the others are settings.
_NUMBERS = (*_TIMED, "peak_gib_max", *(name for name in COLUMNS if name.startswith("speedup_vs_")))
# Columns that the workspace draws, each against the setting that it depends on most.
_DRAWN = {"speedup_vs_k1": "K", "idle_over_total": "M", "peak_gib_max": "K"}
_printed: set[str] = set()
_unreachable: set[str] = set()  # modes: "online" once the server did not answer


def default_mode() -> Mode:
    """The mode in WANDB_MODE; offline without it. Other words are a ValueError."""
    asked = os.environ.get("WANDB_MODE", "offline")
    if asked not in _MODES:
        raise ValueError(f"WANDB_MODE = '{asked}': allowed are {', '.join(_MODES)}; or unset it")
    return _MODES[asked]


def settings(directory: Path) -> "wandb.Settings":
    """This user's settings of W&B, without variables of one run; a ValueError for a wrong one."""
    directory = directory.absolute()
    folder = directory / "wandb"  # W&B writes into these two and a folder for each run
    refuse_links(directory, folder / "cache/wandb/logs", folder / "data/artifacts/staging")
    # W&B reads its variables once per process, but for the folder of data. No file is under the
    # user's home. The service of another program would leave a run open if this process is killed.
    os.environ.setdefault("WANDB_CACHE_DIR", str(folder / "cache"))
    os.environ["WANDB_DATA_DIR"] = str(folder / "data")
    os.environ.setdefault("WANDB_SILENT", "true")
    os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
    os.environ.pop("WANDB_SERVICE", None)
    import wandb

    left_out = {name: os.environ.pop(name) for name in [*os.environ] if _OF_ONE_RUN.fullmatch(name)}
    if left_out:
        _print_once(f"{', '.join(sorted(left_out))} left out: each run has its own id and name")
    try:
        return wandb.setup().settings
    except Exception as error:
        wandb.teardown()  # otherwise W&B would go on with the settings before the wrong one
        raise ValueError(f"a WANDB_* variable or file of settings: {error}") from None
    finally:
        os.environ.update(left_out)


def log_run(mode: Mode, results: Results, run: Run, directory: Path) -> str | None:
    """Copy a run; returns the project's address when online, as `log_experiment` does."""
    line = _known(run_line(results, run))
    numbers = {name: line.pop(name) for name in _NUMBERS if name in line}
    # The spec names recomputation `checkpoint`; the history has the peak of each stage.
    config = {name: line[name] for name in line.keys() - {"remat", "peak_gib_per_stage"}}
    config |= {"method": run.spec.method, **run.spec.plain()}
    # Metrics of single languages ("bleu toy:alfa") are too many.
    tested = {f"test/{n}": v for n, v in run.newest.get("metrics", {}).items() if ":" not in n}

    def fill(copy: "wandb.Run") -> None:
        for step, point in _points(run):
            copy.log(_known(point), step)
        copy.summary.update(numbers | _known(tested))

    name = run_name(run.id, "measured", run.differs_in)[:128]  # W&B takes no longer one
    about = {"job_type": run.fidelity, "name": name, "config": config}
    return _copy(mode, run.place, directory, about, fill)


def log_experiment(mode: Mode, results: Results, place: Place, directory: Path) -> str | None:
    """Copy the table of an experiment's runs at one place."""

    def fill(copy: "wandb.Run") -> None:
        import wandb

        frame = select(all_runs(results), **place._asdict())
        split = json.loads(frame.to_json(None, orient="split", default_handler=str))
        # W&B knows no lists, so they become JSON.
        rows: Any = split["data"]
        data: Any = [[json.dumps(v) if isinstance(v, list | dict) else v for v in r] for r in rows]
        copy.log({f"runs/{place.experiment}": wandb.Table(columns=split["columns"], data=data)})

    name = f"{place.experiment}, all runs"
    about = {"job_type": "table", "name": name, "config": place._asdict()}
    return _copy(mode, place, directory, about, fill)


def workspace(results: Results, entity: str, project: str) -> "ws.Workspace":
    """Sections with the charts and the table of each experiment, and of trainings; not sent."""
    import wandb_workspaces.reports.v2 as wr
    import wandb_workspaces.workspaces as ws
    from wandb_workspaces import expr

    done = select(all_runs(results), status="done")
    sections: dict[str, list[Any]] = {}
    about = results.listings
    for name in sorted({*done["experiment"]}, key=lambda name: about[name].paper or f"~{name}"):
        rows, table = select(done, experiment=name, task="train"), f"runs/{name}"
        charts = [
            wr.CustomChart(
                query={"summaryTable": {"tableKey": table}},
                chart_name="wandb/scatter/v0",
                chart_fields={"x": axis, "y": column},
                chart_strings={"title": f"{column} against {axis}"},
            )
            for column, axis in _DRAWN.items()
            if rows.loc[rows[column].notna(), axis].nunique() > 1
        ]
        title = f"{about[name].paper or name}: {about[name].title or name}"
        sections[title] = [*charts, wr.WeavePanelSummaryTable(table_name=table)]
    if any(run.spec.task == "learn" for run in results.runs):
        sections["Trainings"] = [wr.LinePlot(title="loss of trainings", y=["train_loss"])]
    return ws.Workspace(
        entity=entity,
        project=project,
        name="GPipe, reproduced",
        sections=[ws.Section(name=name, panels=panels) for name, panels in sections.items()],
        runset_settings=ws.RunsetSettings(groupby=[expr.Metric("Group")]),
    )


def _points(run: Run) -> Iterator[tuple[int, dict[str, Any]]]:
    """The history as (step of W&B, values): each round or, of a training, the loss of its steps."""
    newest = run.rounds[-1].record
    if isinstance(newest, LearnRound):
        for step, loss in enumerate(newest.loss, start=1):
            yield step, {"train_loss": loss}
        return
    for number, each in enumerate(run.rounds):
        point: dict[str, Any] = {name: getattr(each, name) for name in (*_TIMED, "loss")}
        point |= {f"share/{part}": share for part, share in each.breakdown.items()}
        gib = [peak / GIB for peak in each.values.get("peak_bytes") or ()]
        point |= {f"peak_gib/stage_{j}": peak for j, peak in enumerate(gib)}
        yield number, point | {"peak_gib_max": max(gib, default=None)}


def _known(values: Mapping[str, Any]) -> dict[str, Any]:
    known = {name: value for name, value in values.items() if value is not None}
    return {name: v for name, v in known.items() if not (isinstance(v, float) and math.isnan(v))}


def _copy(mode: Mode, place: Place, directory: Path, about: About, fill: Fill) -> str | None:
    """Start a W&B run in the folder `wandb` of a directory, fill it and end it."""
    about = about | {"group": place.experiment, "tags": [place.scale, place.machine]}
    with _one_line("results are complete without it"):
        about["project"] = settings(directory).project or PROJECT
        copy = _start(mode, directory, about)
        try:
            fill(copy)
        finally:
            copy.finish()
            shutil.rmtree(copy.settings.log_dir, ignore_errors=True)  # it names folders in full
        return None if copy.offline else copy.project_url
    return None


def _start(mode: Mode, directory: Path, about: About) -> "wandb.Run":
    if mode == "online" and mode not in _unreachable:
        with _one_line(f"kept offline; send it later: `.venv/bin/wandb sync {directory}/wandb`"):
            return _init("online", directory, about)
        _unreachable.add(mode)
    return _init("offline", directory, about)


def _init(mode: Mode, directory: Path, about: About) -> "wandb.Run":
    directory = directory.absolute()  # the service that writes may have been started elsewhere
    directory.mkdir(parents=True, exist_ok=True)
    import wandb

    own = wandb.Settings(
        mode=mode,
        console="off",
        host="anonymous",
        init_timeout=30,
        save_code=False,
        use_dot_wandb=False,
        x_save_requirements=False,
        **dict.fromkeys(_OFF, True),
    )
    run = wandb.init(dir=directory, settings=own, reinit="create_new", **about)
    log_artifact = run.log_artifact

    def log_with_relative_paths(artifact: "wandb.Artifact", *rest: Any, **options: Any) -> Any:
        # W&B uploads the paths of a table's files. `wandb sync` finds them from the same folder.
        home = os.path.basename(os.path.expanduser("~"))  # noqa: PTH111, PTH119
        for entry in artifact.manifest.entries.values():
            entry.local_path = os.path.relpath(str(entry.local_path))
            if home in Path(entry.local_path).parts:
                raise ValueError("no table: from here, its path names your home folder")
        return log_artifact(artifact, *rest, **options)

    vars(run)["log_artifact"] = log_with_relative_paths
    return run


@contextmanager
def _one_line(further: str) -> Iterator[None]:
    """Trouble inside is one line, because no run fails by its copy."""
    try:
        yield
    except Exception as error:
        _print_once(f"{type(error).__name__}: {' '.join(str(error).split())[:200]}; {further}")


def _print_once(line: str) -> None:
    """Each line once per process: a broken W&B must not fill the screen."""
    if line not in _printed:
        _printed.add(line)
        print(f"W&B: {line}", file=sys.stderr)
