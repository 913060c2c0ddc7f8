"""Weights & Biases: how something is mirrored there. What is mirrored stands in `wandb_summary`.

Offline unless asked otherwise, whether or not an API key exists. Nothing private leaves this
machine, and nothing here may fail a run: trouble with W&B is one line on stderr.
"""

import netrc
import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlparse

from repro.io.redact import redact
from repro.io.untrusted import refuse_links

if TYPE_CHECKING:
    import wandb

Mode = Literal["offline", "online", "disabled"]
Fill = Callable[["wandb.Run"], None]  # logs into a run, without what is private

PROJECT = "gpipe-repro"
_LONGEST_NAME = 128  # characters of a run's name that W&B takes
# Variables that name, describe or place one run; a command here may write several.
_OF_ONE_RUN = re.compile(
    r"WANDB_(NAME|NOTES|TAGS|DIR|ROOT_DIR|FORK_FROM|(RUN|RESUME|JOB|SWEEP|LAUNCH)(_\w+)?)"
)
_MODES: dict[str, Mode] = {"offline": "offline", "online": "online", "disabled": "disabled"}
_MODES |= {"dryrun": "offline", "run": "online", "shared": "online"}  # further words of WANDB_MODE
_CLOUD = ("api.forge.coreweave.com", "api.wandb.ai")  # one and the same service
_said: set[str] = set()
_refused: set[Mode] = set()  # "online" once the server did not answer


def mirror(mode: Mode, directory: Path, fill: Fill, about: dict[str, Any]) -> str | None:
    """Start a W&B run in the folder `wandb` of a directory, fill it and end it.

    `about` has what `wandb.init` takes: the name, the config, the group, which is the experiment,
    and the job type, which is the fidelity, "all runs" or "report". Returns the project's address
    when online. Never raises: trouble is one line on stderr.
    """
    run = _begin(mode, directory, about)
    if run is None:
        return None
    exit_code = 1
    with _one_line("results are complete without it"):
        fill(run)
        exit_code = 0
    return _end(run, exit_code)


def _begin(mode: Mode, directory: Path, about: dict[str, Any]) -> "wandb.Run | None":
    """A started run, offline where the server does not answer; None after trouble."""
    if mode == "disabled":
        return None
    later = f"send it later with `.venv/bin/wandb sync {directory}/wandb`"
    with _one_line("results are complete without it"):
        if mode == "online" and not has_key():
            _say(f"W&B: no API key, which `.venv/bin/wandb login` asks for; kept offline, {later}")
        elif mode == "online" and mode not in _refused:
            with _one_line(f"kept offline from here on, {later}"):
                return _start("online", directory, about)
            _refused.add("online")
        return _start("offline", directory, about)
    return None


@contextmanager
def _one_line(further: str) -> Iterator[None]:
    """Trouble inside is one line: a mirror that breaks is no reason to stop measuring."""
    try:
        yield
    except Exception as error:
        _say(f"W&B: {type(error).__name__}: {' '.join(str(error).split())[:200]}; {further}")


def default_mode() -> Mode:
    """What WANDB_MODE asks for; offline without it. Other words are a ValueError."""
    asked = os.environ.get("WANDB_MODE", "offline")
    if asked not in _MODES:
        raise ValueError(f"WANDB_MODE = '{asked}': allowed are {', '.join(_MODES)}; or unset it")
    return _MODES[asked]


def has_key() -> bool:
    """Whether an API key for this user's server is set, in the environment or the netrc file."""
    host = urlparse(str(settings().base_url)).hostname or ""
    if os.environ.get("WANDB_API_KEY") or os.environ.get("WANDB_IDENTITY_TOKEN_FILE"):
        return True
    path = Path(os.environ.get("NETRC") or Path.home() / ".netrc")
    try:
        entries = netrc.netrc(path)
    except (OSError, netrc.NetrcParseError):
        return False
    return any(entries.authenticators(name) for name in (_CLOUD if host in _CLOUD else (host,)))


def settings() -> "wandb.Settings":
    """This user's settings of W&B, without variables of one run; a ValueError for a wrong one."""
    # Read when W&B starts, once per process: no talk, no reports home, and not the service of
    # another program, which would keep a run open after this process is killed.
    os.environ.setdefault("WANDB_SILENT", "true")
    os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
    os.environ.pop("WANDB_SERVICE", None)
    import wandb

    left_out = {name: os.environ.pop(name) for name in [*os.environ] if _OF_ONE_RUN.fullmatch(name)}
    if left_out:
        _say(f"W&B: {', '.join(sorted(left_out))} left out: each run has its own id and name")
    try:
        return wandb.setup().settings
    except Exception as error:
        wandb.teardown()  # otherwise W&B would go on with the settings before the wrong one
        raise ValueError(f"a WANDB_* variable or file of settings: {error}") from None
    finally:
        os.environ.update(left_out)


def _start(mode: Mode, directory: Path, about: dict[str, Any]) -> "wandb.Run":
    tags = [redact(tag) for tag in about.get("tags", ()) if tag]
    about = about | {"config": redact(about["config"]), "tags": tags}
    about["name"] = about["name"][:_LONGEST_NAME]
    directory = directory.absolute()  # the service that writes may have been started elsewhere
    directory.mkdir(parents=True, exist_ok=True)
    folder = directory / "wandb"  # besides these two, W&B writes into a new folder for each run
    refuse_links(directory, folder / "cache/wandb/logs", folder / "data/artifacts/staging")
    # No files under the user's home. The second one is read for every table.
    os.environ.setdefault("WANDB_CACHE_DIR", str(folder / "cache"))
    os.environ["WANDB_DATA_DIR"] = str(folder / "data")
    project = settings().project or PROJECT
    import wandb

    own = wandb.Settings(
        mode=mode,
        console="off",
        silent=True,
        host="anonymous",
        disable_git=True,
        disable_code=True,
        save_code=False,
        init_timeout=30,
        sagemaker_disable=True,  # it would set the group, and the job's variables as the config
        use_dot_wandb=False,
        x_disable_machine_info=True,
        x_disable_meta=True,
        x_disable_stats=True,
        x_save_requirements=False,
    )
    run = wandb.init(project=project, dir=directory, settings=own, reinit="create_new", **about)
    log_artifact = run.log_artifact

    def log_without_folders(artifact: "wandb.Artifact", *arguments: Any, **options: Any) -> Any:
        # W&B uploads the names of the files of a table or artifact, so they begin in the current
        # folder and may not name a home. `wandb sync` finds them if started in the same folder.
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
    return run


def _end(run: "wandb.Run", exit_code: int) -> str | None:
    with _one_line("results are complete without it"):
        run.finish(exit_code)
        for path in Path(run.settings.log_dir).glob("*.log"):  # which name folders in full
            if not path.is_symlink():
                path.write_text(redact(path.read_text(errors="replace")))
    return None if run.offline else run.project_url


def _say(line: str) -> None:
    """Each line once per process: a broken W&B must not fill the screen."""
    if line not in _said:
        _said.add(line)
        print(line, file=sys.stderr)
