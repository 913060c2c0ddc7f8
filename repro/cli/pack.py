"""`repro pack`: the recorded results as one file, to send to somebody else."""

import dataclasses
from pathlib import Path

from repro.cli.options import parse
from repro.harness.bundle import write_bundle


@dataclasses.dataclass(frozen=True)
class PackOptions:
    """Pack the recorded results into one file, for somebody else's `repro report --with`."""

    results: Path = Path("results")
    """where measurements were recorded"""
    file: Path = Path("gpipe-results.zip")
    """the file to write"""


def main(arguments: list[str]) -> int:
    options = parse(PackOptions, arguments, "repro pack")
    pack_results(options.results, options.file)
    return 0


def pack_results(results: Path, file: Path) -> None:
    """Write the file, and print what it holds and how to look into it."""
    if file.is_dir():
        raise ValueError(f"--file {file}: that is a folder; name a file in it")
    for place in write_bundle(results, file):
        print(f"packed {place.experiment} of {place.machine}, scale {place.scale}")
    kib = file.stat().st_size / 1024
    print(f"wrote {file} ({kib:.0f} KiB) without logs; `repro report --with {file}` shows it")
