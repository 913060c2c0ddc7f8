"""Table 1 of arXiv:1811.06965v5: the largest AmoebaNet-D and Transformer that fit in memory."""

from typing import Any

from repro.harness.about import read_about
from repro.harness.spec import ON_CPU, UNLIMITED_MEMORY, Experiment, Group, RunSpec, Scale
from repro.paper.numbers import Quoted, table1

Fields = dict[str, Any]  # of a spec, or arguments of a model
NAME = "table1"
NAIVE = "Naive-1"  # one stage, without recomputation and without micro-batches
N_OF = {"amoebanet-d": 128, "transformer": 32}
# 8 GB and 16 G; the paper's units differ too
MEMORY = {"amoebanet-d": 8 * 10**9, "transformer": 16 * 2**30}
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
CHECKED_ARGS: dict[str, Fields] = {
    "amoebanet-d": {"L": 3, "D": 32, "image": 64, "num_classes": 10},
    "transformer": {"L": 6, "d": 128, "H": 512, "heads": 4, "V": 512, "T": 32},
}
CHECKED: dict[str, list[Fields]] = {
    "amoebanet-d": [{"M": 1, "recompute": "always"}, {"M": 4, "recompute": "except_last"}],
    "transformer": [{"M": 4, "recompute": "always"}, {"M": 8, "recompute": "never"}],
}
ABOUT = read_about(__file__)


def experiment(scale: Scale = "laptop") -> Experiment:
    """The printed sizes and the largest (L, D), or L, for Naive-1 and Pipeline-k."""
    groups: dict[str, list[RunSpec]] = {}
    # The shortest first.
    if scale in ("smoke", "laptop"):
        groups |= {f"{model}-check": _checked(model, scale) for model in N_OF}
    if scale not in ("smoke", "gpu"):  # where nothing is counted again
        groups |= {model: _counted(model) for model in ("transformer", "amoebanet-d")}
    if scale not in ON_CPU:
        groups |= _capped()
    return Experiment(
        **ABOUT.of_experiment,
        paper="Table 1",
        neurips="Table 1",
        needs="any machine; the GPU half measures on one GPU of 60 GB or more",
        minutes={"smoke": 0.1, "laptop": 4.3, "gpu": 12, "node": 15, "paper": 15},
        rounds=1,
        groups=tuple(
            Group(name=name, runs=tuple(runs), first=True) for name, runs in groups.items()
        ),
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


def _counted(model: str) -> list[RunSpec]:
    """The printed sizes, and then the searches, which take most of the time.

    Two processes get every second run. With the two runs of Naive-1 first, each process keeps one
    M, and traces a layer of a size once.
    """
    naive, *columns = [column for column in table1() if column.model == model]
    specs = [counted(naive, size_of(naive)), counted(naive, {})]
    specs += [counted(column, size_of(column)) for column in columns]
    specs += [counted(column, {}) for column in reversed(columns)]
    return [spec for each in specs for spec in each.values()]


def _checked(model: str, scale: Scale) -> list[RunSpec]:
    """Small models whose counted memory is compared with the tensors of a step on a CPU."""
    cases: list[Fields] = [{"K": 2, "M": 4, "recompute": "always"}]
    if scale == "laptop":
        cases = [{"K": K, **case} for K in (1, 2, 4) for case in CHECKED[model]]
    alike: Fields = {"memory": UNLIMITED_MEMORY, "optimizer": "rmsprop", "N": 8}
    alike |= {"fidelity": "measured", "transport": "shm"}
    return [_fit(model, CHECKED_ARGS[model], alike | case) for case in cases]


def _capped() -> dict[str, list[RunSpec]]:
    """Whether the printed size trains.

    Each run is a group of its own, so that a stop loses no more than one.
    """
    return {
        f"{column.model}-{column.name.lower()}-printed-gpu": [trained(column)]
        for column in table1()
        if column.accelerators <= MOST_ON_A_GPU
    }


def _stages(column: Quoted) -> Fields:
    if column.name == NAIVE:
        return {"K": 1, "M": 1, "recompute": "never"}
    return {"K": column.accelerators}


def _fit(model: str, args: Fields, changed: Fields) -> RunSpec:
    """The largest model of which some arguments are given; counted as Table 1 by default."""
    fields: Fields = {"N": N_OF[model], "memory": MEMORY[model], "fidelity": "counted"}
    fields |= {**READINGS[SHOWN], **changed}
    return RunSpec(model=model, model_args=args, task="fit", balance="memory", **fields)
