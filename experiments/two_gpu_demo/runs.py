"""A demonstration for two devices: one device, naive model parallelism and GPipe."""

from typing import Any, NamedTuple

from repro.harness.about import read_about
from repro.harness.sizes import TRANSFORMER
from repro.harness.spec import Checkpoint, Experiment, Group, RunSpec, Scale, slug
from repro.methods.named import fields_of

NAME = "two_gpu_demo"
ABOUT = read_about(__file__)
STRATEGIES = ("single", "naive", "gpipe")  # names of methods, in the order of tables and figures


class Sizes(NamedTuple):
    Ms: tuple[int, ...]
    steps: int
    resnet: tuple[dict[str, Any], int, int]  # arguments, N, rounds
    transformer: tuple[dict[str, Any], int, int]


_SMALL_IMAGES: dict[str, Any] = {"image": 32, "num_classes": 10}
_SMALL: dict[str, Any] = {"L": 8, "d": 64, "H": 256, "heads": 4, "V": 512, "T": 16}
# 46 million parameters: all of its layers fit on each of two GPUs of 16 GB.
_FOR_16_GB: dict[str, Any] = {"L": 12, "d": 512, "H": 2048, "heads": 8, "V": 8192, "T": 128}
_MS = (1, 2, 4, 8, 16, 32)
SIZES: dict[Scale, Sizes] = {
    "smoke": Sizes((1, 2), 1, (_SMALL_IMAGES, 8, 1), (TRANSFORMER["smoke"], 8, 1)),
    # A round of ResNet-50 takes a minute on two CPU cores.
    "laptop": Sizes(_MS, 1, (_SMALL_IMAGES, 64, 2), (_SMALL, 128, 5)),
    "node": Sizes(_MS, 3, ({"image": 224}, 128, 5), (_FOR_16_GB, 128, 5)),
}
SIZES["paper"] = SIZES["node"]


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
    size = SIZES[scale]
    common: dict[str, Any] = {"checkpoint": checkpoint, "steps": size.steps}
    groups = []
    for model, sizes in (("timm:resnet50", size.resnet), ("transformer", size.transformer)):
        args, N, rounds = sizes
        runs = tuple(
            RunSpec(model=model, model_args=args, M=m, N=N, **fields_of(strategy, K), **common)
            for m in M or size.Ms
            for strategy in STRATEGIES
        )
        groups.append(Group(name=slug(model), runs=runs, rounds=rounds))
    return Experiment(
        **ABOUT.of_experiment,
        needs="2 devices: CPU cores, or GPUs of 16 GB",
        minutes={"smoke": 0.4, "laptop": 4, "node": 20, "paper": 20},
        rounds=1 if scale == "smoke" else 5,
        groups=tuple(groups),
    )
