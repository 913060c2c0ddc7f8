"""Results on disk, written so that a kill at any moment loses at most the round that was under way.

    results/<machine>/<scale>/<experiment>/
        experiment.json            the experiment as last planned, and which runs are its own
        rounds/<round>.json        commit marker of one finished round of a group, written last
        <run-id>/spec.json  env.json  status.json  metrics.jsonl  timeline.parquet

Every file is written beside its place and renamed into it. A line of metrics.jsonl counts only when
its round has a marker that names the run and the line's digest: lines without a marker are what a
kill left behind, lines that were changed since are left out with a warning.
`Folder.discard_damaged_rounds` clears both away when the experiment is measured again.
"""

import io
import json
import os
import warnings
from collections.abc import Iterable, Mapping
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any, TypeVar, get_args

from pydantic import BaseModel

from repro.gpipe.schedule.timeline import COLUMNS as SPAN_COLUMNS
from repro.harness.job import Measured
from repro.harness.machine import Machine, commit, environment
from repro.harness.outside import LARGE, SMALL, from_json, read_text, short
from repro.harness.schema import (
    Env,
    Listing,
    Marker,
    RoundRecord,
    Status,
    Word,
    checked,
    misfit,
    round_record,
)
from repro.harness.spec import Experiment, RunSpec, Scale, digest, mark
from repro.harness.warned import LeftOut
from repro.io.files import as_json, write
from repro.io.redact import redact, redacted
from repro.io.untrusted import open_regular

Model = TypeVar("Model", bound=BaseModel)
_FILES = ("spec.json", "env.json", "status.json", "metrics.jsonl", "timeline.parquet")
Markers = Mapping[str, Marker]


class Folder:
    """One experiment's results at one scale on one machine."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._written: dict[Path, bytes] = {}  # by this process, for `restore`

    @classmethod
    def of(cls, results: Path, machine: Machine, scale: Scale, experiment: str) -> "Folder":
        """The folder of an experiment; it is made when something is written."""
        return cls(results / machine.slug / scale / experiment)

    def markers(self) -> dict[str, Marker]:
        """Every finished round: id -> its marker; unreadable ones count as unfinished."""
        paths = sorted((self.path / "rounds").glob("*.json"))
        markers = {path.stem: read_as(path, Marker) for path in paths}
        return {name: marker for name, marker in markers.items() if marker is not None}

    def records(self, run: str, markers: Markers | None = None) -> list[RoundRecord]:
        """What was recorded of a run, one record per finished round, the newest last.

        What is left out, because it is damaged, is named in one warning. `markers` are those of
        this folder, where they are known already.
        """
        return [record for _, record in self._lines(run, markers)]

    def _lines(
        self, run: str, markers: Markers | None = None
    ) -> list[tuple[dict[str, Any], RoundRecord]]:
        """Each line of a run's metrics.jsonl that counts, as it stands and as a record."""
        markers = self.markers() if markers is None else markers
        wanted = {
            name: recorded for name, marker in markers.items() if (recorded := marker.runs.get(run))
        }
        path = self.path / run / "metrics.jsonl"
        try:
            texts = read_text(path, LARGE).split("\n") if wanted else []
            lines, damaged = _counted(run, texts, wanted)
        except ValueError as error:
            lines, damaged = {}, [str(error)]
        if damaged:
            warn(path, f"{'; '.join(damaged)}; the next `repro run` measures again what is missing")
        return list(lines.values())

    def status(self, run: str) -> Status:
        """The status as last written; a run never started is planned."""
        path = self.path / run / "status.json"
        status = read_as(path, Status) if path.exists() else None
        return status or Status(status="planned", reason="", rounds=0)

    def env(self, run: str) -> dict[str, Any]:
        """Where a run was measured last, see `machine.environment`; empty when not known."""
        path = self.path / run / "env.json"
        env = read_as(path, Env) if path.exists() else None
        return env.model_dump() if env else {}

    def pictured(self, run: str) -> bool:
        """Whether env.json and timeline.parquet, which only the newest round has, can be read."""
        try:
            # Look at both ends of the file only: pandas would take a second to load.
            with open_regular(self.path / run / "timeline.parquet") as file:
                first, size = file.read(4), file.seek(0, os.SEEK_END)
                file.seek(max(0, size - 4))
                whole = size > 12 and first == file.read(4) == b"PAR1"
        except (OSError, ValueError):
            return False
        return whole and bool(self.env(run))

    def about(self) -> Listing | None:
        """experiment.json as last written; None when there is none that can be read."""
        path = self.path / "experiment.json"
        return read_as(path, Listing) if path.exists() else None

    def specs(self, about: Listing | None) -> dict[str, RunSpec]:
        """The runs that experiment.json lists.

        A run whose spec cannot be read, or is not the recorded one, is left out with a warning.
        """
        if about is None:
            return {}
        specs = {}
        for run in about.runs:
            path = self.path / run / "spec.json"
            try:
                data = _object(read_text(path, SMALL))
                spec = RunSpec(**data)
                if mark(data, about.version, about.identity) != run.rpartition("-")[2]:
                    raise ValueError(
                        "it does not give the run's id, so it is not what was measured"
                    )
                specs[run] = spec
            except ValueError as error:
                warn(path, str(error))
        return specs

    def write_specs(
        self,
        experiment: Experiment,
        runs: Mapping[str, tuple[str, RunSpec]],
        identity: Mapping[str, str],
        *,
        accumulate: bool,
        command: str = "",
    ) -> None:
        """Write every run's spec and experiment.json.

        Args:
            experiment: as planned.
            runs: run id -> (group, spec).
            identity: the machine's, which their ids depend on.
            accumulate: keep the commands and the runs that were listed before, of the runs only
                those which would have the same id today: no ratio is taken with a run of another
                version, torch or machine.
            command: what a user types to measure these runs.
        """
        before = self.about() if accumulate else None
        old_runs: dict[str, str] = {}
        old_commands: list[str] = []
        if before is not None:
            old_commands = before.commands
            old_runs = {
                run: before.runs[run]
                for run, spec in self.specs(before).items()
                if spec.run_id(experiment.version, dict(identity)) == run
            }
        for run, (_, spec) in runs.items():
            self._write_json(self.path / run / "spec.json", spec.plain())
        commands = dict.fromkeys([*old_commands, *([redact(command)] if command else [])])
        about = {
            **redacted(experiment.model_dump(mode="json", exclude={"groups"})),
            "identity": dict(identity),
            "commands": list(commands),
            "runs": {**old_runs, **{run: group for run, (group, _) in runs.items()}},
        }
        self._write_json(self.path / "experiment.json", about)

    def discard_damaged_rounds(self, runs: Iterable[str]) -> None:
        """Give up damaged markers and damaged lines of these runs, to measure them again.

        Only for the process that holds the lock of the results.

        Raises:
            OSError: for a file that cannot be opened; it may be whole, so it is not overwritten.
            ValueError: one line, for a path that is no regular file.
        """
        runs = list(runs)
        rounds = sorted((self.path / "rounds").glob("*.json"))
        others = [
            self.path / "experiment.json",
            *(self.path / run / name for run in runs for name in _FILES),
        ]
        for path in [*rounds, *others]:
            try:
                with suppress(FileNotFoundError):
                    open_regular(path).close()
            except ValueError as error:
                raise ValueError(f"{path} {error.args[0].partition(';')[0]}; remove it") from None
        markers = self.markers()
        for path in rounds:
            if path.stem not in markers:
                path.unlink()
        for run in runs:
            kept = {record.round for record in self.records(run, markers)}
            lost = {name for name, marker in markers.items() if marker.runs.get(run)} - kept
            if lost:
                self.forget(run, lost)

    def set_status(self, run: str, status: str, reason: str = "", rounds: int = 0) -> None:
        """Write status.json of one run."""
        assert status in get_args(Word), status
        about = {"status": status, "reason": redact(reason), "rounds": rounds}
        self._write_json(self.path / run / "status.json", about)

    def next_round(self, group: str) -> str:
        """Id of the group's next round: `transformer-0003`."""
        return next(name for n in count(1) if not self._marker(name := f"{group}-{n:04d}").exists())

    def commit_round(
        self,
        group: str,
        measured: Mapping[str, Measured],
        machine: Machine,
        span: tuple[str, str],
        load: float | None = None,
    ) -> str:
        """Record one round: the lines of its runs first, the marker last. Returns the round's id.

        Args:
            group: name of the group.
            measured: run id -> what was measured; runs that failed are left out.
            machine: where it was measured, for env.json.
            span: when the round started and ended, ISO 8601 in UTC.
            load: share of the usable cores that other processes took meanwhile; None where it is
                not known.
        """
        self.restore()
        name, markers = self.next_round(group), self.markers()
        digests = {}
        for run, result in measured.items():
            record = result.record.model_copy(update={"round": name})
            line = redacted(record.model_dump(mode="json"))
            digests[run] = digest(line)
            folder = self.path / run
            earlier = [old for old, _ in self._lines(run, markers)]
            self._write(folder / "metrics.jsonl", as_lines([*earlier, line]))
            self._write_json(folder / "env.json", environment(machine))
            spans = result.timeline.to_rows() if result.timeline else []
            self._write(folder / "timeline.parquet", as_table(spans))
        marker = Marker(
            group=group,
            runs=digests,
            commit=commit(),
            started=span[0],
            ended=span[1],
            load=load,
        )
        self._write_json(self._marker(name), marker.model_dump(mode="json"))
        return name

    def forget(self, run: str, rounds: Iterable[str]) -> None:
        """Give up the lines of one run in these rounds: damaged ones, or old ones after --force."""
        markers = self.markers()
        # Somebody may have deleted a round meanwhile.
        for name in sorted(markers.keys() & set(rounds)):
            markers[name].runs[run] = None
            self._write_json(self._marker(name), markers[name].model_dump(mode="json"))
        kept = [line for line, _ in self._lines(run, markers)]
        self._write(self.path / run / "metrics.jsonl", as_lines(kept))

    def restore(self) -> None:
        """Write files of this process again that somebody has deleted or moved; one warning."""
        lost = [path for path in self._written if not path.exists()]
        for path in lost:
            write(path, self._written[path])
        if lost:
            others = f" and {len(lost) - 1} other files" if len(lost) > 1 else ""
            warnings.warn(
                f"{self.path}: somebody deleted or moved {lost[0].relative_to(self.path)}{others} "
                "there; all that this command has measured is written again, and what earlier "
                "ones had measured is not",
                stacklevel=1,
            )

    def _write(self, path: Path, data: bytes) -> None:
        """Write a file of this folder, and keep its content for `restore`."""
        write(path, data)
        self._written[path] = data

    def _write_json(self, path: Path, value: object) -> None:
        self._write(path, as_json(value))

    def _marker(self, name: str) -> Path:
        return self.path / "rounds" / f"{name}.json"


def read_as(path: Path, kind: type[Model]) -> Model | None:
    """The object that a JSON file holds, or None and one warning that names the file."""
    try:
        return checked(kind, _object(read_text(path, SMALL)))
    except ValueError as error:
        warn(path, str(error))
        return None


def warn(path: Path, reason: str) -> None:
    """One warning that names a file which is left out, and why."""
    warnings.warn(LeftOut(path, short(reason, 400, quote=False)), stacklevel=1)


def _object(text: str) -> dict[str, Any]:
    """A JSON object; ValueError says why it is none."""
    value = from_json(text)
    if not isinstance(value, dict):
        raise ValueError("not a JSON object")
    return value


def _counted(
    run: str, texts: list[str], wanted: Mapping[str, str]
) -> tuple[dict[str, tuple[dict[str, Any], RoundRecord]], list[str]]:
    """The lines with the wanted digests, round -> (line, record), and what is wrong with others."""
    counted: dict[str, tuple[dict[str, Any], RoundRecord]] = {}
    damaged: dict[str, list[int]] = {}
    for number, text in enumerate(texts, start=1):
        try:
            line = _object(text) if text.strip() else {}
            name = str(line.get("round"))
            if name not in wanted:
                continue
            record = round_record(line)
            if reason := misfit(run, record):
                raise ValueError(reason)
            if digest(line) != wanted[name]:
                raise ValueError("not as it was recorded")
            counted.setdefault(name, (line, record))
        except ValueError as error:
            damaged.setdefault(str(error).removesuffix("; correct it"), []).append(number)
    reasons = [f"{_line_numbers(numbers)}, {reason}" for reason, numbers in damaged.items()]
    missing = sorted(set(wanted) - set(counted))
    if missing and not reasons:
        reasons.append(f"no line of {', '.join(missing)}")
    return counted, reasons


def _line_numbers(numbers: list[int]) -> str:
    if len(numbers) == 1:
        return f"line {numbers[0]}"
    return f"{len(numbers)} lines from {numbers[0]} to {numbers[-1]}"


def as_lines(lines: Iterable[Mapping[str, Any]]) -> bytes:
    """Lines of JSON."""
    return "".join(json.dumps(line, allow_nan=False) + "\n" for line in lines).encode()


def as_table(rows: list[dict[str, Any]], columns: Iterable[str] = SPAN_COLUMNS) -> bytes:
    """Spans in parquet."""
    from pandas import DataFrame

    data = io.BytesIO()
    DataFrame(rows, columns=list(columns)).to_parquet(data, index=False)
    return data.getvalue()
