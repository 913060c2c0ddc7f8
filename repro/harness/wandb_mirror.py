"""Weights & Biases: a mirror of recorded runs, one W&B run per measured or emulated run.

Offline unless asked otherwise, whether or not an API key exists. Runs are grouped by experiment,
their job type is the fidelity, their config the spec, their summary the row. Metric names start
with `speedup/`, `bubble/`, `memory/`, `time/` or `breakdown/`, which W&B shows as one section of
panels each. What a whole experiment shows, and the report, are mirrored by `wandb_summary`.
Nothing here may fail a run: trouble with W&B is one line on stderr.
"""

import math
import netrc
import os
import re
import statistics
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlparse

from repro.gpipe.schedule.timeline import Timeline
from repro.io.files import check_inside
from repro.io.redact import redact, redacted

if TYPE_CHECKING:
    import wandb
    from PIL.Image import Image

    from repro.harness.schema import RoundRecord

Mode = Literal["offline", "online", "disabled"]
Picture = Callable[[Timeline, str, str], "Image"]  # of the timeline, a title and the fidelity

PROJECT = "gpipe-repro"
GIB = 2**30
_LATER = "send it later with `.venv/bin/wandb sync {}/wandb`"
_LONGEST_NAME = 128  # characters of a run's name that W&B takes
_POINTS = 500  # of the loss of a training
_CLOUD = ("api.forge.coreweave.com", "api.wandb.ai")  # one and the same service
_PER_ROUND = ("time", "bubble", "memory", "breakdown")
_said: set[str] = set()
_refused: set[Mode] = set()


@dataclass(frozen=True)
class About:
    """What a W&B run is called. None of it is private.

    Attributes:
        group: the experiment.
        kind: W&B's job type: the fidelity, or "all runs" or "report".
        name: of the run.
        config: settings.
        tags: the paper's table or figure, the scale and the machine; empty ones are left out.
    """

    group: str
    kind: str
    name: str
    config: dict[str, Any]
    tags: tuple[str, ...] = ()


def log_run(
    mode: Mode,
    experiment: str,
    name: str,
    spec: dict[str, Any],
    row: dict[str, Any],
    rounds: Sequence["RoundRecord"],
    timeline: "Timeline | None",
    directory: Path,
    tags: Sequence[str] = (),
    picture: "Picture | None" = None,
) -> str | None:
    """Mirror one measured run to W&B, under `directory`/wandb.

    Args:
        mode: "offline", "online" or "disabled"; without an API key "online" stays offline and says
            so.
        experiment: the W&B group.
        name: the W&B run's name: the run's id, with what tells it from others of its experiment.
        spec: the run's resolved spec, the W&B config; as all that follows it is mirrored without
            what is private.
        row: the run's row of the results table, the W&B summary.
        rounds: the records of its rounds, each one point of the W&B history.
        timeline: spans of one step, logged as a picture; None: no picture.
        directory: where W&B may write; it is made if missing.
        tags: the paper's table or figure, e.g. ("Table 2",).
        picture: draws the timeline, given a title and the fidelity; None: no picture.

    Returns:
        The project's address when online, else None. Never raises: trouble is one line on stderr.
    """
    # Of the rounds only numbers are mirrored.
    spec, row = redacted(spec), redacted(row)
    fidelity = str(spec.get("fidelity", "measured"))

    def fill(run: "wandb.Run") -> None:
        drawn = None
        if picture and timeline is not None:
            drawn = picture(timeline, name, fidelity)
        _fill(run, spec, row, rounds, drawn)

    about = About(experiment, fidelity, name, spec, tuple(tags))
    return mirror(mode, about, directory, fill)


def log_curves(
    mode: Mode,
    name: str,
    settings: dict[str, Any],
    points: Iterable[Mapping[str, float]],
    directory: Path,
) -> str | None:
    """Mirror the curves of one training to W&B, under `directory`/wandb.

    Args:
        mode: as of `log_run`.
        name: the W&B run's name; its group is "train".
        settings: of the training, the W&B config.
        points: of the curves, in order; each has its "step".
        directory: where W&B may write; it is made if missing.

    Returns:
        The project's address when online, else None. Never raises, as `log_run`.
    """
    points = list(points)

    def fill(run: "wandb.Run") -> None:
        define_axes(run, {"*": "step"})
        for point in points:
            run.log(dict(point))

    about = About("train", "measured", name, redacted(settings))
    return mirror(mode, about, directory, fill)


def mirror(
    mode: Mode, about: About, directory: Path, fill: Callable[["wandb.Run"], None]
) -> str | None:
    """Start a W&B run, fill it and end it.

    Args:
        mode: as of `log_run`.
        about: what the run is called.
        directory: where W&B may write; it is made if missing.
        fill: logs into the run, without what is private.

    Returns:
        The project's address when online, else None. Never raises: trouble is one line on stderr.
    """
    if mode == "disabled":
        return None
    try:
        mode = _usable(mode, directory)
        run = _start(mode, about, directory)
        try:
            with run:
                fill(run)
        finally:
            _clean(Path(run.settings.log_dir))
        return run.project_url if mode == "online" else None
    except Exception as error:  # a mirror that breaks is no reason to stop measuring
        reason = f"W&B: {type(error).__name__}: {' '.join(str(error).split())[:200]}"
        if mode == "offline":
            _say(f"{reason}; results are complete without it")
            return None
        _refused.add(mode)
        _say(f"{reason}; kept offline from here on, {_LATER.format(directory)}")
        return mirror("offline", about, directory, fill)


def has_key(server: str, environ: Mapping[str, str] = os.environ) -> bool:
    """Whether an API key for a W&B server is set, in the environment or in the netrc file."""
    if environ.get("WANDB_API_KEY") or environ.get("WANDB_IDENTITY_TOKEN_FILE"):
        return True
    host = urlparse(server).hostname or server
    path = Path(environ.get("NETRC") or Path.home() / ".netrc")
    try:
        entries = netrc.netrc(path)
    except (OSError, netrc.NetrcParseError):
        return False
    return any(entries.authenticators(name) for name in (_CLOUD if host in _CLOUD else (host,)))


def server() -> str:
    """The URL of the W&B server that this user's settings name; imports wandb."""
    os.environ.setdefault("WANDB_SILENT", "true")
    import wandb

    return str(wandb.setup().settings.base_url)


def history(spec: Mapping[str, Any], rounds: Iterable["RoundRecord"]) -> list[dict[str, float]]:
    """The W&B history: one flat dict per round.

    `time/step_s` in seconds, `time/throughput` in examples per second, `bubble/*` as fractions
    beside `bubble/theory` = (K-1)/(M+K-1), `memory/*` in GiB per stage, `breakdown/*` as shares of
    K x step time.
    """
    return [
        {"round": number} | _timed(spec, record) | _peaks(record)
        for number, record in enumerate(rounds)
    ]


def learning(rounds: Sequence["RoundRecord"]) -> list[dict[str, float]]:
    """Loss against steps in the newest round of a training, at `_POINTS` steps at most."""
    if not rounds or rounds[-1].task != "learn":
        return []
    losses = rounds[-1].loss
    every = math.ceil(len(losses) / _POINTS)
    steps = range(every - 1, len(losses), every)
    known = [(step, losses[step]) for step in steps]
    return [{"step": step + 1, "train/loss": loss} for step, loss in known if loss is not None]


def name_part(text: str) -> str:
    """A text as a part of a name in W&B, whose plots want letters, digits and underscores."""
    return re.sub(r"[^A-Za-z0-9]+", "_", text).strip("_")


def _timed(spec: Mapping[str, Any], record: "RoundRecord") -> dict[str, float]:
    """What a clock measured in a round; nothing of tasks that time no step."""
    if record.task != "train":
        return {}
    point = {"bubble/theory": (spec["K"] - 1) / (spec["M"] + spec["K"] - 1)}
    if record.step_s and not spec.get("shared"):
        step = statistics.median(record.step_s)
        point |= {"time/step_s": step, "time/throughput": spec["N"] / step}
    if record.loss and record.loss[-1] is not None:
        point["loss"] = record.loss[-1]
    bubbles = {
        "idle_over_total": record.bubble_idle_over_total,
        "idle_over_work": record.bubble_idle_over_work,
    }
    for name, shares in bubbles.items():
        known = [share for share in shares if share is not None]
        if known and len(known) == len(shares):
            point[f"bubble/{name}"] = statistics.median(known)
    parts = record.breakdown.items()
    return point | {f"breakdown/{part}": share for part, share in parts if share is not None}


def _peaks(record: "RoundRecord") -> dict[str, float]:
    if not record.peak_bytes:
        return {}
    gib = [peak / GIB for peak in record.peak_bytes]
    point = {"memory/peak_gib_max": max(gib)}
    return point | {f"memory/stage_{j}_gib": value for j, value in enumerate(gib)}


def _usable(mode: Mode, directory: Path) -> Mode:
    """Online only with a key, so that W&B never stops at a prompt, and only as long as it works."""
    if mode == "online" and not has_key(server()):
        later = _LATER.format(directory)
        _say(f"W&B: online needs an API key: run `.venv/bin/wandb login`; kept offline, {later}")
        return "offline"
    return "offline" if mode in _refused else mode


def _start(mode: Mode, about: About, directory: Path) -> "wandb.Run":
    directory.mkdir(parents=True, exist_ok=True)
    check_inside(directory / "wandb", directory)
    # Read when wandb starts, once per process: no reports home, no talk, no log files under the
    # user's home.
    os.environ.setdefault("WANDB_SILENT", "true")
    os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
    os.environ.setdefault("WANDB_CACHE_DIR", str(directory.absolute() / "wandb" / "cache"))
    # Unlike the others this one is read for every table.
    os.environ["WANDB_DATA_DIR"] = str(directory.absolute() / "wandb" / "data")
    import wandb

    settings = wandb.Settings(
        mode=mode,
        console="off",
        silent=True,
        host="anonymous",
        disable_git=True,
        disable_code=True,
        save_code=False,
        init_timeout=30,
        use_dot_wandb=False,
        x_disable_machine_info=True,
        x_disable_meta=True,
        x_disable_stats=True,
        x_save_requirements=False,
    )
    run = wandb.init(
        project=PROJECT,
        group=about.group,
        job_type=about.kind,
        name=about.name[:_LONGEST_NAME],
        tags=[redact(tag) for tag in about.tags if tag] or None,
        config=about.config,
        dir=directory.absolute(),  # the service that writes may have been started elsewhere
        settings=settings,
        reinit="create_new",
    )
    _name_files_from_here(run)
    return run


def _name_files_from_here(run: "wandb.Run") -> None:
    """Tables and artifacts name the files that hold them: from this folder on, not in full.

    W&B uploads these names, so they may not hold the path of a home folder. `wandb sync` finds the
    files when it is started in the same folder.
    """
    log_artifact = run.log_artifact

    def log_without_folders(artifact: "wandb.Artifact", *arguments: Any, **options: Any) -> Any:
        for entry in artifact.manifest.entries.values():
            if entry.local_path:
                entry.local_path = os.path.relpath(entry.local_path)
                if redact(entry.local_path) != entry.local_path:
                    _say(
                        "W&B: no tables and timelines, because from here the path of the results "
                        "names your home folder; start the command in that folder"
                    )
                    return artifact
        return log_artifact(artifact, *arguments, **options)

    vars(run)["log_artifact"] = log_without_folders


def _fill(
    run: "wandb.Run",
    spec: Mapping[str, Any],
    row: Mapping[str, Any],
    rounds: Sequence["RoundRecord"],
    drawn: "Image | None",
) -> None:
    define_axes(run, {f"{section}/*": "round" for section in _PER_ROUND} | {"train/*": "step"})
    for point in [*history(spec, rounds), *learning(rounds)]:
        run.log(point)
    last: dict[str, Any] = {
        f"speedup/{name.removeprefix('speedup_')}": value
        for name, value in row.items()
        if name.startswith("speedup_") and _is_known(value)
    }
    if drawn is not None:
        import wandb

        last["timeline"] = wandb.Image(drawn, caption=run.name)
    if rounds and rounds[-1].task == "learn":
        metrics = rounds[-1].metrics.items()
        last |= {f"test/{name_part(name)}": value for name, value in metrics if _is_known(value)}
    if last:
        run.log(last)
    run.summary.update({name: value for name, value in row.items() if _is_known(value)})


def define_axes(run: "wandb.Run", axes: Mapping[str, str]) -> None:
    """Draw metrics, given as `speedup/*`, against other metrics that are logged with them."""
    for axis in dict.fromkeys(axes.values()):
        run.define_metric(axis, hidden=True)
    for metrics, axis in axes.items():
        run.define_metric(metrics, step_metric=axis)


def _clean(logs: Path) -> None:
    """W&B's logs about itself name folders in full."""
    for path in logs.glob("*.log"):
        if not path.is_symlink():
            path.write_text(redact(path.read_text(errors="replace")))


def _is_known(value: Any) -> bool:
    return value is not None and not (isinstance(value, float) and math.isnan(value))


def _say(line: str) -> None:
    """Each line once per process: a broken W&B must not fill the screen."""
    if line not in _said:
        _said.add(line)
        print(line, file=sys.stderr)
