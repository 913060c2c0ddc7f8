"""A demonstration for two devices: one device, naive model parallelism and GPipe."""

from typing import Any

from repro.harness.sizes import TRANSFORMER
from repro.harness.spec import Checkpoint, Experiment, Group, RunSpec, Scale, slug
from repro.methods.named import fields_of

NAME = "two_gpu_demo"
STRATEGIES = ("single", "naive", "gpipe")  # names of methods, in the order of tables and figures
# Micro-batches, and the mini-batch N of each model.
MS: dict[Scale, tuple[int, ...]] = {
    "smoke": (1, 2),
    "laptop": (1, 2, 4, 8, 16, 32),
    "node": (1, 2, 4, 8, 16, 32),
    "paper": (1, 2, 4, 8, 16, 32),
}
RESNET_N: dict[Scale, int] = {"smoke": 8, "laptop": 64, "node": 128, "paper": 128}
TRANSFORMER_N: dict[Scale, int] = {"smoke": 8, "laptop": 128, "node": 128, "paper": 128}
_SMALL_IMAGES: dict[str, Any] = {"image": 32, "num_classes": 10}
RESNET: dict[Scale, dict[str, Any]] = {
    "smoke": _SMALL_IMAGES,
    "laptop": _SMALL_IMAGES,
    "node": {"image": 224},
    "paper": {"image": 224},
}
# 46 million parameters: all of its layers fit on each of two GPUs of 16 GB.
_FOR_16_GB: dict[str, Any] = {"L": 12, "d": 512, "H": 2048, "heads": 8, "V": 8192, "T": 128}
TRANSFORMERS: dict[Scale, dict[str, Any]] = {
    "smoke": TRANSFORMER["smoke"],
    "laptop": {"L": 8, "d": 64, "H": 256, "heads": 4, "V": 512, "T": 16},
    "node": _FOR_16_GB,
    "paper": _FOR_16_GB,
}
STEPS: dict[Scale, int] = {"smoke": 1, "laptop": 1, "node": 3, "paper": 3}
ROUNDS: dict[Scale, int] = {"smoke": 1, "laptop": 5, "node": 5, "paper": 5}
# A round of ResNet-50 takes a minute on two CPU cores.
RESNET_ROUNDS: dict[Scale, int] = {"smoke": 1, "laptop": 2, "node": 5, "paper": 5}
DEVIATIONS = (
    "No table of the paper, which measures neither ResNet-50 nor a Transformer of this size. The "
    "demonstration shows the paper's Figure 2 in numbers: naive model parallelism keeps one device "
    "of K at work, and micro-batches let the devices work at the same time.",
    "One device splits the mini-batch into the same M micro-batches and recomputes as the others "
    "do. So only the number of devices and the order of the work differ, and one device is slower "
    "here than without either.",
    "smoke and laptop shrink images (32 x 32), ResNet-50's mini-batch (64 in place of 128) and the "
    "Transformer, until two CPU cores do most steps in a second. On a CPU, each micro-batch of "
    "ResNet-50 takes time to read its 24 million weights, however small the micro-batch is. So "
    "ResNet-50 is slower there at a large M, on one device too.",
    "At laptop scale ResNet-50 has two rounds, since one takes a minute, and so no intervals: "
    "--rounds 5 gives these. At M=32 its last batch norms see two values for each channel, which "
    "is enough to time a step and too little to learn from.",
)


def experiment(
    scale: Scale = "laptop",
    K: int = 2,
    M: tuple[int, ...] | None = None,
    checkpoint: Checkpoint = "always",
) -> Experiment:
    """ResNet-50 and a Transformer on one device, in naive model parallelism, and by GPipe.

    Paper: section 2.3 of arXiv:1811.06965v5 and its Figure 2, which draws the naive order (b) and
    the pipelined one (c). It prints no number for either model.

    docs/two_gpu_demo.ipynb is the notebook of it.

    Args:
        scale: two CPU cores (smoke, laptop), or two GPUs (node, paper).
        K: devices of naive model parallelism and of GPipe; at least 2.
        M: numbers of micro-batches; by default 1, 2, 4, 8, 16 and 32, at smoke 1 and 2.
        checkpoint: which micro-batches are recomputed in the backward pass.
    """
    if K < 2:
        raise ValueError(
            f"K = {K}: naive model parallelism and GPipe need 2 devices or more, and one device "
            "stands beside them in every run; try K=2"
        )
    common: dict[str, Any] = {"checkpoint": checkpoint, "steps": STEPS[scale]}
    models: list[tuple[str, dict[str, Any], int, int]] = [
        ("timm:resnet50", RESNET[scale], RESNET_N[scale], RESNET_ROUNDS[scale]),
        ("transformer", TRANSFORMERS[scale], TRANSFORMER_N[scale], ROUNDS[scale]),
    ]
    groups = []
    for model, args, N, rounds in models:
        runs = tuple(
            RunSpec(model=model, model_args=args, M=m, N=N, **fields_of(strategy, K), **common)
            for m in M or MS[scale]
            for strategy in STRATEGIES
        )
        groups.append(Group(name=slug(model), runs=runs, rounds=rounds))
    return Experiment(
        name=NAME,
        title="One device, naive model parallelism and GPipe on two devices",
        question=(
            "What do two devices gain over one, and how does the answer change with the number of "
            "micro-batches?"
        ),
        needs="2 devices: CPU cores, or GPUs of 16 GB",
        deviations=DEVIATIONS,
        minutes={"smoke": 0.4, "laptop": 4, "node": 20, "paper": 20},
        rounds=ROUNDS[scale],
        groups=tuple(groups),
    )
