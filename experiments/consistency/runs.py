"""Reliability (arXiv:1811.06965v5, section 7): is the model the same for every K, D and M?"""

from itertools import product
from typing import Any, NamedTuple

from repro.experiments.learned import LEARN, Arm, one_language
from repro.harness.about import read_about
from repro.harness.spec import Experiment, Group, RunSpec, Scale, Training

NAME = "consistency"
TO_THE_END = "to-the-end"  # a group
BASE_M = 4  # micro-batches in all that other runs are compared with


class Sizes(NamedTuple):
    """What a scale trains: numbers of stages and micro-batches, seeds of both parts, and steps."""

    Ks: tuple[int, ...]
    other_Ms: tuple[int, ...]
    seeds: tuple[int, int]
    steps: int


SIZES: dict[Scale, Sizes] = {
    "smoke": Sizes((1, 2), (1,), (1, 1), 3),
    "laptop": Sizes((1, 2, 4), (1,), (2, 5), 10),
    "gpu": Sizes((1, 2, 4, 8), (1,), (2, 5), 10),
    "node": Sizes((1, 2, 4, 8), (1, 2, 8), (5, 5), 100),
}
SIZES["paper"] = SIZES["node"]
N = 32
WEIGHTS = 1000  # recorded of each run, evenly spaced over all weights
# K=1 repeated where kernels may add in another order each time. The transport changes nothing at
# K=1, but tells the two runs apart.
REPEATED_AT: tuple[Scale, ...] = ("gpu",)
ROUNDING = 1e-7  # of float32, nearly: a control has a learning rate that is larger by this share
# Decided before the first run. The issue asks for this distance between D=2 with M and D=1 with 2M.
LIMIT = 1e-6
TEXT = {"S": 16, "T": 16, "V": 256}
MODELS: dict[str, dict[str, Any]] = {
    # with batch norm
    "amoebanet-b": {
        "model_args": {"L": 3, "D": 8, "image": 16, "num_classes": 10, "bn_momentum": 0.1},
        "training": Training(
            data=("digits",),
            recipe={"optimizer": "sgd", "lr": 0.05, "momentum": 0.9},
            weights=WEIGHTS,
        ),
    },
    # with layer norm
    "translation": {
        "model_args": {"L": 3, "d": 32, "H": 64, "A": 2, "head_dim": 16} | TEXT,
        "training": Training(
            data=("toy:alfa",),
            data_args={"vocabulary": TEXT["V"], "S": TEXT["S"], "T": TEXT["T"]},
            recipe={"optimizer": "sgd", "lr": 0.1, "momentum": 0.9},
            weights=WEIGHTS,
        ),
    },
}
ABOUT = read_about(__file__)


def experiment(scale: Scale = "laptop") -> Experiment:
    """The same training for several K, D and M, and how far the weights are apart."""
    if scale == "overnight":
        groups = (Group(name=TO_THE_END, runs=_to_the_end()),)
    else:
        groups = _groups(scale)
    return Experiment(
        **ABOUT.of_experiment,
        paper="sec. 7",
        neurips="sec. 7",
        needs="any machine; one GPU at scale gpu",
        minutes={"smoke": 0.2, "laptop": 1, "overnight": 5, "gpu": 2.7},
        rounds=1,
        groups=groups,
    )


def _to_the_end() -> tuple[RunSpec, ...]:
    """One of Table 5's trainings, of all its 2000 updates, for K=1 and K=2."""
    (training,) = Arm(one_language("overnight", TO_THE_END, N, 2000), 0.008).trainings([0])
    assert training.training
    recorded = training.training.model_copy(update={"weights": WEIGHTS})
    same = {"M": BASE_M, "training": recorded}
    return tuple(training.model_copy(update=same | {"K": K}) for K in (1, 2))


def _groups(scale: Scale) -> tuple[Group, ...]:
    _, other_Ms, (few, many), _ = SIZES[scale]
    stages = [run for seed in range(few) for model in MODELS for run in _stages(scale, model, seed)]
    micro_batches = [
        _run(scale, model, M=M, seed=seed, dropout=0.0)
        for seed, model, M in product(range(many), MODELS, (BASE_M, *other_Ms))
    ]
    return (
        Group(name="stages", runs=tuple(stages), first=True),
        Group(name="micro-batches", runs=tuple(micro_batches)),
    )


def _stages(scale: Scale, model: str, seed: int) -> list[RunSpec]:
    runs = [_run(scale, model, K=K, seed=seed) for K in SIZES[scale].Ks]
    runs.append(_run(scale, model, M=BASE_M // 2, D=2, seed=seed))
    training = MODELS[model]["training"]
    recipe = training.recipe | {"lr": training.recipe["lr"] * (1 + ROUNDING)}
    training = training.model_copy(update={"recipe": recipe})
    runs.append(_run(scale, model, seed=seed, training=training))
    if scale in REPEATED_AT:
        runs.append(_run(scale, model, seed=seed, transport="auto"))
    return runs


def _run(
    scale: Scale, model: str, K: int = 1, M: int = BASE_M, dropout: float | None = None, **more: Any
) -> RunSpec:
    # Stages that share a GPU send their messages through the host.
    transport = "gloo" if scale in REPEATED_AT else "auto"
    fields = {**MODELS[model], "transport": transport, "steps": SIZES[scale].steps} | more
    if dropout is not None:
        fields["model_args"] = {**fields["model_args"], "dropout": dropout}
    return RunSpec(**LEARN, model=model, K=K, M=M, N=N, **fields)
