"""Results on disk, written so that a kill at any moment loses at most the round that was under way.

    results/<machine>/<scale>/<experiment>/
        experiment.json            the experiment as last planned, and which runs are its own
        rounds/<round>.json        commit marker of one finished round of a group, written last
        <run-id>/spec.json  env.json  status.json  metrics.jsonl  timeline.parquet

Every file is written beside its place and renamed into it. A line of metrics.jsonl counts only when
its round has a marker that names the run and the line's digest; other lines are what a kill left
behind. All that a marker names has to be there: what is damaged, edited, gone or of another version
stops every command in one line that names the file, before anything is written. Only `--force`
gives up recorded rounds, `Folder.forget`.
"""

from collections.abc import Iterable, Mapping
from itertools import count
from pathlib import Path
from typing import Any, TypeVar, get_args

from pydantic import BaseModel

from repro.harness.job import Measured
from repro.harness.machine import Machine, commit, environment
from repro.harness.outside import parsed, read
from repro.harness.pack import REMEDY, SPANS, Files, as_lines, as_table, holds_experiment
from repro.harness.schema import (
    Env,
    Listing,
    Marker,
    RoundRecord,
    Status,
    Word,
    round_record,
)
from repro.harness.spec import Experiment, RunSpec, Scale, digest, mark
from repro.io.files import as_json
from repro.io.redact import redact, redacted
from repro.io.untrusted import from_json

Model = TypeVar("Model", bound=BaseModel)
Markers = Mapping[str, Marker]


class Folder:
    """One experiment's results at one scale on one machine."""

    def __init__(self, path: Path, results: Path | None = None) -> None:
        self.path, self.files = path, Files(path, results)

    @classmethod
    def of(cls, results: Path, machine: Machine, scale: Scale, experiment: str) -> "Folder":
        """The folder of an experiment; it is made when something is written."""
        return cls(results / machine.slug / scale / experiment, results)

    def markers(self) -> dict[str, Marker]:
        """Every finished round: id -> its marker."""
        return {name: self._read(_marker(name), Marker) for name in sorted(self.finished())}

    def finished(self) -> set[str]:
        """The ids of all finished rounds."""
        return {Path(name).stem for name in self.files.names("rounds/*.json")}

    def rounds(self, run: str, markers: Markers | None = None) -> dict[str, str]:
        """The rounds in which a run was recorded: id -> digest of its line.

        `markers` are those of this folder, where they are known already.
        """
        markers = self.markers() if markers is None else markers
        return {name: line for name, marker in markers.items() if (line := marker.runs.get(run))}

    def records(self, run: str, markers: Markers | None = None) -> list[RoundRecord]:
        """What was recorded of a run, one record per finished round, the newest last.

        Raises:
            ValueError: one line, for a round that was recorded and cannot be read.
        """
        return [record for _, record in self._lines(run, markers)]

    def _lines(
        self, run: str, markers: Markers | None = None
    ) -> list[tuple[dict[str, Any], RoundRecord]]:
        """Each line of a run's metrics.jsonl that counts, as it stands and as a record."""
        wanted, said = self.rounds(run, markers), self.status(run).rounds
        if said > len(wanted):
            raise ValueError(
                f"{self.path / run}: {said} rounds of it were recorded, as its status.json says, "
                f"and rounds/ has {len(wanted)}; {REMEDY}"
            )
        path = f"{run}/metrics.jsonl"
        lines: dict[str, tuple[dict[str, Any], RoundRecord]] = {}
        damaged: list[str] = []
        for number, text in enumerate(self.files.lines(path) if wanted else [], start=1):
            try:
                line = _object(text.decode())
                name = str(line.get("round"))
                if digest(line) == wanted.get(name):
                    lines[name] = line, round_record(line)
                elif name in wanted:
                    raise ValueError("not as it was recorded")
            except ValueError as error:
                damaged.append(f"line {number}, {str(error).removesuffix('; correct it')}")
        if missing := sorted(wanted.keys() - lines):
            reason = damaged[0] if damaged else "no such line"
            raise self.files.error(path, f"{', '.join(missing)} cannot be read ({reason})")
        return list(lines.values())

    def status(self, run: str) -> Status:
        """The status as last written; a run never started is planned."""
        name = f"{run}/status.json"
        if name not in self.files:
            return Status(status="planned", reason="", rounds=0)
        return self._read(name, Status)

    def env(self, run: str) -> dict[str, Any]:
        """Where a run was measured last, see `machine.environment`; empty when not known."""
        name = f"{run}/env.json"
        return self._read(name, Env).model_dump() if name in self.files else {}

    def about(self) -> Listing | None:
        """experiment.json as last written; None when there is none."""
        name = "experiment.json"
        return self._read(name, Listing) if name in self.files else None

    def specs(
        self, about: Listing | None, known: Mapping[str, RunSpec] | None = None
    ) -> dict[str, RunSpec]:
        """The runs that experiment.json lists; only those that are not known yet are read.

        Raises:
            ValueError: one line, for a spec that cannot be read or is not the recorded one.
        """
        if about is None:
            return {}
        specs = {}
        for run in about.runs:
            if known and run in known:
                specs[run] = known[run]
                continue
            name = f"{run}/spec.json"
            text = self.files.text(name)
            try:
                data = _object(text)
                specs[run] = RunSpec(**data)
                if mark(data, about.version, about.identity) != run.rpartition("-")[2]:
                    raise ValueError("does not give the run's id, so it is not what was measured")
            except ValueError as error:
                raise self.files.error(name, str(error)) from None
        return specs

    def check(self, run: str, spec: RunSpec, markers: Markers) -> None:
        """Read all that is recorded of a run, before anything is written over it.

        Raises:
            ValueError: one line that names what cannot be read.
        """
        name = f"{run}/spec.json"
        if name in self.files and self._read(name, RunSpec).plain() != spec.plain():
            raise self.files.error(name, "not as it was recorded")
        self.env(run)
        self.records(run, markers)

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
        specs = self.specs(before, {run: spec for run, (_, spec) in runs.items()})
        old_commands = before.commands if before else []
        old_runs = {
            run: before.runs[run]
            for run, spec in specs.items()
            if before and spec.run_id(experiment.version, dict(identity)) == run
        }
        for run, (_, spec) in runs.items():
            self._write(f"{run}/spec.json", spec.plain())
        commands = dict.fromkeys([*old_commands, *([redact(command)] if command else [])])
        about = {
            **redacted(experiment.model_dump(mode="json", exclude={"groups"})),
            "identity": dict(identity),
            "commands": list(commands),
            "runs": {**old_runs, **{run: group for run, (group, _) in runs.items()}},
        }
        self._write("experiment.json", about)

    def set_status(self, run: str, status: str, reason: str = "", rounds: int = 0) -> None:
        """Write status.json of one run."""
        assert status in get_args(Word), status
        about = {"status": status, "reason": redact(reason), "rounds": rounds}
        self._write(f"{run}/status.json", about)

    def next_round(self, group: str) -> str:
        """Id of the group's next round: `transformer-0003`."""
        names = (f"{group}-{n:04d}" for n in count(1))
        return next(name for name in names if _marker(name) not in self.files)

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
        name = self.next_round(group)
        digests = {}
        for run, result in measured.items():
            record = result.record.model_copy(update={"round": name})
            line = redacted(record.model_dump(mode="json"))
            digests[run] = digest(line)
            lines = self._before(run, name) + as_lines([line])
            self.files.write(f"{run}/metrics.jsonl", lines)
            self._write(f"{run}/env.json", environment(machine))
            spans = result.timeline.to_rows() if result.timeline else []
            self.files.write(f"{run}/{SPANS}", as_table(spans))
        marker = Marker(
            group=group,
            runs=digests,
            commit=commit(),
            started=span[0],
            ended=span[1],
            load=load,
        )
        self._write(_marker(name), marker.model_dump(mode="json"))
        return name

    def forget(self, run: str, rounds: Iterable[str]) -> None:
        """Give up the lines of one run in these rounds: the old ones, after --force."""
        markers = self.markers()
        names = markers.keys() & set(rounds)
        # A status may say fewer rounds than there are, and never more, also after a kill here.
        self.set_status(run, "running", rounds=len(self.rounds(run, markers).keys() - names))
        for name in sorted(names):
            markers[name].runs[run] = None
            self._write(_marker(name), markers[name].model_dump(mode="json"))
        kept = [line for line, _ in self._lines(run, markers)]
        self.files.write(f"{run}/metrics.jsonl", as_lines(kept))

    def _read(self, name: str, kind: type[Model]) -> Model:
        """The object that a JSON file holds."""
        text = self.files.text(name)
        try:
            return parsed(text, kind)
        except ValueError as error:
            raise self.files.error(name, str(error)) from None

    def _write(self, name: str, value: object) -> None:
        self.files.write(name, as_json(value))

    def _before(self, run: str, name: str) -> bytes:
        """The lines of a run, without one that a killed process left of this round."""
        path = f"{run}/metrics.jsonl"
        lines = list(self.files.lines(path)) if path in self.files else []
        if lines and f'"round": "{name}"'.encode() in lines[-1]:
            lines.pop()
        return b"".join(line.rstrip() + b"\n" for line in lines)


def recorded_spec(path: Path) -> RunSpec:
    """The spec in a file, or in a run's spec.json, which may be packed.

    Raises:
        ValueError: one line, which names the file.
    """
    folder, name = path.parent.parent, f"{path.parent.name}/{path.name}"
    if not holds_experiment(folder) or name not in Files(folder):  # a file of the user's
        return read(path, RunSpec)
    return Folder(folder)._read(name, RunSpec)


def _marker(name: str) -> str:
    return f"rounds/{name}.json"


def _object(text: str) -> dict[str, Any]:
    """A JSON object; ValueError says why it is none."""
    value = from_json(text)
    if not isinstance(value, dict):
        raise ValueError("not a JSON object")
    return value
