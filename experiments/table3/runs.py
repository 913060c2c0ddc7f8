"""Table 3 of arXiv:1811.06965v5: throughput on GPUs without a fast interconnect."""

from typing import Any

from experiments.table2.runs import BY_FLOPS, LARGEST, NS
from repro.gpipe.partition.layer_costs import LinkSpeed
from repro.harness import sizes
from repro.harness.about import read_about
from repro.harness.spec import Experiment, Group, RunSpec, Scale, sweep

NAME = "table3"
M = 32
DEVICE = "p100-pcie"
KS = (1, 2, 4, 8)
N = {"amoebanet-d": 128, "transformer": 32}  # of what is modelled, and of scales node and paper
# at M=1, so that a step takes two to three seconds
STRETCH = {"amoebanet-d": 1.5, "transformer": 0.05}
MEASURED_N: dict[Scale, int] = {"smoke": 32, "laptop": 32}
MEMORY = 16 * 10**9  # of the device
VARIED = "-varied"  # ends the names of the groups with other cuts and mini-batches
THROTTLED = "-throttled"  # ends the names of the groups with slow links
# Bytes per second between two stages on the CPU, from a network's to far less; None: shared memory
# as it is.
SPEEDS: dict[Scale, tuple[float | None, ...]] = {
    "smoke": (None, 1e7),
    "laptop": (None, 1e8, 1e7, 4e6),
}
ABOUT = read_about(__file__)


def experiment(scale: Scale = "laptop") -> Experiment:
    """Throughput at M=32 for K in {2, 4, 8}, without NVLink.

    Paper: section 3, Table 3 (v5), divided by its own K=2 cell. Stated: P100s on one host, no
    NVLink, transfers through the host over PCI-E, M=32, AmoebaNet-D (18, 128), a Transformer of 24
    layers. Not stated: the P100's memory, the mini-batch, image size, sequence length, the
    Transformer's widths.
    """
    on_p100: dict[str, Any] = {"M": M, "profile": DEVICE, "optimizer": "rmsprop"}
    simulated, emulated, measured = [], [], []
    for model, args in (
        ("amoebanet-d", sizes.TABLE3_AMOEBANET[scale]),
        ("transformer", sizes.TABLE3_TRANSFORMER[scale]),
    ):
        alike = {"model": model, "model_args": args, "N": N[model]}
        modelled: dict[str, Any] = alike | on_p100 | {"fidelity": "simulated"}
        runs = sweep(**modelled, K=[*KS])
        simulated.append(Group(name=f"{model}-simulated", runs=runs, rounds=1))
        if scale != "smoke":
            simulated.append(Group(name=f"{model}{VARIED}", runs=_varied(modelled), rounds=1))
            if model == "transformer":
                narrow = _varied(modelled | {"model_args": sizes.TABLE3_NARROW[scale]})
                simulated.append(Group(name=f"{model}-narrow{VARIED}", runs=narrow, rounds=1))
        waiting = alike | on_p100 | {"steps": 1, "fidelity": "emulated"}
        runs = tuple(
            RunSpec(**waiting, K=K, stretch=sizes.stretched(STRETCH[model], K, M)) for K in KS[1:]
        )
        # Waits hardly differ from round to round.
        emulated.append(Group(name=f"{model}-emulated", runs=runs, rounds=1))
        runs = sweep(**alike, K=[*KS], M=M, transport="gloo", **sizes.in_blocks(scale, 10))
        measured.append(Group(name=model, runs=runs))
    groups = [
        *simulated,
        *(emulated if scale != "smoke" else ()),  # whose models are too small to be waited for
        *(_throttled(scale) if scale in SPEEDS else measured),
    ]
    return Experiment(
        **ABOUT.of_experiment,
        paper="Table 3",
        neurips="Table 3",
        needs="any machine; 8 GPUs to measure every cell",
        minutes={"smoke": 0.5, "laptop": 3.3, "node": 10, "paper": 10},
        version=3,
        rounds=sizes.sets(scale),
        groups=tuple(groups),
    )


def _varied(modelled: dict[str, Any]) -> tuple[RunSpec, ...]:
    """Every cell under the cuts and mini-batches of Table 2."""
    batches: list[dict[str, Any]] = [{"N": N} for N in NS]
    batches.append({"N": LARGEST["paper"], "memory": MEMORY})
    settings = [cut | batch for cut in ({}, *BY_FLOPS.values()) for batch in batches]
    alike = modelled | {"trace": False}
    return tuple(run for changed in settings for run in sweep(**alike | changed, K=[*KS[1:]]))


def _throttled(scale: Scale) -> list[Group]:
    models = {"amoebanet-d": sizes.AMOEBANET[scale], "transformer": sizes.TRANSFORMER[scale]}
    links = [LinkSpeed(bytes_per_second=speed) if speed else None for speed in SPEEDS[scale]]
    alike: dict[str, Any] = {"N": MEASURED_N[scale], "K": 2, "M": M, "link": links}
    alike |= sizes.in_blocks(scale, 10)
    groups = []
    for model, args in models.items():
        runs = sweep(model=model, model_args=args, **alike)
        groups.append(
            Group(name=f"{model}{THROTTLED}", runs=(*runs, *sizes.controls_at(scale, runs[0])))
        )
    return groups
