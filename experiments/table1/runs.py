"""Table 1 of arXiv:1811.06965v5: the largest AmoebaNet-D and Transformer that fit in memory."""

from typing import Any

from repro.harness.about import read_about
from repro.harness.sizes import AMOEBANET_SMALL, TRANSFORMER_SMALL
from repro.harness.spec import (
    SIZES_AT,
    UNLIMITED_MEMORY,
    Checkpoint,
    Experiment,
    Group,
    Optimizer,
    RunSpec,
    Scale,
)
from repro.paper.numbers import table1

NAME = "table1"
MB, MIB = 10**6, 2**20
NAIVE = 0  # in place of K: one stage without re-materialization and without micro-batches
N_OF = {"amoebanet-d": 128, "transformer": 32}
# 8 GB and 16 G; the paper's units differ too
MEMORY = {"amoebanet-d": 8000 * MB, "transformer": 16384 * MIB}
# What the paper's 12 bytes a parameter are. One slot: weights, gradients, mean square. Two slots:
# weights, mean square and momentum, as TensorFlow's RMSProp has; gradients are then activations.
ACCOUNTINGS: dict[Optimizer, str] = {"rmsprop": "one slot", "rmsprop-momentum": "two slots"}
COUNTED_M = (16, 32)
# The reading that `accountings` favours; everything that does not vary them is counted with these.
OPTIMIZER: Optimizer = "rmsprop-momentum"
M = 32
DECIMAL_16G = 16000 * MB
DROPOUT = {"attention_dropout": 0.1}  # of the authors' Lingvo; the paper does not state any
FEWER = {"amoebanet-d": 16, "transformer": 8}  # N with which a Naive-1 fits in float32
PRINTED: dict[str, dict[int, dict[str, Any]]] = {model: {} for model in N_OF}  # K -> the size
for _size in table1():
    _K = NAIVE if _size.name == "Naive-1" else _size.accelerators
    PRINTED[_size.model][_K] = {"L": _size.L} | ({"D": _size.D} if _size.D else {})
MOST_ON_A_GPU = 8  # stages that one GPU can hold; the Transformer's need 128 GiB
CAPPED = "-gpu"  # ends the names of their groups
SMALL_ARGS = {"amoebanet-d": AMOEBANET_SMALL, "transformer": TRANSFORMER_SMALL}
DRY: dict[str, dict[str, Any]] = {"amoebanet-d": {"D": 32}, "transformer": {"L": 40}}
CHECKED_ARGS = {
    "amoebanet-d": AMOEBANET_SMALL | {"D": 32},
    "transformer": TRANSFORMER_SMALL | {"L": 6},
}
CHECKED: dict[str, list[tuple[int, Checkpoint]]] = {
    "amoebanet-d": [(1, "always"), (4, "except_last")],
    "transformer": [(4, "always"), (8, "never")],
}
LAW_SIZES: dict[str, dict[str, Any]] = {"amoebanet-d": PRINTED["amoebanet-d"][NAIVE]}
LAW_SIZES["transformer"] = {"L": 24}
# (N, K, M): from the first on, each of the three alone.
LAWS = [(64, 4, 16), (64, 4, 1), (64, 4, 4), (64, 4, 64), (64, 1, 16), (64, 2, 16), (64, 8, 16)]
LAWS += [(32, 4, 16), (128, 4, 16)]
LAWS_SMOKE = [(8, 2, 4), (8, 2, 1), (8, 1, 4), (16, 2, 4)]
ABOUT = read_about(__file__)


def experiment(scale: Scale = "laptop") -> Experiment:
    """The largest (L, D), or L, for Naive-1 and Pipeline-k, and the laws of memory.

    Paper: section 3, Table 1 (v5 and NeurIPS), AmoebaNet-D on accelerators of 8 GB, the Transformer
    on 16 G. Stated: 12 bytes a parameter, RMSProp, 224 x 224 images at N=128, sequences of 1024
    tokens at N=32, widths, vocabulary. Not stated: M, what the 12 bytes are, how stages were cut,
    how attention is computed.

    Counted runs are of the paper's own size on any machine. Measured ones are scaled down on a
    CPU. At scale gpu, node and paper they have the paper's sizes: each stage is a process with 8 GB
    or 16 GiB, and all may share one GPU.
    """
    models = ["transformer"] if scale == "smoke" else [*PRINTED]
    runs: dict[str, list[RunSpec]] = {}
    if scale not in SIZES_AT:  # where nothing is counted again
        runs |= {model: _counted(model, scale) for model in models}
        runs |= {f"{model}-laws": _laws(model, scale) for model in models}
    if scale in ("smoke", "laptop"):
        runs |= {f"{model}-check": _checked(model, scale) for model in PRINTED}
        small_Ks = [2] if scale == "smoke" else [NAIVE, 1, 2, 4]
        runs |= {f"{model}-here": [_small(model, K) for K in small_Ks] for model in models}
    else:
        runs |= _capped(scale)
    return Experiment(
        **ABOUT.of_experiment,
        paper="Table 1",
        neurips="Table 1",
        needs="any machine; the GPU half measures on one GPU of 60 GB or more",
        minutes={"smoke": 0.5, "gpu-dry": 4, "laptop": 7, "gpu": 40, "node": 25, "paper": 25},
        rounds=1,
        groups=tuple(Group(name=name, runs=tuple(listed)) for name, listed in runs.items()),
    )


def _counted(model: str, scale: Scale) -> list[RunSpec]:
    if scale == "smoke":
        return [_small(model, K, fidelity="counted") for K in (1, 2)]
    sizes = PRINTED[model]
    # First the searches that Table 1 shows: what a run says at its end is of these.
    runs = [_fit(model, {}, K) for K in sizes]
    runs += [_fit(model, {}, NAIVE, N=FEWER[model]), _fit(model, sizes[NAIVE], NAIVE)]
    for K, args in sizes.items():
        if K == NAIVE:
            continue
        for optimizer in ACCOUNTINGS:
            for m in COUNTED_M:
                reading: dict[str, Any] = {"optimizer": optimizer, "M": m}
                if (optimizer, m) != (OPTIMIZER, M):
                    runs.append(_fit(model, {}, K, **reading))
                runs.append(_fit(model, args, K, **reading))
                if model == "transformer":
                    runs.append(_fit(model, args | DROPOUT, K, **reading))
        if model == "transformer":
            runs += [_fit(model, {"attention": "fused"}, K), _fit(model, DROPOUT, K)]
            # Were 16 G decimal: with M=16 and one slot the search ends at the printed L.
            runs.append(_fit(model, {}, K, memory=DECIMAL_16G))
            runs.append(_fit(model, {}, K, memory=DECIMAL_16G, M=16, optimizer="rmsprop"))
        else:
            # As torchgpipe measured it: one image a micro-batch, no momentum.
            runs.append(_fit(model, args, K, M=N_OF[model], optimizer="rmsprop"))
    return runs


def _laws(model: str, scale: Scale) -> list[RunSpec]:
    smoke = scale == "smoke"
    args = CHECKED_ARGS[model] if smoke else LAW_SIZES[model]
    alike: dict[str, Any] = {"memory": UNLIMITED_MEMORY, "optimizer": "rmsprop"}
    return [
        _fit(model, args, K, N=N, M=m, checkpoint=rule, **alike)
        for rule in ("always", "never")
        for N, K, m in (LAWS_SMOKE if smoke else LAWS)
    ]


def _checked(model: str, scale: Scale) -> list[RunSpec]:
    """Small models whose counted memory is held against the allocator's own events; on a CPU."""
    cases: list[tuple[int, int, Checkpoint]] = [(2, 4, "always")]
    if scale == "laptop":
        cases = [(K, m, rule) for K in (1, 2, 4) for m, rule in CHECKED[model]]
    alike: dict[str, Any] = {"memory": UNLIMITED_MEMORY, "optimizer": "rmsprop", "N": 8}
    alike |= {"fidelity": "measured", "transport": "shm"}
    return [
        _fit(model, CHECKED_ARGS[model], K, M=m, checkpoint=rule, **alike) for K, m, rule in cases
    ]


def _capped(scale: Scale) -> dict[str, list[RunSpec]]:
    """The columns of Table 1 measured: does the printed size train, and which is the largest?

    Each run is a group of its own, so that a stop loses no more than one. The search of Naive-1 has
    a smaller N than the printed one, at which nothing fits in float32.
    """
    groups = {}
    for model, sizes in PRINTED.items():
        for K, args in sizes.items():
            if K > MOST_ON_A_GPU:
                continue
            if scale == "gpu-dry":
                printed = _small(model, K, DRY[model], transport="gloo")
                search = _small(model, K, transport="gloo")
            else:
                printed = _fit(model, args, K, fidelity="measured")
                # The search varies D of AmoebaNet-D at the printed L, and L of the Transformer.
                free = {"L": args["L"]} if model == "amoebanet-d" else {}
                N = FEWER[model] if K == NAIVE else N_OF[model]
                search = _fit(model, free, K, N=N, fidelity="measured")
            column = "naive-1" if K == NAIVE else f"pipeline-{K}"
            groups[f"{model}-{column}-printed{CAPPED}"] = [printed]
            groups[f"{model}-{column}-largest{CAPPED}"] = [search]
    return groups


def _small(model: str, K: int, size: dict[str, Any] | None = None, **changed: Any) -> RunSpec:
    """A search by training that two CPU cores can do; deeper models on more stages.

    With a size that leaves nothing to vary, only whether it trains.
    """
    deeper = {"L": 6 if K > 2 else 3} if model == "amoebanet-d" else {}
    small: dict[str, Any] = {"N": 32, "memory": (64 if model == "amoebanet-d" else 24) * MIB}
    small |= {"optimizer": "rmsprop", "fidelity": "measured", "transport": "shm"}
    return _fit(model, SMALL_ARGS[model] | deeper | (size or {}), K, **small | changed)


def _fit(model: str, args: dict[str, Any], K: int, **changed: Any) -> RunSpec:
    """The largest model of which some arguments are given; counted as Table 1 by default."""
    fields: dict[str, Any] = {"N": N_OF[model], "M": M, "memory": MEMORY[model]}
    fields |= {"optimizer": OPTIMIZER, "fidelity": "counted", "K": K, **changed}
    if K == NAIVE:
        fields |= {"K": 1, "M": 1, "checkpoint": "never"}
    return RunSpec(model=model, model_args=args, task="fit", balance="memory", **fields)
