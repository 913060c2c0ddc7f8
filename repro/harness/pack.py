"""Packed results: the files of an experiment in two files, as the reference is committed.

    results/reference/<machine>/<scale>/<experiment>/
        records.jsonl       every json and jsonl file, one line each: {"file": ..., "lines": [...]}
        timelines.parquet   the spans of all runs; "run" is the number of the measured run

`pack` writes both. `unpack` writes the files of `repro.harness.record` from them and beside them,
where git ignores them.
"""

import json
from hashlib import blake2b
from pathlib import Path, PurePosixPath
from typing import Any

from repro.gpipe.schedule.timeline import COLUMNS as SPAN_COLUMNS
from repro.harness.outside import LARGE, from_json, read_table, read_text
from repro.harness.record import as_lines, as_table
from repro.io.files import as_json, write
from repro.io.untrusted import read_bytes

RECORDS, TIMELINES = "records.jsonl", "timelines.parquet"
_STAMP = ".unpacked"  # digest of the two files that were unpacked last


def pack(folder: Path) -> list[Path]:
    """Write the two files of an experiment's folder from all others in it."""
    files = packed(folder)
    for name, data in files.items():
        write(folder / name, data)
    write(folder / _STAMP, _digest(folder).encode())
    return [folder / name for name in files]


def packed(folder: Path) -> dict[str, bytes]:
    """The content of the two files of an experiment's folder, by name; nothing is written."""
    records, spans = [], []
    measured = sorted(
        (path.parent for path in folder.glob("*/env.json")), key=lambda path: path.name
    )
    for path in sorted(folder.rglob("*"), key=lambda path: path.relative_to(folder).as_posix()):
        if path.suffix in (".json", ".jsonl") and path.name != RECORDS:
            text = read_text(path, LARGE)
            texts = [text] if path.suffix == ".json" else text.splitlines()
            name = path.relative_to(folder).as_posix()
            records.append({"file": name, "lines": [from_json(text) for text in texts]})
        elif path.name == "timeline.parquet":
            spans += [
                {"run": measured.index(path.parent), **row}
                for row in read_table(path, SPAN_COLUMNS)
            ]
    return {RECORDS: as_lines(records), TIMELINES: as_table(spans, ["run", *SPAN_COLUMNS])}


def unpack(results: Path) -> None:
    """Write the files of every packed experiment below a folder, unless that was done before.

    Raises:
        ValueError: one line, naming a packed file that is damaged.
    """
    for records in sorted(results.rglob(RECORDS)):
        folder = records.parent
        if not (folder / TIMELINES).is_file():
            raise ValueError(
                f"{folder / TIMELINES}: is missing beside {RECORDS}; restore it with git"
            )
        stamp = folder / _STAMP
        digest = _digest(folder)
        if stamp.exists() and stamp.read_text(encoding="utf-8") == digest:
            continue
        try:
            write_files(folder)
        except ValueError as error:
            raise ValueError(
                f"{records}: not as it was packed ({error}); restore it with git"
            ) from None
        except (KeyError, TypeError, IndexError):  # whose texts mean nothing to a user
            raise ValueError(
                f"{records}: not as it was packed (a field or a line is missing or of another "
                "kind); restore it with git"
            ) from None
        write(stamp, digest.encode())


def write_files(folder: Path) -> None:
    """Write the files of an experiment from the two packed ones in the same folder.

    Raises:
        ValueError, KeyError, TypeError, IndexError: where these are damaged.
    """
    measured = []
    for line in read_text(folder / RECORDS, LARGE).splitlines():
        record = from_json(line)
        path = PurePosixPath(record["file"])
        if path.is_absolute() or ".." in path.parts or path.suffix not in (".json", ".jsonl"):
            raise ValueError(f"it names the file {path}")
        is_object = path.suffix == ".json"
        write(folder / path, as_json(*record["lines"]) if is_object else as_lines(record["lines"]))
        if path.name == "env.json":
            measured.append(path.parent)
    spans: list[list[dict[str, Any]]] = [[] for _ in measured]
    for row in read_table(folder / TIMELINES, {"run": int, **SPAN_COLUMNS}):
        spans[row.pop("run")].append(row)
    for run, rows in zip(measured, spans, strict=True):
        write(folder / run / "timeline.parquet", as_table(rows))


def _digest(folder: Path) -> str:
    both = (read_bytes(folder / name, LARGE) for name in (RECORDS, TIMELINES))
    return json.dumps([blake2b(raw, digest_size=16).hexdigest() for raw in both])
