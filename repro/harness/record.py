"""Results on disk, written so that a kill at any moment loses at most the round that was under way.

    results/<machine>/<scale>/<experiment>/
        experiment.json            the experiment as last planned, and which runs are its own
        rounds/<round>.json        commit marker of one finished round of a group, written last
        <run-id>/spec.json  env.json  status.json  metrics.jsonl  timeline.parquet

Every file is written beside its place and renamed into it. A line of metrics.jsonl counts only when its round has a
marker that names the run; lines without one are what a kill left behind and are dropped at the next write.
"""

import json
import os
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from repro.harness.formats import Line, Listing, Marker, Status, damage, finite
from repro.harness.machine import Machine, commit, environment
from repro.harness.outside import LARGE, SMALL, from_json, read_text, short
from repro.harness.private import redact, redacted
from repro.harness.spec import Experiment, RunSpec, Scale

if TYPE_CHECKING:
    from repro.harness.results import Results

STATUSES = ("planned", "running", "done", "skipped", "oom", "timeout", "failed", "interrupted")


@dataclass(frozen=True)
class Measured:
    """What one run brought home from one round: a metrics line and the spans of its median step."""

    metrics: dict[str, Any]
    timeline: list[dict[str, Any]]


class Folder:
    """One experiment's results at one scale on one machine."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def of(cls, results: Path, machine: Machine, scale: Scale, experiment: str) -> "Folder":
        """The folder that an experiment is measured into; made when something is written."""
        return cls(results / machine.slug / scale / experiment)

    def markers(self) -> dict[str, dict[str, Any]]:
        """Every finished round: id -> {group, runs, commit, started, ended}; unreadable ones count as unfinished."""
        found = {}
        for path in sorted((self.path / "rounds").glob("*.json")):
            marker = read_json(path, Marker)
            if marker is not None:
                found[path.stem] = marker
        return found

    def lines(self, run: str) -> list[dict[str, Any]]:
        """The metrics of a run, one dict per finished round; none when the file cannot be read."""
        markers = self.markers()
        return [line for line in _read_lines(self.path / run / "metrics.jsonl") if self._counts(line, run, markers)]

    def status(self, run: str) -> dict[str, Any]:
        """{status, reason, rounds} as last written; a run never started is planned."""
        path = self.path / run / "status.json"
        return (read_json(path, Status) if path.exists() else None) or {"status": "planned", "reason": "", "rounds": 0}

    def about(self) -> dict[str, Any]:
        """experiment.json as last written, `runs` its listing; empty when there is none that can be read."""
        path = self.path / "experiment.json"
        return (read_json(path, Listing) if path.exists() else None) or {}

    def declare(
        self,
        experiment: Experiment,
        runs: Mapping[str, tuple[str, RunSpec]],
        *,
        accumulate: bool,
        command: str = "",
        identity: Mapping[str, str] | None = None,
    ) -> None:
        """Write experiment.json and every run's spec.

        Args:
            experiment: as planned.
            runs: run id -> (group, spec).
            accumulate: keep the commands and the runs that were listed before, of the runs only those which would
                have the same id today: no ratio is taken with a run of another version, torch or machine.
            command: what a user types to measure these runs.
            identity: the machine's, which their ids depend on; needed to accumulate.
        """
        before = self.about() if accumulate else {}
        old = self._current(before.get("runs", {}), experiment.version, dict(identity or {}))
        listed = {**old, **{run: group for run, (group, _) in runs.items()}}
        about = redacted(experiment.model_dump(mode="json", exclude={"groups"}))
        commands = dict.fromkeys([*before.get("commands", []), *([redact(command)] if command else [])])
        write_json(self.path / "experiment.json", {**about, "commands": list(commands), "runs": listed})
        for run, (_, spec) in runs.items():
            if not (self.path / run / "spec.json").exists():
                write_json(self.path / run / "spec.json", spec.model_dump(mode="json"))

    def _current(self, listed: Mapping[str, str], version: int, identity: dict[str, str]) -> dict[str, str]:
        """The listed runs whose recorded spec still gives their id."""
        kept = {}
        for run, group in listed.items():
            path = self.path / run / "spec.json"
            try:
                data = read_json(path)
                if data is not None and RunSpec(**data).run_id(version, identity) == run:
                    kept[run] = group
            except ValueError as error:
                warn_unreadable(path, str(error))
        return kept

    def set_status(self, run: str, status: str, reason: str = "", rounds: int = 0) -> None:
        """Write status.json of one run."""
        assert status in STATUSES, status
        write_json(self.path / run / "status.json", {"status": status, "reason": redact(reason), "rounds": rounds})

    def next_round(self, group: str) -> str:
        """Id of the group's next round: `transformer-0003`."""
        numbers = [path.stem.rpartition("-")[2] for path in (self.path / "rounds").glob(f"{group}-[0-9]*.json")]
        return f"{group}-{max((int(n) for n in numbers if n.isdecimal()), default=0) + 1:04d}"

    def commit_round(
        self, group: str, measured: Mapping[str, Measured], machine: Machine, span: tuple[str, str]
    ) -> str:
        """Make one round part of the record: the runs' lines first, the marker last. Returns the round's id.

        Args:
            group: name of the group.
            measured: run id -> what it brought home; runs that failed are left out.
            machine: where it was measured, for env.json.
            span: when the round started and ended, ISO 8601 in UTC.
        """
        name = self.next_round(group)
        for run, result in measured.items():
            folder = self.path / run
            lines = [*self.lines(run), {"round": name, **redacted(result.metrics)}]
            _write_lines(folder / "metrics.jsonl", lines)
            write_json(folder / "env.json", environment(machine))
            _write_timeline(folder / "timeline.parquet", result.timeline)
        marker = {"group": group, "runs": list(measured), "commit": commit(), "started": span[0], "ended": span[1]}
        write_json(self.path / "rounds" / f"{name}.json", marker)
        return name

    def forget(self, run: str, rounds: Iterable[str]) -> None:
        """Drop the metrics lines of one run that belong to the given rounds (--force, once fresh ones exist)."""
        gone = set(rounds)
        kept = [line for line in self.lines(run) if line["round"] not in gone]
        _write_lines(self.path / run / "metrics.jsonl", kept)

    @staticmethod
    def _counts(line: dict[str, Any], run: str, markers: Mapping[str, dict[str, Any]]) -> bool:
        return run in markers.get(str(line.get("round")), {}).get("runs", ())


def load(results: Path) -> "Results":
    """Everything recorded under a results folder, except results/reference when given its parent."""
    from repro.harness.results import collect

    return collect(results)


def read_json(path: Path, kind: type[BaseModel] | None = None) -> dict[str, Any] | None:
    """A JSON object, of that kind if one is given, or None and one warning that names the file."""
    try:
        value = from_json(read_text(path, SMALL))
        reason = (damage(kind, value) if kind else "") if isinstance(value, dict) else "not a JSON object"
        if not reason:
            return value
    except ValueError as error:
        reason = str(error)
    warn_unreadable(path, reason)
    return None


def write_json(path: Path, value: object) -> None:
    """Write JSON so that a reader sees the old file or the new one, never a part."""
    write_text(path, json.dumps(value, indent=1) + "\n")


def write_text(path: Path, text: str) -> None:
    """Write then rename."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = _beside(path)
    try:
        with beside.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    except OSError as error:  # a full disk names no file
        raise OSError(error.errno, error.strerror, str(path)) from error


def _write_lines(path: Path, lines: Iterable[Mapping[str, Any]]) -> None:
    """Lines of JSON; what is not finite, such as a loss that overflowed, becomes null."""
    write_text(path, "".join(json.dumps(finite(line), allow_nan=False) + "\n" for line in lines))


def _write_timeline(path: Path, rows: list[dict[str, Any]]) -> None:
    from pandas import DataFrame

    path.parent.mkdir(parents=True, exist_ok=True)
    columns = ["kind", "stage", "micro_batch", "step", "start", "end"]
    DataFrame(rows, columns=columns).to_parquet(_beside(path), index=False)
    _beside(path).replace(path)


def _read_lines(path: Path) -> list[dict[str, Any]]:
    """The lines that can be used; one warning for all the others."""
    if not path.exists():
        return []
    try:
        texts = read_text(path, LARGE).split("\n")
    except ValueError as error:
        warn_unreadable(path, str(error))
        return []
    good, bad = [], []
    for number, text in enumerate(texts, start=1):
        if text.strip():
            line, reason = _parse_line(text)
            if reason:
                bad.append(f"line {number}, {reason}")
            else:
                good.append(line)
    if bad:
        warn_unreadable(path, "; ".join(bad))
    return good


def _parse_line(text: str) -> tuple[dict[str, Any], str]:
    """One line of metrics.jsonl and what is wrong with it."""
    try:
        line = from_json(text)
    except ValueError as error:
        return {}, str(error)
    return (line, damage(Line, line)) if isinstance(line, dict) else ({}, "not a JSON object")


def _beside(path: Path) -> Path:
    return path.with_name(f".{path.name}.{os.getpid()}")


def warn_unreadable(path: Path, reason: str) -> None:
    """One warning that names a file which is left out, and why."""
    warnings.warn(f"{path} cannot be read and is left out: {short(reason, 400, quote=False)}", stacklevel=3)
