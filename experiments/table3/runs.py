"""Table 3 of arXiv:1811.06965v5: throughput on GPUs without a fast interconnect."""

from typing import Any

from repro.gpipe.partition.layer_costs import LinkSpeed
from repro.harness.sizes import (
    AMOEBANET,
    TABLE3_AMOEBANET,
    TABLE3_TRANSFORMER,
    TRANSFORMER,
    stretched,
)
from repro.harness.spec import Experiment, Group, RunSpec, Scale

NAME = "table3"
M = 32
DEVICE = "p100-pcie"
KS = (1, 2, 4, 8)
N = {"amoebanet-d": 128, "transformer": 32}  # of what is modelled, and of scales node and paper
# at M=1, so that a step takes two to three seconds
STRETCH = {"amoebanet-d": 1.5, "transformer": 0.05}
MEASURED_N: dict[Scale, int] = {"smoke": 32, "laptop": 64}
THROTTLED = "-throttled"  # ends the names of the groups with slow links
# Bytes per second between two stages on the CPU, from a network's to far less; None: shared memory
# as it is.
SPEEDS: tuple[float | None, ...] = (None, 1e8, 1e7, 4e6)
ROUNDS: dict[Scale, int] = {"smoke": 1, "laptop": 5, "node": 5, "paper": 5}
DEVIATIONS = (
    "The paper had P100s in one host without NVLink. Simulated: the paper's models on a P100 "
    "with 16 GB whose messages go to the host and back over PCI-E 3, each direction of each "
    "boundary by itself; that stages share switches and the host's memory is left out. Emulated: "
    "the same costs, K real processes that wait.",
    "The paper prints no batch, image size or widths for this table: N=128 and 224 x 224, N=32 "
    "and Table 1's widths.",
    "Measured on the CPU: K=2 at the laptop scale, whose link is throttled to several speeds, "
    "against the same link not throttled. Measured at scale node: GPUs that talk through pinned "
    "host memory, peer-to-peer unused.",
)


def experiment(scale: Scale = "laptop") -> Experiment:
    """Throughput at M=32 for K in {2, 4, 8}, without NVLink.

    Paper: section 3, Table 3 (v5), divided by its own K=2 cell. Stated: P100s on one host, no
    NVLink, transfers through the host over PCI-E, M=32, AmoebaNet-D (18, 128), a Transformer of 24
    layers. Not stated: the P100's memory, the mini-batch, image size, sequence length, the
    Transformer's widths.

    Where this departs from it, and why, stands in the report and at the top of
    experiments/table3/runs.py.
    """
    models = {"amoebanet-d": TABLE3_AMOEBANET[scale], "transformer": TABLE3_TRANSFORMER[scale]}
    simulated = [_modelled(f"{name}-simulated", name, args, KS) for name, args in models.items()]
    emulated = [
        _modelled(f"{name}-emulated", name, args, KS[1:], fidelity="emulated", steps=1)
        for name, args in models.items()
        if scale != "smoke"  # whose models are too small to be waited for
    ]
    return Experiment(
        name=NAME,
        title="Throughput on GPUs without fast interconnect",
        question="Does a pipeline need fast links, of which it uses so little?",
        paper="Table 3",
        neurips="Table 3",
        needs="any machine; 8 GPUs to measure every cell",
        deviations=DEVIATIONS,
        minutes={"smoke": 0.5, "laptop": 3, "node": 10, "paper": 10},
        version=3,
        rounds=ROUNDS[scale],
        groups=(
            *simulated,
            *emulated,
            *(_throttled(scale) if scale in MEASURED_N else _staged(models)),
        ),
    )


def _modelled(
    name: str, model: str, args: dict[str, Any], Ks: tuple[int, ...], **changed: Any
) -> Group:
    """One model on P100s that are not here."""
    given: dict[str, Any] = {
        "fidelity": "simulated",
        "profile": DEVICE,
        "optimizer": "rmsprop",
    } | changed
    clock = {
        K: stretched(STRETCH[model], K, M) if given["fidelity"] == "emulated" else None for K in Ks
    }
    runs = tuple(
        RunSpec(model=model, model_args=args, K=K, M=M, N=N[model], stretch=clock[K], **given)
        for K in Ks
    )
    return Group(name=name, runs=runs, rounds=1)  # waits hardly differ from round to round


def _throttled(scale: Scale) -> list[Group]:
    models = {"amoebanet-d": AMOEBANET[scale], "transformer": TRANSFORMER[scale]}
    links = [LinkSpeed(bytes_per_second=speed) if speed else None for speed in SPEEDS]
    return [
        Group(
            name=f"{name}{THROTTLED}",
            runs=tuple(
                RunSpec(
                    model=name, model_args=args, K=2, M=M, N=MEASURED_N[scale], steps=1, link=link
                )
                for link in (links if scale == "laptop" else links[::2])
            ),
        )
        for name, args in models.items()
    ]


def _staged(models: dict[str, dict[str, Any]]) -> list[Group]:
    return [
        Group(
            name=name,
            runs=tuple(
                RunSpec(
                    model=name, model_args=args, K=K, M=M, N=N[name], steps=10, transport="gloo"
                )
                for K in KS
            ),
        )
        for name, args in models.items()
    ]
