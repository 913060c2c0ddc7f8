"""Table 2 of arXiv:1811.06965v5: normalised training throughput against K and M."""

from typing import Any

from repro.harness import sizes
from repro.harness.about import read_about
from repro.harness.spec import Experiment, Group, Partitioner, RunSpec, Scale, sweep

NAME = "table2"
# Mini-batch N of each model per scale; their sizes are in repro.harness.sizes.
AMOEBANET_N: dict[Scale, int] = {"smoke": 32, "laptop": 128, "node": 128, "paper": 128}
TRANSFORMER_N: dict[Scale, int] = {"smoke": 32, "laptop": 64, "node": 32, "paper": 32}
# Simulated at the paper's size at every scale but smoke: device, its memory, N, and how much longer
# stages wait when they are emulated at M=1, so that a step takes one to two seconds.
TPUS = {
    "amoebanet-d": ("tpu-v2", 8 * 10**9, 128, 1.2),
    "transformer": ("tpu-v3", 16 * 2**30, 32, 0.04),
}
# N that may fill a memory
LARGEST: dict[Scale, int] = {"smoke": 64, "laptop": 4096, "node": 4096, "paper": 4096}
KS, MS = (1, 2, 4, 8), (1, 4, 32)
CELLS = {"K": [*KS[1:]], "M": [*MS]}
# How the authors cut stages, here by FLOPs: the ends of the groups' names -> the rule. The paper
# describes the minimum variance, Lingvo's code has the cumulative share.
CUTS: dict[str, Partitioner] = {"share": "cumulative-share", "variance": "minimum-variance"}
BY_FLOPS: dict[str, dict[str, Any]] = {
    f"-{name}": {"balance": "flops", "partitioner": partitioner}
    for name, partitioner in CUTS.items()
}
NS = (32, 128, 512)  # mini-batches of which Tables 2 and 3 are simulated under every cut
ABOUT = read_about(__file__)


def experiment(scale: Scale = "laptop") -> Experiment:
    """Throughput for K in {1, 2, 4, 8} and M in {1, 4, 32}.

    Paper: section 3, Table 2 (v5 and NeurIPS), divided by its own K=2, M=1 cell, on Cloud TPUs, one
    partition per accelerator. Stated: AmoebaNet-D (18, 256), Transformer-48, mini-batch adjusted to
    memory "if necessary". Not stated: the mini-batch of any cell, image size, sequence length, the
    Transformer's widths, the TPU generation.
    """
    modelled = {
        "amoebanet-d": sizes.MODELLED_AMOEBANET[scale],
        "transformer": sizes.MODELLED_TRANSFORMER[scale],
    }
    return Experiment(
        **ABOUT.of_experiment,
        paper="Table 2",
        neurips="Table 2",
        needs="any machine; 8 devices to measure every cell",
        minutes={"smoke": 1.5, "laptop": 9, "node": 30, "paper": 60},
        version=4,
        rounds=sizes.sets(scale),
        groups=(
            *_measured(scale),
            *(_controlled(model, args) for model, args in modelled.items()),
            *_varied(scale, modelled),
            *_emulated(scale, modelled),
        ),
    )


def _measured(scale: Scale) -> list[Group]:
    cells: dict[str, Any] = {"K": [*KS], "M": [*MS], **sizes.in_blocks(scale, 12)}
    models = (
        ("amoebanet-d", sizes.AMOEBANET[scale], AMOEBANET_N[scale]),
        ("transformer", sizes.TRANSFORMER[scale], TRANSFORMER_N[scale]),
    )
    groups = []
    for model, args, N in models:
        runs = sweep(model=model, model_args=args, N=N, **cells)
        controlled = next(run for run in runs if (run.K, run.M) == (2, 4))
        groups.append(Group(name=model, runs=(*runs, *sizes.controls_at(scale, controlled))))
    return groups


def _modelled(model: str, args: dict[str, Any]) -> dict[str, Any]:
    """What all runs on a device that is not here have in common."""
    profile, _, N, _ = TPUS[model]
    given = {"model": model, "model_args": args, "N": N, "profile": profile}
    return given | {"optimizer": "rmsprop", "fidelity": "simulated"}


def _controlled(model: str, args: dict[str, Any]) -> Group:
    alike = _modelled(model, args)
    without = sweep(**alike, K=1, M=[*MS], checkpoint="never")
    return Group(name=f"{model}-simulated", runs=(*sweep(**alike, K=[*KS], M=[*MS]), *without))


def _varied(scale: Scale, models: dict[str, dict[str, Any]]) -> list[Group]:
    """Table 2's own cells with another cut, with the largest N that fits each cell, with both."""
    varied = [
        (model, args, name, changed)
        for model, args in models.items()
        for name, changed in BY_FLOPS.items()
    ]
    varied += [
        ("amoebanet-d", models["amoebanet-d"], f"{name}-n{N}", changed | {"N": N, "trace": False})
        for name, changed in ({"": {}} | BY_FLOPS).items()
        for N in NS
        if TPUS["amoebanet-d"][2] != N
    ]
    # The paper's protocol as far as it is told.
    largest = {model: {"memory": TPUS[model][1], "N": LARGEST[scale]} for model in models}
    varied += [
        (model, args, f"{name}-by-memory", changed | largest[model])
        for model, args, name, changed in (
            ("amoebanet-d", models["amoebanet-d"], "", {}),
            *(("amoebanet-d", models["amoebanet-d"], *cut) for cut in BY_FLOPS.items()),
            ("transformer", models["transformer"], "", {}),
            ("transformer", sizes.NARROW[scale], "-narrow", {}),
            *(
                ("transformer", sizes.NARROW[scale], f"-narrow{name}", changed | {"trace": False})
                for name, changed in BY_FLOPS.items()
            ),
        )
    ]
    return [
        Group(name=f"{model}{name}", runs=sweep(**_modelled(model, args) | changed | CELLS))
        for model, args, name, changed in varied
        if scale != "smoke" or model == "transformer"  # AmoebaNet-D's take a minute
    ]


def _emulated(scale: Scale, models: dict[str, dict[str, Any]]) -> list[Group]:
    """The controlled protocol with waiting stages; at smoke one tiny model on a slow clock."""
    groups = []
    for model, args in models.items():
        alike = _modelled(model, args) | {"fidelity": "emulated", "steps": 1}
        if scale != "smoke":
            runs = tuple(
                RunSpec(**alike, K=K, M=M, stretch=sizes.stretched(TPUS[model][3], K, M))
                for K in KS[1:]
                for M in MS
            )
        elif model == "transformer":
            runs = sweep(**alike, K=2, M=[1, 4], stretch=300.0)
        else:
            continue
        # Waits hardly differ from round to round.
        groups.append(Group(name=f"{model}-emulated", runs=runs, rounds=1))
    return groups
