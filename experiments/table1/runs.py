"""Table 1 of arXiv:1811.06965v5: the largest AmoebaNet-D and Transformer that fit in memory."""

from typing import Any

from repro.harness.about import read_about
from repro.harness.sizes import AMOEBANET_SMALL, TRANSFORMER_SMALL
from repro.harness.spec import SIZES_AT, UNLIMITED_MEMORY, Experiment, Group, RunSpec, Scale
from repro.paper.numbers import Quoted, table1

Fields = dict[str, Any]  # of a spec, or arguments of a model
NAME = "table1"
MB, MIB = 10**6, 2**20
NAIVE = "Naive-1"  # one stage, without recomputation and without micro-batches
N_OF = {"amoebanet-d": 128, "transformer": 32}
FEWER = {"amoebanet-d": 16, "transformer": 8}  # N with which a Naive-1 fits in float32
# 8 GB and 16 G; the paper's units differ too
MEMORY = {"amoebanet-d": 8000 * MB, "transformer": 16384 * MIB}
# What the paper leaves open: M, and the slots of the optimizer, by which its 12 bytes a parameter
# are explained. The first is the nearest to the Transformer's printed activations.
READINGS: dict[str, Fields] = {
    "two slots, M=32": {"optimizer": "rmsprop-momentum", "M": 32},
    "two slots, M=16": {"optimizer": "rmsprop-momentum", "M": 16},
    "one slot, M=32": {"optimizer": "rmsprop", "M": 32},
    "one slot, M=16": {"optimizer": "rmsprop", "M": 16},
}
SHOWN = "two slots, M=32"
MOST_ON_A_GPU = 8  # stages that one GPU can hold; the Transformer's need 128 GiB
SMALL_ARGS = {"amoebanet-d": AMOEBANET_SMALL, "transformer": TRANSFORMER_SMALL}
DRY: dict[str, Fields] = {"amoebanet-d": {"D": 32}, "transformer": {"L": 40}}
CHECKED_ARGS = {"amoebanet-d": {"D": 32}, "transformer": {"L": 6}}
CHECKED: dict[str, list[Fields]] = {
    "amoebanet-d": [{"M": 1, "checkpoint": "always"}, {"M": 4, "checkpoint": "except_last"}],
    "transformer": [{"M": 4, "checkpoint": "always"}, {"M": 8, "checkpoint": "never"}],
}
ABOUT = read_about(__file__)


def experiment(scale: Scale = "laptop") -> Experiment:
    """The printed sizes and the largest (L, D), or L, for Naive-1 and Pipeline-k.

    Paper: section 3, Table 1 (v5 and NeurIPS), AmoebaNet-D on accelerators of 8 GB, the Transformer
    on 16 G. Stated: 12 bytes a parameter, RMSProp, 224 x 224 images at N=128, sequences of 1024
    tokens at N=32, widths, vocabulary. Not stated: M, what the 12 bytes are, how stages were cut,
    how attention is computed.

    Counted runs are of the paper's own size on any machine. At scale gpu, node and paper the same
    sizes are trained: each stage is a process with 8 GB or 16 GiB, and all may share one GPU.
    """
    groups: dict[str, list[RunSpec]] = {}
    if scale == "smoke":
        groups["transformer"] = [_small("transformer", {"K": K}, "counted") for K in (1, 2)]
    elif scale not in SIZES_AT:  # where nothing is counted again
        groups |= {model: _counted(model) for model in N_OF}
    if scale in ("smoke", "laptop"):
        groups |= {f"{model}-check": _checked(model, scale) for model in N_OF}
    else:
        groups |= _capped(scale)
    return Experiment(
        **ABOUT.of_experiment,
        paper="Table 1",
        neurips="Table 1",
        needs="any machine; the GPU half measures on one GPU of 60 GB or more",
        minutes={"smoke": 0.5, "gpu-dry": 4, "laptop": 4, "gpu": 40, "node": 24, "paper": 24},
        rounds=1,
        groups=tuple(Group(name=name, runs=tuple(runs)) for name, runs in groups.items()),
    )


def size_of(column: Quoted) -> Fields:
    """The printed size, as arguments of the model."""
    return {"L": column.L} | ({"D": column.D} if column.D else {})


def counted(column: Quoted, args: Fields) -> dict[str, RunSpec]:
    """Reading -> the memory of the printed size; without its arguments the largest size.

    Naive-1 has no M, and the slots change its activations by 3 % at most.
    """
    names = [SHOWN] if column.name == NAIVE else [*READINGS]
    return {name: _fit(column.model, args, READINGS[name] | _stages(column)) for name in names}


def trained(column: Quoted) -> RunSpec:
    """The printed size, trained by stages that have the paper's memory."""
    return _fit(column.model, size_of(column), _stages(column) | {"fidelity": "measured"})


def searched(column: Quoted) -> RunSpec:
    """The largest size that trains: over D of AmoebaNet-D at the printed L, or over L.

    That of Naive-1 has a smaller N than the printed one, at which nothing fits in float32.
    """
    args = {"L": column.L} if column.D else {}
    N = (FEWER if column.name == NAIVE else N_OF)[column.model]
    return _fit(column.model, args, _stages(column) | {"N": N, "fidelity": "measured"})


def _counted(model: str) -> list[RunSpec]:
    columns = [column for column in table1() if column.model == model]
    specs = [counted(column, args) for column in columns for args in ({}, size_of(column))]
    return [spec for each in specs for spec in each.values()]


def _checked(model: str, scale: Scale) -> list[RunSpec]:
    """Small models whose counted memory is compared with the tensors of a step on a CPU."""
    cases: list[Fields] = [{"K": 2, "M": 4, "checkpoint": "always"}]
    if scale == "laptop":
        cases = [{"K": K, **case} for K in (1, 2, 4) for case in CHECKED[model]]
    alike: Fields = {"memory": UNLIMITED_MEMORY, "optimizer": "rmsprop", "N": 8}
    alike |= {"fidelity": "measured", "transport": "shm"}
    args = SMALL_ARGS[model] | CHECKED_ARGS[model]
    return [_fit(model, args, alike | case) for case in cases]


def _capped(scale: Scale) -> dict[str, list[RunSpec]]:
    """Whether the printed size trains, and which is the largest that does.

    Each run is a group of its own, so that a stop loses no more than one.
    """
    groups = {}
    for column in table1():
        if column.accelerators > MOST_ON_A_GPU:
            continue
        printed, largest = trained(column), searched(column)
        if scale == "gpu-dry":
            alike = _stages(column) | {"transport": "gloo"}
            printed = _small(column.model, alike, size=DRY[column.model])
            largest = _small(column.model, alike)
        name = f"{column.model}-{column.name.lower()}"
        groups |= {f"{name}-printed-gpu": [printed], f"{name}-largest-gpu": [largest]}
    return groups


def _stages(column: Quoted) -> Fields:
    if column.name == NAIVE:
        return {"K": 1, "M": 1, "checkpoint": "never"}
    return {"K": column.accelerators}


def _small(
    model: str, changed: Fields, fidelity: str = "measured", size: Fields | None = None
) -> RunSpec:
    """A search that two CPU cores can do; with a size, only whether that fits."""
    args = SMALL_ARGS[model] | (size or {})
    if model == "amoebanet-d":
        args |= {"L": 6 if changed["K"] > 2 else 3}
    small: Fields = {"N": 32, "memory": (64 if model == "amoebanet-d" else 24) * MIB}
    small |= {"optimizer": "rmsprop", "fidelity": fidelity, "transport": "shm"}
    return _fit(model, args, small | changed)


def _fit(model: str, args: Fields, changed: Fields) -> RunSpec:
    """The largest model of which some arguments are given; counted as Table 1 by default."""
    fields: Fields = {"N": N_OF[model], "memory": MEMORY[model], "fidelity": "counted"}
    fields |= {**READINGS[SHOWN], **changed}
    return RunSpec(model=model, model_args=args, task="fit", balance="memory", **fields)
