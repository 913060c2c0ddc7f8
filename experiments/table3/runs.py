"""Table 3 of arXiv:1811.06965v5: throughput on GPUs without a fast interconnect."""

from collections.abc import Iterator
from typing import Any

from repro.experiments.cuts import BY_FLOPS
from repro.gpipe.partition.layer_costs import LinkSpeed
from repro.harness import sizes
from repro.harness.about import read_about
from repro.harness.spec import Experiment, Group, Scale, sweep

NAME, M, KS, DEVICE = "table3", 32, [2, 4, 8], "p100-pcie"
# Model -> its arguments, and N.
MODELS: dict[str, tuple[dict[str, Any], int]] = {
    "amoebanet-d": ({"L": 18, "D": 128, "image": 224}, 128),
    "transformer": ({"L": 24}, 32),
}
THROTTLED = "-throttled"  # the end of the names of groups whose link is slowed down
SMALL = {"amoebanet-d": sizes.AMOEBANET, "transformer": sizes.TRANSFORMER}
# Bytes per second between two stages on the CPU; None: shared memory as it is.
SPEEDS: dict[Scale, tuple[float | None, ...]] = {
    "smoke": (None, 1e7),
    "laptop": (None, 1e8, 1e7, 4e6),
}
ABOUT = read_about(__file__)


def experiment(scale: Scale = "laptop") -> Experiment:
    """Throughput at M=32 for K in {2, 4, 8}, without NVLink."""
    simulated = () if scale == "smoke" else _simulated()
    measured = _throttled(scale) if scale in SPEEDS else _measured(scale)
    return Experiment(
        **ABOUT.of_experiment,
        paper="Table 3",
        neurips="Table 3",
        needs="any machine; 8 GPUs to measure every cell",
        minutes={"smoke": 0.1, "laptop": 1.4, "node": 10, "paper": 10},
        version=3,
        rounds=sizes.sets(scale),
        groups=(*simulated, *measured),
    )


def _simulated() -> Iterator[Group]:
    for model, (args, N) in MODELS.items():
        given: dict[str, Any] = {"model": model, "model_args": args, "N": N, "M": M}
        given |= {"profile": DEVICE, "optimizer": "rmsprop", "fidelity": "simulated", "K": KS}
        runs = sweep(**given)
        for cut in BY_FLOPS.values():
            runs += sweep(**given, **cut, trace=False)
        yield Group(name=f"{model}-simulated", runs=runs, rounds=1, first=True)


def _measured(scale: Scale) -> Iterator[Group]:
    """The table's own cells, on GPUs that talk through pinned host memory."""
    for model, (args, N) in MODELS.items():
        given = {"model": model, "model_args": args, "N": N, "M": M, "K": KS}
        runs = sweep(**given, transport="gloo", **sizes.in_blocks(scale))
        yield Group(name=model, runs=runs)


def _throttled(scale: Scale) -> Iterator[Group]:
    """A small model at K=2 whose link is slowed down, or not."""
    links = [LinkSpeed(bytes_per_second=speed) if speed else None for speed in SPEEDS[scale]]
    for model, args in SMALL.items():
        given = {"model": model, "model_args": args[scale], "N": 32, "K": 2, "M": M}
        runs = sweep(**given, link=links, **sizes.in_blocks(scale, 6))
        yield Group(name=f"{model}{THROTTLED}", runs=runs)
