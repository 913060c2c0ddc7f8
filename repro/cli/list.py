"""`repro list`: the experiments."""

import dataclasses

from repro.cli.options import parse
from repro.harness import catalog
from repro.harness.spec import SCALES


@dataclasses.dataclass(frozen=True)
class ListOptions:
    """List the experiments: what each reproduces, what it needs, how long it takes."""


def main(arguments: list[str]) -> int:
    parse(ListOptions, arguments, "repro list")
    for name in catalog.names():
        built = {scale: catalog.find(name).build(scale) for scale in SCALES}
        first = built[SCALES[0]]
        minutes = [
            f"{scale} {experiment.minutes[scale]:g}"
            for scale, experiment in built.items()
            if scale in experiment.minutes
        ]
        exhibit = first.paper or (first.neurips and f"NeurIPS {first.neurips}")
        print(f"{name:14}" + ": ".join(filter(None, (exhibit, first.question))))
        print(" " * 14 + ". Minutes: ".join(filter(None, (first.needs, ", ".join(minutes)))))
    print("\n`repro plan NAME` shows an experiment's runs, `repro run NAME` measures them")
    return 0
