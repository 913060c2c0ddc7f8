"""Which commit and machine recorded the rows of a table, said below it where they differ."""

from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any

from repro.harness.results import Results, Run
from repro.report.compare import fidelities, rows_of
from repro.report.table import Table


def runs_in(line: Any) -> list[Run]:
    """The runs that a line of a table holds: it is one, or has them in its fields."""
    if isinstance(line, Run):
        return [line]
    if is_dataclass(line):
        parts: Iterable[Any] = [getattr(line, field.name) for field in fields(line)]
    elif isinstance(line, Mapping):
        parts = line.values()
    elif isinstance(line, (list, tuple)):
        parts = line
    else:
        parts = ()
    return [run for part in parts for run in runs_in(part)]


def with_provenance(results: Results, table: Table) -> Table:
    """The table, with its origin where its rows are not of one commit and machine.

    A table whose lines hold no runs, such as one with a line for each part of a step, has those of
    its experiment and of the fidelities that its title and columns name.
    """
    named = f"{table.title} {[heading.shown for heading in table.headings]}"
    of_experiment = rows_of(results, experiment=table.experiment)
    runs = table.runs or [run for run in of_experiment if run.fidelity in named]
    origin = " ".join(filter(None, (table.origin, provenance(runs))))
    return replace(table, origin=origin)


def provenance(runs: Iterable[Run]) -> str:
    """Commit and machine of these runs, with their fidelities; empty where all have the same."""
    every = origins(runs)
    return f"Rows come from {'; '.join(every)}." if len(every) > 1 else ""


def origins(runs: Iterable[Run]) -> list[str]:
    """`commit 643b6124aa on amd-epyc-2c (measured, emulated)` of each commit and machine."""
    recorded: dict[tuple[str, str], list[Run]] = {}
    for run in runs:
        for round_ in run.rounds:
            recorded.setdefault((round_.commit, run.machine), []).append(run)
    return [
        f"commit {commit} on {machine} ({', '.join(fidelities(recorded[commit, machine]))})"
        for commit, machine in sorted(recorded)
    ]
