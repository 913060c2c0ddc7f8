"""Reads what was mirrored offline, through `wandb leet inspect`."""

import json
import subprocess
import sys
from functools import cached_property
from pathlib import Path
from typing import Any


def inspect(path: Path, *flags: str) -> str:
    command = [sys.executable, "-m", "wandb", "leet", "inspect", "--json", *flags, str(path)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def only_file(directory: Path) -> Path:
    (path,) = directory.glob("wandb/offline-run-*/*.wandb")
    return path


class Mirrored:
    """One W&B run as it lies on the disk: `run`, `metrics`, `history`, `summary`, `artifacts`."""

    def __init__(self, path: Path) -> None:
        self.folder = path.parent / "files"
        self._path = path
        self.records = [json.loads(line) for line in inspect(path).splitlines()]
        (self.run,) = self._all("run")
        self.metrics = self._all("metric")
        self.history = [each["item"] for each in self._all("history")]
        self.artifacts = self._all("artifact")

    @cached_property
    def summary(self) -> dict[str, Any]:
        return json.loads(inspect(self._path, "--summary"))["summary"]

    @property
    def names(self) -> set[str]:
        """Everything that a panel can show, also the axes."""
        updates = [each["update"] for each in self._all("summary")]
        # The parts of a table or a picture have names such as "figures/bars.path".
        return {name.split(".")[0] for update in [*updates, *self.history] for name in update}

    def axes(self) -> dict[str, str]:
        """Metrics -> the metric that they are drawn against."""
        return {
            str(metric.get("glob_name") or metric["name"]): metric["step_metric"]
            for metric in self.metrics
            if "step_metric" in metric
        }

    def file(self, name: str) -> Path:
        """The file of a table, a picture or a page."""
        return self.folder / self.summary[name]["path"]

    def _all(self, kind: str) -> list[dict[str, Any]]:
        return [record[kind] for record in self.records if record["type"] == kind]


def mirrored(directory: Path) -> dict[str, Mirrored]:
    """The W&B runs under a folder, by job type and name."""
    runs = [Mirrored(path) for path in sorted(directory.glob("wandb/offline-run-*/*.wandb"))]
    return {f"{run.run['job_type']}: {run.run['display_name']}": run for run in runs}
