"""`repro list`: the experiments."""

import dataclasses

from rich import box
from rich.table import Table

from repro.cli.options import parse
from repro.harness import catalog
from repro.harness.spec import SCALES
from repro.harness.terminal import console_for


@dataclasses.dataclass(frozen=True)
class ListOptions:
    """List the experiments: what each reproduces, what it needs, how long it takes."""


def main(arguments: list[str]) -> int:
    parse(ListOptions, arguments, "repro list")
    table = Table(box=box.SIMPLE, pad_edge=False, padding=(0, 1, 0, 0), show_edge=False)
    for column in ("name", "v5", "NeurIPS", *SCALES, "needs"):
        table.add_column(
            column, justify="right" if column in SCALES else "left", no_wrap=column != "needs"
        )
    for name in catalog.names():
        built = [catalog.find(name).build(scale) for scale in SCALES]
        minutes = [
            f"{experiment.minutes[scale]:g}'" if scale in experiment.minutes else "-"
            for scale, experiment in zip(SCALES, built, strict=True)
        ]
        first = built[0]
        table.add_row(name, first.paper or "-", first.neurips or "-", *minutes, first.needs)
    console_for().print(table)
    print(
        "\n9' are 9 minutes. `repro plan NAME` shows an experiment's runs, `repro run NAME` "
        "measures them."
    )
    return 0
