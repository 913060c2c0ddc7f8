"""Figure 1 (arXiv:1811.06965v5): accuracy and translation quality against parameters."""

from typing import Any, NamedTuple

from experiments.learned import LEARN, groups_of, recompute
from experiments.translation import OPUS, PAPER_CUTS, PAPER_M, PAPER_SIZES, TOY, Size, training_run
from repro.data.registry import DATA
from repro.harness.about import read_about
from repro.harness.spec import (
    ON_CPU,
    TINY,
    UNLIMITED_MEMORY,
    Experiment,
    Group,
    RunSpec,
    Scale,
    Training,
    sweep,
)
from repro.train.recipe import imagenet

NAME = "figure1"
IMAGES, TRANSLATION, COUNTS = "images", "translation", "counts"  # groups


class Sizes(NamedTuple):
    widths: tuple[int, ...]  # filters D of AmoebaNet-B
    models: tuple[Size, ...]  # of translation
    seeds: int
    image_steps: int
    translation_steps: int
    decoded: int


_SMALL_MODELS = (Size(1, 128, 4), Size(1, 512, 8), Size(2, 512, 8), Size(3, 512, 8))
_IMAGES = DATA["imagenet"].examples[0]
SIZES_OF: dict[Scale, Sizes] = {
    "smoke": Sizes((8, 12), _SMALL_MODELS[:2], 1, 3, 3, 4),
    "laptop": Sizes((8, 12, 16, 24), _SMALL_MODELS, 3, 40, 120, 16),
    # The paper trained (18, 512) for 100 epochs; its other points are from other papers. The
    # translation is that of Figure 3.
    "paper": Sizes((64, 128, 256, 512), PAPER_SIZES, 1, 100 * _IMAGES // 256, 500_000, 500),
}
SIZES_OF["node"] = SIZES_OF["paper"]
SMALL_N, PAPER_N = 32, 2048  # of translation; the small one of images too
ABOUT = read_about(__file__)


def experiment(scale: Scale = "laptop") -> Experiment:
    """Accuracy of AmoebaNet-B and BLEU of T(L, H, A) for four sizes of each.

    Paper: section 1, Figure 1. (a) Top-1 on ImageNet of eight published models against their
    parameters; AmoebaNet-B (18, 512) with 557M reaches 84.4 %. (b) Average BLEU of five
    multilingual models of 0.4 to 6 billion parameters. Read off the picture.
    """
    on_cpu = scale in ON_CPU
    return Experiment(
        **ABOUT.of_experiment,
        paper="Figure 1",
        neurips="Figure 1",
        needs="any machine" if on_cpu else "16 GPUs, ImageNet and OPUS-100",
        minutes={"smoke": 0.4, "laptop": 3.1},
        rounds=1,
        groups=(
            *groups_of(scale, IMAGES, _images(scale)),
            *groups_of(scale, TRANSLATION, _translation(scale)),
            *(() if scale in TINY else (Group(name=COUNTS, runs=_counts()),)),
        ),
    )


def _counts() -> tuple[RunSpec, ...]:
    alike: dict[str, Any] = {"task": "fit", "fidelity": "counted", "balance": "memory", "K": 1}
    alike |= {"M": 1, "N": 1, "memory": UNLIMITED_MEMORY}
    sizes = [{**size._asdict(), "d": 1024, "V": 64000} for size in PAPER_SIZES]
    images = RunSpec(model="amoebanet-b", model_args={"L": 18, "D": 512}, **alike)
    return (images, *sweep(model="translation", model_args=sizes, **alike))


def _images(scale: Scale) -> tuple[RunSpec, ...]:
    of = SIZES_OF[scale]
    if scale in ON_CPU:
        model: dict[str, Any] = {"L": 3, "image": 16, "num_classes": 10, "bn_momentum": 0.1}
        sizes = {"K": 2, "M": 2, "N": SMALL_N}
        training = Training(data=("digits",), recipe={"optimizer": "adam", "lr": 0.005})
    else:
        model = {"L": 18, "image": 480}
        sizes = {"K": 4, "M": 32, "N": 256}
        recipe = imagenet(256, _IMAGES).model_dump()
        training = Training(data=("imagenet",), data_args={"augment": "flip"}, recipe=recipe)
    return sweep(
        **LEARN,
        **sizes,
        model="amoebanet-b",
        steps=of.image_steps,
        seed=[*range(of.seeds)],
        model_args=[{**model, "D": D} for D in of.widths],
        checkpoint=recompute(scale),
        training=training,
    )


def _translation(scale: Scale) -> list[RunSpec]:
    of, on_cpu = SIZES_OF[scale], scale in ON_CPU
    sizes = [(size, 2) for size in of.models] if on_cpu else PAPER_CUTS
    N, M = (SMALL_N, 2) if on_cpu else (PAPER_N, PAPER_M)
    common = {"N": N, "M": M, "steps": of.translation_steps, "decode": of.decoded}
    return [
        training_run(scale, size, TOY if on_cpu else OPUS, K=K, seed=seed, **common)
        for seed in range(of.seeds)
        for size, K in sizes
    ]
