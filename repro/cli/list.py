"""`repro list`: the experiments."""

import dataclasses

from repro.cli.options import parse
from repro.harness import catalog
from repro.harness.spec import SCALES
from repro.harness.terminal import show, table_of


@dataclasses.dataclass(frozen=True)
class ListOptions:
    """List the experiments: what each reproduces, what it needs, how long it takes."""


def main(arguments: list[str]) -> int:
    parse(ListOptions, arguments, "repro list")
    lines = []
    for name in catalog.names():
        built = {scale: catalog.find(name).build(scale) for scale in SCALES}
        minutes = [
            f"{experiment.minutes[scale]:g}" if scale in experiment.minutes else "-"
            for scale, experiment in built.items()
        ]
        first = built[SCALES[0]]
        lines.append([name, first.paper or "-", first.neurips or "-", *minutes, first.needs])
    words = ("name", "v5", "NeurIPS", "needs")
    end = (
        "\nminutes at each scale; `repro plan NAME` shows an experiment's runs, `repro run NAME` "
        "measures them"
    )
    show([table_of((*words[:3], *SCALES, "needs"), lines, words, wrapped=("needs",)), end])
    return 0
