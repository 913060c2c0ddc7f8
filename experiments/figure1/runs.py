"""Figure 1 (arXiv:1811.06965v5): accuracy and translation quality against parameters."""

from typing import Any

from experiments.learned import LEARN, groups_of, recompute
from experiments.translation import OPUS, PAPER_M, PAPER_SIZES, TOY, Size, training_run
from repro.data.registry import DATA
from repro.harness.about import read_about
from repro.harness.spec import ON_CPU, Experiment, RunSpec, Scale, Training, sweep
from repro.paper import translation_models
from repro.train.recipe import imagenet

NAME = "figure1"
IMAGES, TRANSLATION = "images", "translation"  # groups
# Filters D of AmoebaNet-B. The paper trained (18, 512); its other points are from other papers.
WIDTHS: dict[Scale, tuple[int, ...]] = {
    "smoke": (8, 12),
    "laptop": (8, 12, 16, 24),
    "node": (64, 128, 256, 512),
    "paper": (64, 128, 256, 512),
}
SMALL_SIZES: dict[Scale, tuple[Size, ...]] = {
    "smoke": (Size(1, 128, 4), Size(1, 512, 8)),
    "laptop": (Size(1, 128, 4), Size(1, 512, 8), Size(2, 512, 8), Size(3, 512, 8)),
}
SEEDS: dict[Scale, int] = {"smoke": 1, "laptop": 3, "node": 1, "paper": 1}
# Updates of images and of translation.
STEPS: dict[Scale, tuple[int, int]] = {"smoke": (3, 3), "laptop": (40, 120)}
SMALL_N = 32
PAPER_N, PAPER_STEPS = 2048, 500_000  # of translation, as in Figure 3
DECODED: dict[Scale, int] = {"smoke": 4, "laptop": 16, "node": 500, "paper": 500}
ABOUT = read_about(__file__)


def experiment(scale: Scale = "laptop") -> Experiment:
    """Accuracy of AmoebaNet-B and BLEU of T(L, H, A) for four sizes of each.

    Paper: section 1, Figure 1. (a) Top-1 on ImageNet of eight published models against their
    parameters; AmoebaNet-B (18, 512) with 557M reaches 84.4 %. (b) Average BLEU of five
    multilingual models of 0.4 to 6 billion parameters. Read off the picture.
    """
    on_cpu = scale in ON_CPU
    return Experiment(
        name=NAME,
        **ABOUT.of_experiment,
        paper="Figure 1",
        neurips="Figure 1",
        needs="any machine" if on_cpu else "16 GPUs, ImageNet and OPUS-100",
        minutes={"smoke": 0.4, "laptop": 3.1},
        rounds=1,
        groups=(
            *groups_of(scale, IMAGES, _images(scale)),
            *groups_of(scale, TRANSLATION, _translation(scale)),
        ),
    )


def _images(scale: Scale) -> list[RunSpec]:
    if scale in ON_CPU:
        model: dict[str, Any] = {"L": 3, "image": 16, "num_classes": 10, "bn_momentum": 0.1}
        sizes = {"K": 2, "M": 2, "N": SMALL_N, "steps": STEPS[scale][0]}
        training = Training(data=("digits",), recipe={"optimizer": "adam", "lr": 0.005})
    else:
        model = {"L": 18, "image": 480}
        images, _ = DATA["imagenet"].examples
        sizes = {"K": 4, "M": 32, "N": 256, "steps": 100 * images // 256}  # 100 epochs
        recipe = imagenet(256, images).as_dict()
        training = Training(data=("imagenet",), data_args={"augment": "flip"}, recipe=recipe)
    return list(
        sweep(
            **LEARN,
            **sizes,
            model="amoebanet-b",
            seed=[*range(SEEDS[scale])],
            model_args=[{**model, "D": D} for D in WIDTHS[scale]],
            checkpoint=recompute(scale),
            training=training,
        )
    )


def _translation(scale: Scale) -> list[RunSpec]:
    """One multilingual model of every size; at scale paper the five of Figure 3."""
    if scale in ON_CPU:
        cut = [(size, 2) for size in SMALL_SIZES[scale]]
        languages, N, M, steps = TOY, SMALL_N, 2, STEPS[scale][1]
    else:
        # The paper does not state the partitions of its smallest model.
        partitions = [printed.partitions or 1 for printed in translation_models()]
        cut = list(zip(PAPER_SIZES, partitions, strict=True))
        languages, N, M, steps = OPUS, PAPER_N, PAPER_M, PAPER_STEPS
    common = {"N": N, "M": M, "steps": steps, "decode": DECODED[scale]}
    return [
        training_run(scale, size, languages, K=K, seed=seed, **common)
        for seed in range(SEEDS[scale])
        for size, K in cut
    ]
