"""Table 2 of arXiv:1811.06965v5: normalised training throughput against K and M."""

from collections.abc import Iterator
from typing import Any

from repro.experiments.cuts import BY_FLOPS
from repro.harness import sizes
from repro.harness.about import read_about
from repro.harness.spec import Experiment, Group, Scale, sweep

NAME = "table2"
# Mini-batch N of what is measured.
N: dict[str, dict[Scale, int]] = {
    "amoebanet-d": {"smoke": 32, "laptop": 128, "node": 128, "paper": 128},
    "transformer": {"smoke": 32, "laptop": 64, "node": 32, "paper": 32},
}
SIZES = {"amoebanet-d": sizes.AMOEBANET, "transformer": sizes.TRANSFORMER}
# What is simulated: the device, and its memory, which the largest N that fits fills.
TPUS: dict[str, dict[str, Any]] = {
    "amoebanet-d": {"profile": "tpu-v2", "memory": 8 * 10**9},
    "transformer": {"profile": "tpu-v3", "memory": 16 * 2**30},
}
KS, MS = [2, 4, 8], [1, 4, 32]
ABOUT = read_about(__file__)


def experiment(scale: Scale = "laptop") -> Experiment:
    """Throughput for K in {2, 4, 8} and M in {1, 4, 32}."""
    return Experiment(
        **ABOUT.of_experiment,
        paper="Table 2",
        neurips="Table 2",
        needs="any machine; 8 devices to measure every cell",
        minutes={"smoke": 0.2, "laptop": 2.2, "node": 30, "paper": 60},
        version=4,
        rounds=sizes.sets(scale),
        groups=(*_simulated(scale), *_measured(scale)),
    )


def _measured(scale: Scale) -> Iterator[Group]:
    cells: dict[str, Any] = {"K": KS, "M": MS, **sizes.in_blocks(scale)}
    for model, args in SIZES.items():
        runs = sweep(model=model, model_args=args[scale], N=N[model][scale], **cells)
        yield Group(name=model, runs=runs)


def _simulated(scale: Scale) -> Iterator[Group]:
    """Every cell with the largest mini-batch that fits it, under each cut and each width."""
    cells: dict[str, Any] = {"K": KS, "M": MS, "N": 64 if scale == "smoke" else 4096}
    cells |= {"optimizer": "rmsprop", "fidelity": "simulated"}
    of_transformer = {"model": "transformer", **TPUS["transformer"], **cells}
    args = sizes.MODELLED_TRANSFORMER[scale]
    yield Group(name="transformer-by-memory", runs=sweep(model_args=args, **of_transformer))
    for name, cut in [("", {}), *BY_FLOPS.items()]:
        given = {"model_args": sizes.NARROW[scale], **of_transformer, **cut, "trace": not cut}
        runs = sweep(**given)
        yield Group(name=f"transformer-narrow{name}-by-memory", runs=runs, first=True)
        if scale != "smoke":  # AmoebaNet-D's take a minute
            given = {"model": "amoebanet-d", "model_args": sizes.MODELLED_AMOEBANET[scale]}
            given |= {**TPUS["amoebanet-d"], **cells, **cut}
            yield Group(name=f"amoebanet-d{name}-by-memory", runs=sweep(**given), first=True)
