"""Reliability (arXiv:1811.06965v5, section 7): is the model the same for every K, D and M?"""

from typing import Any

from repro.harness.spec import Experiment, Group, RunSpec, Scale, Training

NAME = "consistency"
SCALES: tuple[Scale, ...] = ("gpu", "gpu-dry")
KS: dict[Scale, tuple[int, ...]] = {
    "smoke": (1, 2),
    "gpu-dry": (1, 2, 4, 8),
    "laptop": (1, 2, 4),
    "gpu": (1, 2, 4, 8),
    "node": (1, 2, 4, 8),
    "paper": (1, 2, 4, 8),
}
BASE_M = 4  # micro-batches in all that other runs are compared with
OTHER_MS: dict[Scale, tuple[int, ...]] = {
    "smoke": (1,),
    "gpu-dry": (1,),
    "laptop": (1,),
    "gpu": (1,),
    "node": (1, 2, 8),
    "paper": (1, 2, 8),
}
# Seeds of the runs with several K, and of those with several M.
SEEDS: dict[Scale, tuple[int, int]] = {
    "smoke": (1, 1),
    "gpu-dry": (1, 1),
    "laptop": (2, 5),
    "gpu": (2, 5),
    "node": (5, 5),
    "paper": (5, 5),
}
STEPS: dict[Scale, int] = {
    "smoke": 3,
    "gpu-dry": 3,
    "laptop": 10,
    "gpu": 10,
    "node": 100,
    "paper": 100,
}
N = 32
WEIGHTS = 1000  # recorded of each run, evenly spaced over all weights
IMAGES: dict[str, Any] = {"L": 3, "D": 8, "image": 16, "num_classes": 10, "bn_momentum": 0.1}
SENTENCES: dict[str, Any] = {
    "L": 3,
    "d": 32,
    "H": 64,
    "A": 2,
    "head_dim": 16,
    "V": 256,
    "S": 16,
    "T": 16,
}
# K=1 repeated where kernels may add in another order each time. The transport changes nothing at
# K=1, but tells the two runs apart.
REPEATED_AT: tuple[Scale, ...] = ("gpu-dry", "gpu")
# Decided before the first run. The issue asks for this distance between D=2 with M and D=1 with 2M.
LIMIT = 1e-6
DEVIATIONS = (
    "The paper states consistency and shows no numbers. Models, data (scikit-learn's digits, a "
    "made-up language) and the number of steps are ours, and so small that one machine trains "
    "them for every K.",
    "SGD with momentum for both models. Adam divides each gradient by its size, so it would turn "
    "the rounding of gradients that are zero in theory, such as those of key biases, into whole "
    "steps.",
    "Batch norm's running statistics move by 0.1 a step, not by the authors' 0.0003, which needs "
    "thousands of steps.",
    "Runs with several M have no dropout: its masks belong to micro-batches, so that they differ "
    "with M by intention.",
    "Decision rules, fixed before the first run. K: reproduced if all losses and the SHA-256 of "
    "all weights and buffers equal those of K=1 for each seed. D: within 1e-6 if that is the "
    "greatest relative distance over seeds. M: batch norm matters if the interval of its distance "
    "lies above that of the model without it.",
)


def experiment(scale: Scale = "laptop") -> Experiment:
    """The same training for several K, D and M, and how far the weights are apart.

    Paper: the conclusion names reliability: synchronous updates train the same model for every
    number of partitions. With batch norm, training uses the statistics of a micro-batch (section
    2.2). So K must change nothing, and M only what batch norm sees.

    Runs with several K or D have dropout and batch norm. D=2 with M micro-batches a replica is
    compared with D=1 and 2M, which cuts the same mini-batch into the same micro-batches. At scale
    gpu all stages share one GPU.
    """
    few, many = SEEDS[scale]
    stages = [run for seed in range(few) for model in MODELS for run in _stages(scale, model, seed)]
    micro_batches = [
        _run(scale, model, seed, K=1, M=M, dropout=0.0)
        for seed in range(many)
        for model in MODELS
        for M in (BASE_M, *OTHER_MS[scale])
    ]
    return Experiment(
        name=NAME,
        title="The same model for every K",
        question="Do K, D and M change the model that is trained, and by how much?",
        paper="sec. 7",
        neurips="sec. 7",
        needs="any machine; one GPU at scale gpu",
        deviations=DEVIATIONS,
        minutes={"smoke": 0.3, "gpu-dry": 0.8, "laptop": 1.1, "gpu": 4},
        rounds=1,
        groups=(
            Group(name="stages", runs=tuple(stages)),
            Group(name="micro-batches", runs=tuple(micro_batches)),
        ),
    )


def _stages(scale: Scale, model: str, seed: int) -> list[RunSpec]:
    """Every K at one M, two replicas with half of it each, and K=1 again on a GPU."""
    runs = [_run(scale, model, seed, K=K, M=BASE_M) for K in KS[scale]]
    runs.append(_run(scale, model, seed, K=1, M=BASE_M // 2, D=2))
    if scale in REPEATED_AT:
        runs.append(_run(scale, model, seed, K=1, M=BASE_M, transport="auto"))
    return runs


def _run(
    scale: Scale, model: str, seed: int, dropout: float | None = None, **changed: Any
) -> RunSpec:
    model_args, training = MODELS[model]
    if dropout is not None:
        model_args = {**model_args, "dropout": dropout}
    # Stages that share a GPU send their messages through the host.
    transport = "gloo" if scale in REPEATED_AT else "auto"
    settings = {"transport": transport, "steps": STEPS[scale], "seed": seed} | changed
    return RunSpec(
        model=model,
        model_args=model_args,
        N=N,
        task="learn",
        trace=False,
        balance="parameters",
        training=training,
        **settings,
    )


MODELS: dict[str, tuple[dict[str, Any], Training]] = {
    # with batch norm
    "amoebanet-b": (
        IMAGES,
        Training(
            data=("digits",),
            recipe={"optimizer": "sgd", "lr": 0.05, "momentum": 0.9},
            weights=WEIGHTS,
        ),
    ),
    # with layer norm
    "translation": (
        SENTENCES,
        Training(
            data=("toy:alfa",),
            data_args={"vocabulary": 256, "S": 16, "T": 16},
            recipe={"optimizer": "sgd", "lr": 0.1, "momentum": 0.9},
            weights=WEIGHTS,
        ),
    ),
}
