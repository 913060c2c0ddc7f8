"""`repro list`: the experiments."""

import dataclasses

from repro.cli.answers import print_answer
from repro.cli.options import parse
from repro.harness import catalog
from repro.harness.spec import SCALES, Experiment


@dataclasses.dataclass(frozen=True)
class ListOptions:
    """List the experiments: what each reproduces, what it needs, how long it takes."""


def main(arguments: list[str]) -> int:
    parse(ListOptions, arguments, "repro list")
    lines = []
    for name in catalog.names():
        built = {scale: catalog.find(name).build(scale) for scale in SCALES}
        first = built[SCALES[0]]
        minutes = {scale: _minutes(scale, each) for scale, each in built.items()}
        exhibits = {"v5": first.paper or "-", "NeurIPS": first.neurips or "-"}
        lines.append({"name": name} | exhibits | minutes | {"needs": first.needs})
    hint = "`repro plan NAME` shows an experiment's runs, `repro run NAME` measures them"
    print_answer({"experiments, with minutes at each scale": lines, "next": hint})
    return 0


def _minutes(scale: str, experiment: Experiment) -> str:
    return f"{experiment.minutes[scale]:g}" if scale in experiment.minutes else "-"
