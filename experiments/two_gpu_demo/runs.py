"""A demonstration for two devices: one device, naive model parallelism and GPipe."""

from typing import Any

from repro.harness.about import read_about
from repro.harness.sizes import TRANSFORMER, in_blocks, sets
from repro.harness.spec import Experiment, Group, Recompute, RunSpec, Scale, slug
from repro.methods.named import fields_of

NAME = "two_gpu_demo"
ABOUT = read_about(__file__)
METHODS = ("single", "naive", "gpipe")
RESNET, TEXT = "timm:resnet50", "transformer"
_SMALL_IMAGES: dict[str, Any] = {"image": 32, "num_classes": 10}
_SMALL: dict[str, Any] = {"L": 8, "d": 64, "H": 256, "heads": 4, "V": 512, "T": 16}
# 46 million parameters: all of its layers fit on each of two GPUs of 16 GB.
_FOR_16_GB: dict[str, Any] = {"L": 12, "d": 512, "H": 2048, "heads": 8, "V": 8192, "T": 128}
# Model -> its arguments, N and blocks.
SIZES: dict[Scale, dict[str, tuple[dict[str, Any], int, int]]] = {
    "smoke": {"timm:resnet18": (_SMALL_IMAGES, 8, 1), TEXT: (TRANSFORMER["smoke"], 8, 1)},
    # A block of ResNet-50 takes nine seconds on two CPU cores.
    "laptop": {RESNET: (_SMALL_IMAGES, 32, 5), TEXT: (_SMALL, 128, 6)},
    "node": {RESNET: ({"image": 224}, 128, 15), TEXT: (_FOR_16_GB, 128, 15)},
}
SIZES["paper"] = SIZES["node"]


def experiment(
    scale: Scale = "laptop",
    K: int = 2,
    M: tuple[int, ...] | None = None,
    recompute: Recompute = "always",
) -> Experiment:
    """ResNet-50 and a Transformer on one device, in naive model parallelism, and by GPipe.

    Args:
        scale: two CPU cores (smoke, laptop), or two GPUs (node, paper).
        K: devices of naive model parallelism and of GPipe; at least 2.
        M: numbers of micro-batches; by default 1, 4, 16 and 32 with at least two examples in each,
            on GPUs 2 and 8 too, at smoke 1 and 2.
        recompute: which micro-batches are recomputed in the backward pass.
    """
    if K < 2:
        need = "naive model parallelism and GPipe need 2 devices or more; try K=2"
        raise ValueError(f"K = {K}: {need}")
    groups = []
    every = {"smoke": (1, 2), "laptop": (1, 4, 16, 32)}.get(scale, (1, 2, 4, 8, 16, 32))
    for model, (args, N, blocks) in SIZES[scale].items():
        common: dict[str, Any] = {"model": model, "model_args": args, "recompute": recompute}
        common |= {"N": N, **in_blocks(scale, blocks)}
        # The last batch norms see one value of each channel in a small image.
        Ms = M or [m for m in every if m <= N // 2]
        runs = [RunSpec(M=m, **fields_of(name, K), **common) for m in Ms for name in METHODS]
        groups.append(Group(name=slug(model), runs=tuple(runs)))
    return Experiment(
        **ABOUT.of_experiment,
        needs="2 devices: CPU cores, or GPUs of 16 GB",
        minutes={"smoke": 0.1, "laptop": 3.5, "node": 20, "paper": 20},
        rounds=sets(scale),
        groups=tuple(groups),
    )
