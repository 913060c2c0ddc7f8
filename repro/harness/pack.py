"""The files of an experiment's folder, loose or packed; whoever reads them writes nothing.

    results/reference/<machine>/<scale>/<experiment>/
        records.jsonl       every json and jsonl file, one line each: {"file": ..., "lines": [...]}
        timelines.parquet   the spans of all runs; "run" is the number of the measured run
        .unpacked           once they lie beside these two as loose files: the digest of the two

So is the reference committed. Packed files are read where they are packed. Before `repro run`
measures into such a folder it unpacks them, and from then on the loose files count, until other
packed ones come with git. Others may have filled the folder: no link is followed out of it.
"""

import io
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from hashlib import blake2b
from pathlib import Path
from typing import Any

from repro.gpipe.schedule.timeline import COLUMNS as SPAN_COLUMNS
from repro.harness.outside import read_table
from repro.io.files import as_json, check_inside, write
from repro.io.untrusted import LARGE, SMALL, from_json, open_regular, read_bytes, read_text, short

RECORDS, TIMELINES = "records.jsonl", "timelines.parquet"
SPANS = "timeline.parquet"  # of one run
_STAMP = ".unpacked"
REMEDY = "restore it from a copy, or move it away and measure its runs again with --force"
_OF_EXPERIMENT = ("experiment.json", RECORDS)
_PART = r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,199}"
# An experiment's folder has files, and folders with files.
_NAME = re.compile(rf"({_PART}/)?{_PART}\.jsonl?")


class Files:
    """The files of an experiment's folder.

    Args:
        folder: of the experiment; it need not exist.
        root: the results folder, which no link may lead out of; by default `folder`. It may itself
            be a link.
    """

    def __init__(self, folder: Path, root: Path | None = None) -> None:
        self.folder, self.root = folder, root or folder

    def names(self, pattern: str = "*") -> list[str]:
        """Names such as `<run>/spec.json`, sorted, of the files that end in a pattern."""
        if self._packed is not None:
            return sorted(name for name in self._packed if Path(name).match(pattern))
        patterns = [pattern] if "/" in pattern else [pattern, f"*/{pattern}"]
        paths = [path for each in patterns for path in self.folder.glob(each)]
        return sorted(path.relative_to(self.folder).as_posix() for path in paths)

    def __contains__(self, name: str) -> bool:
        if self._packed is not None:
            return name in self._packed or name.removesuffix(f"/{SPANS}") in self._measured
        path = self.folder / name
        return path.exists() or path.is_symlink()  # a link that leads nowhere is not read either

    def text(self, name: str, limit: int = SMALL) -> str:
        """The content of a file; raises a ValueError of one line, which names the file."""
        if self._packed is not None:
            return self._packed_text(name)
        try:
            return read_text(self.folder / name, limit, within=self.root)
        except ValueError as error:
            raise self.error(name, str(error)) from None

    def lines(self, name: str) -> Iterator[bytes]:
        """The lines of a file that may be larger than memory should hold at once.

        Empty ones are left out; errors as of `text`.
        """
        if self._packed is not None:
            yield from self._packed_text(name).encode().splitlines(keepends=True)
            return
        try:
            with open_regular(self.folder / name, within=self.root) as file:
                # What is longer than a line of ours comes in parts, none of which is a record.
                yield from filter(bytes.strip, iter(lambda: file.readline(LARGE), b""))
        except OSError as error:
            raise self.error(name, f"not readable ({error.strerror})") from None
        except ValueError as error:
            raise self.error(name, str(error)) from None

    def spans(self, run: str) -> list[dict[str, Any]]:
        """The rows of a run's timeline; errors as of `text`."""
        if self._packed is not None:
            return self._packed_spans.get(run, [])
        name = f"{run}/{SPANS}"
        try:
            return read_table(self.folder / name, SPAN_COLUMNS, within=self.root)
        except ValueError as error:
            raise self.error(name, str(error)) from None

    def error(self, name: str, reason: str) -> ValueError:
        """For a file that holds what it cannot have held when it was recorded."""
        return ValueError(f"{self.folder / name}: {reason.removesuffix('; correct it')}; {REMEDY}")

    def write(self, name: str, data: bytes) -> None:
        """Write a loose file; in a folder that is packed, unpack it first."""
        self.unpack()
        path = self.folder / name
        check_inside(path.parent, self.root)
        write(path, data)

    def unpack(self) -> None:
        """Write the files of a packed folder beside the two packed ones.

        Raises:
            ValueError: one line, where that would write over what was measured since.
        """
        packed = self._packed
        if packed is None:
            return
        spans = {run: as_table(self._packed_spans.get(run, [])) for run in self._measured}
        digest, stamp = self._digest(), self.folder / _STAMP
        self._packed = None
        if stamp.exists():
            try:
                self._check_unchanged(read_text(stamp, SMALL, within=self.root))
            except ValueError:
                del self._packed
                raise
            stamp.unlink()
        for name, text in packed.items():
            self.write(name, text.encode())
        for run, table in spans.items():
            self.write(f"{run}/{SPANS}", table)
        self.write(_STAMP, digest)

    def pack(self) -> dict[str, bytes]:
        """The content of the two packed files, by name; nothing is written.

        Raises:
            ValueError: one line, which names a file that cannot be read.
        """
        if self._packed is not None:
            self.check()
            return {name: self._bytes(name) for name in (RECORDS, TIMELINES)}
        records, spans = [], []
        for name in self.names():
            if name.endswith((".json", ".jsonl")) and name != RECORDS:
                text = self.text(name, LARGE)
                texts = [text] if name.endswith(".json") else text.splitlines()
                try:
                    records.append({"file": name, "lines": [from_json(text) for text in texts]})
                except ValueError as error:
                    raise self.error(name, str(error)) from None
        measured = sorted(Path(name).parent.name for name in self.names("*/env.json"))
        for number, run in enumerate(measured):
            if f"{run}/{SPANS}" in self:
                spans += [{"run": number, **row} for row in self.spans(run)]
        return {RECORDS: as_lines(records), TIMELINES: as_table(spans, ["run", *SPAN_COLUMNS])}

    def check(self) -> None:
        """Read everything that is packed; raises a ValueError of one line where it is damaged."""
        if self._packed is not None:
            assert self._packed_spans is not None

    @cached_property
    def _packed(self) -> dict[str, str] | None:
        """The packed json and jsonl files as texts by name; None where loose files count."""
        records = self.folder / RECORDS
        if not records.exists():
            return None
        if not (self.folder / TIMELINES).is_file():
            raise ValueError(
                f"{self.folder / TIMELINES}: is missing beside {RECORDS}; restore it with git"
            )
        try:
            stamp = self.folder / _STAMP
            unpacked = stamp.exists() and read_text(stamp, SMALL, within=self.root)
            if unpacked and unpacked.encode() == self._digest():
                return None
            lines = read_text(records, LARGE, within=self.root).splitlines()
            return dict(_unpacked(line) for line in lines)
        except ValueError as error:
            raise _damaged(records, error) from None

    @cached_property
    def _packed_spans(self) -> dict[str, list[dict[str, Any]]]:
        table = self.folder / TIMELINES
        spans: dict[str, list[dict[str, Any]]] = {run: [] for run in self._measured}
        try:
            for row in read_table(table, {"run": int, **SPAN_COLUMNS}, within=self.root):
                number = row.pop("run")
                if number is None or not 0 <= number < len(self._measured):
                    raise ValueError(f"it has spans of run {number}")
                spans[self._measured[number]].append(row)
        except ValueError as error:
            raise _damaged(table, error) from None
        return spans

    @cached_property
    def _measured(self) -> list[str]:
        """The packed runs that have an env.json, in the order of their numbers."""
        paths = [Path(name) for name in self._packed or ()]
        return [path.parent.name for path in paths if path.match("*/env.json")]

    def _packed_text(self, name: str) -> str:
        assert self._packed is not None
        if name not in self._packed:
            raise self.error(name, f"is missing in {RECORDS}")
        return self._packed[name]

    def _check_unchanged(self, stamp: str) -> None:
        """Raise a ValueError unless the loose files are those that were unpacked or packed last."""
        if not stamp.startswith(f'["{_hash(self.pack()[RECORDS])}"'):
            raise ValueError(
                f"{self.folder / RECORDS}: has changed, and what lies beside it was measured since "
                "it was unpacked; move that away to read the new one"
            )

    def _bytes(self, name: str) -> bytes:
        return read_bytes(self.folder / name, LARGE, within=self.root)

    def _digest(self) -> bytes:
        both = (self._bytes(name) for name in (RECORDS, TIMELINES))
        return json.dumps([_hash(raw) for raw in both]).encode()


def pack(folder: Path) -> None:
    """Write the two packed files of an experiment's folder, where its loose ones count."""
    files = Files(folder)
    if files._packed is not None:
        return
    for name, data in files.pack().items():
        files.write(name, data)
    files.write(_STAMP, files._digest())


def experiments(results: Path) -> list[Path]:
    """The folders below a results folder that hold an experiment, loose or packed."""
    return sorted({path.parent for name in _OF_EXPERIMENT for path in results.rglob(name)})


def holds_experiment(folder: Path) -> bool:
    """Whether a folder holds an experiment, loose or packed."""
    return any((folder / name).exists() for name in _OF_EXPERIMENT)


def as_lines(lines: Iterable[Mapping[str, Any]]) -> bytes:
    return "".join(json.dumps(line, allow_nan=False) + "\n" for line in lines).encode()


def as_table(rows: list[dict[str, Any]], columns: Iterable[str] = SPAN_COLUMNS) -> bytes:
    from pandas import DataFrame

    data = io.BytesIO()
    DataFrame(rows, columns=list(columns)).to_parquet(data, index=False)
    return data.getvalue()


def _hash(raw: bytes) -> str:
    return blake2b(raw, digest_size=16).hexdigest()


def _unpacked(line: str) -> tuple[str, str]:
    record = from_json(line)
    if not isinstance(record, dict) or not {"file", "lines"} <= record.keys():
        raise ValueError("a field is missing")
    name, lines = record["file"], record["lines"]
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ValueError(f"it names the file {short(name)}")
    if not isinstance(lines, list) or (name.endswith(".json") and len(lines) != 1):
        raise ValueError(f"the content of {name} is missing")
    return name, (as_json(*lines) if name.endswith(".json") else as_lines(lines)).decode()


def _damaged(path: Path, error: ValueError) -> ValueError:
    return ValueError(f"{path}: not as it was packed ({error}); restore it with git")
