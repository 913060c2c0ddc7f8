"""Figure 1 (arXiv:1811.06965v5): accuracy and translation quality against parameters."""

from typing import Any

from experiments.translation import OPUS, PAPER_M, TOY, Size, groups_of, sizes, training_run
from repro.data.registry import DATA
from repro.harness.spec import ON_CPU, Experiment, RunSpec, Scale, Training
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
DEVIATIONS = (
    "Laptop: (a) AmoebaNet-B (3, D) with D from 8 to 24 at 16 x 16 pixels on the ten digits of "
    "scikit-learn. The paper has one point of its own, AmoebaNet-B (18, 512) on ImageNet at 480 x "
    "480; its other points are models of other papers. So we vary the width of one architecture.",
    "Laptop: (b) four multilingual models of nine made-up languages, from T(1, 128, 4) to T(3, "
    "512, 8) with d=64. The paper has five models of 102 languages, from T(6, 8192, 16) on.",
    "Laptop: every size has as many updates: 40 of 32 images, or 120 of 32 sentence pairs, chosen "
    "by the time they take. Adam trains the images, since the paper's RMSProp needs thousands of "
    "steps; batch norm's running statistics move by 0.1 a step for the same reason.",
    "Activations are kept instead of recomputed at laptop scale, which changes no bit of the "
    "weights and takes less time.",
    "Laptop: the error is of all 355 test images, BLEU of the first 16 test sentences of each of "
    "the nine languages.",
    "The fits are straight lines through the logarithms, by least squares over all trainings: "
    "error = a P^-b for images and BLEU = a P^b. The paper fits nothing; its points are read off "
    "its picture and fitted here in the same way.",
    "Decision rule, fixed before the first run: the paper's effect shows as a trend if the 95 % "
    "interval of b lies above 0 (Student's t, residuals of the line), for images and for "
    "translation each. Without a fit, because a BLEU is 0, nothing is shown.",
    "Scale paper: the widths 64, 128 and 256 beside the paper's 512, mini-batches of 256 images "
    "and 2048 sentences, M, updates, and OPUS-100 instead of the private corpus are ours.",
)


def experiment(scale: Scale = "laptop") -> Experiment:
    """Accuracy of AmoebaNet-B and BLEU of T(L, H, A) for four sizes of each.

    Paper: section 1, Figure 1. (a) Top-1 on ImageNet of eight published models against their
    parameters; AmoebaNet-B (18, 512) with 557M reaches 84.4 %. (b) Average BLEU of five
    multilingual models of 0.4 to 6 billion parameters. Read off the picture.
    """
    on_cpu = scale in ON_CPU
    return Experiment(
        name=NAME,
        title="Quality against model size",
        question="Do larger models see and translate better, and by which power of their size?",
        paper="Figure 1",
        neurips="Figure 1",
        needs="any machine" if on_cpu else "16 GPUs, ImageNet and OPUS-100",
        deviations=DEVIATIONS,
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
        K, M, N, steps = 2, 2, SMALL_N, STEPS[scale][0]
        training = Training(data=("digits",), recipe={"optimizer": "adam", "lr": 0.005})
    else:
        model = {"L": 18, "image": 480}
        K, M, N = 4, 32, 256
        images, _ = DATA["imagenet"].examples
        steps = 100 * images // N  # 100 epochs
        training = Training(
            data=("imagenet",),
            data_args={"augment": "flip"},
            recipe=imagenet(N, images).as_dict(),
        )
    return [
        RunSpec(
            model="amoebanet-b",
            model_args={**model, "D": D},
            K=K,
            M=M,
            N=N,
            steps=steps,
            seed=seed,
            checkpoint="never" if scale in ON_CPU else "always",
            balance="parameters",
            trace=False,
            task="learn",
            training=training,
        )
        for seed in range(SEEDS[scale])
        for D in WIDTHS[scale]
    ]


def _translation(scale: Scale) -> list[RunSpec]:
    """One multilingual model of every size; at scale paper the five of Figure 3."""
    if scale in ON_CPU:
        cut = [(size, 2) for size in SMALL_SIZES[scale]]
        languages, N, M, steps = TOY, SMALL_N, 2, STEPS[scale][1]
    else:
        # The paper does not state the partitions of its smallest model.
        partitions = [printed.partitions or 1 for printed in translation_models()]
        cut = list(zip(sizes(scale), partitions, strict=True))
        languages, N, M, steps = OPUS, PAPER_N, PAPER_M, PAPER_STEPS
    return [
        training_run(
            scale, size, languages, N=N, steps=steps, seed=seed, decode=DECODED[scale], K=K, M=M
        )
        for seed in range(SEEDS[scale])
        for size, K in cut
    ]
