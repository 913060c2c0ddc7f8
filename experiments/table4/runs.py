"""Table 4 (arXiv:1811.06965v5; Table 5 at NeurIPS): image classification by fine-tuning."""

from dataclasses import dataclass, field
from typing import Any

from repro.data.registry import DATA
from repro.harness.spec import ON_CPU, Experiment, Group, RunSpec, Scale, Training
from repro.train.recipe import imagenet

NAME = "table4"
SEEDS: dict[Scale, int] = {"smoke": 2, "laptop": 5, "node": 1, "paper": 5}


@dataclass(frozen=True)
class Task:
    """What is fine-tuned on.

    Attributes:
        outputs: classes.
        chance: share of the most frequent class.
        data_args: which of its images, see `repro.data.classification.open_images`.
    """

    title: str
    data: str
    outputs: int
    chance: float
    data_args: dict[str, Any] = field(default_factory=dict)


# The tasks of the laptop. Three of the five digits are odd.
OTHER_DIGITS = {"classes": [5, 9]}
DIGITS = (
    Task("digits 5 to 9", "digits", 5, 0.2, OTHER_DIGITS),
    Task("digits 5 to 9, 10 images a class", "digits", 5, 0.2, OTHER_DIGITS | {"per_class": 10}),
    Task("digits 5 to 9, rotated by 90 degrees", "digits", 5, 0.2, OTHER_DIGITS | {"rotate": 90}),
    Task("digits 5 to 9, odd against even", "digits", 2, 0.6, OTHER_DIGITS | {"labels": "parity"}),
)
FIRST_DIGITS = {"classes": [0, 4]}
SMALL: dict[str, Any] = {"L": 3, "D": 8, "image": 16, "bn_momentum": 0.1}
SMALL_RECIPE: dict[str, Any] = {"optimizer": "adam", "lr": 0.005}
# Steps of pretraining and of fine-tuning. From scratch a model gets as many steps as both.
STEPS: dict[Scale, tuple[int, int]] = {"smoke": (4, 2), "laptop": (40, 15)}

# On how many of the four tasks fine-tuning must help; fixed before the first run.
LEAST_HELPED = 3

# The tasks of the paper, by their names in its table.
TRANSFER = {
    "CIFAR-10": "cifar10",
    "CIFAR-100": "cifar100",
    "Stanford Cars": "cars",
    "Oxford Pets": "pets",
    "Food-101": "food101",
    "FGVC Aircraft": "aircraft",
    "Birdsnap": "birdsnap",
}
PAPER_MODEL: dict[str, Any] = {"L": 18, "D": 512, "image": 480}
PAPER_K, PAPER_M, PAPER_N = 4, 32, 256
EPOCHS = 100  # of ImageNet
FINE_TUNING_STEPS = 20_000
DEVIATIONS = (
    "Laptop: AmoebaNet-B (3, 8) at 16 x 16 pixels on scikit-learn's digits, pretrained on 0 to 4 "
    "and fine-tuned on four tasks made of 5 to 9. The paper pretrains (18, 512) at 480 x 480 on "
    "ImageNet and fine-tunes on seven other data sets.",
    "Laptop: Adam with a constant rate for a few dozen steps, instead of the paper's RMSProp, "
    "which needs thousands. Batch norm's running statistics move by 0.1 a step for the same "
    "reason. No flips and no cutout, because a flipped digit is another sign or none.",
    "Laptop: each seed has a pretraining of its own, so the interval covers that too. Activations "
    "are kept instead of recomputed, which changes no bit of the weights and takes less time.",
    "From scratch, a model gets as many updates on the task as pretraining and fine-tuning have "
    "together. The paper trains nothing from scratch, but compares with the best published "
    "numbers, of which some are.",
    "Added after the first results, and no part of the decision rule: models from scratch with as "
    "many updates on the task as fine-tuning has.",
    "Decision rule, fixed before the first run: fine-tuning helps on a task if the 95 % interval "
    "of the difference in accuracy, fine-tuned minus from scratch, paired by seed, lies above 0. "
    "The paper's effect shows as a trend if it helps on at least three of the four tasks and is "
    "worse on none.",
    "Scale paper: the paper prints no mini-batch, M, epochs or steps of fine-tuning. N=256, M=32, "
    "100 epochs of ImageNet and 20,000 steps of fine-tuning are ours. One pretraining serves all "
    "five seeds of fine-tuning.",
)


def experiment(scale: Scale = "laptop") -> Experiment:
    """Fine-tuned accuracy on several tasks, with a new softmax layer.

    Paper: section 4 of v5 trains AmoebaNet-B (18, 512), 557M parameters, on ImageNet at 480 x 480
    with K=4 (84.4 % top-1). All layers but a new softmax layer start from these weights on seven
    other data sets; each number is the mean of five runs. Flips and cutout; hyper-parameters as
    for ImageNet, which are those of Real et al. (arXiv:1802.01548).

    On a laptop the same is done with digits, and each task is also trained from scratch. At scale
    paper only the first of this is done, on the paper's data sets.
    """
    on_digits = scale in ON_CPU
    groups = _digits(scale) if on_digits else _paper(scale)
    return Experiment(
        name=NAME,
        title="Image classification by fine-tuning",
        question="Does a pretrained AmoebaNet-B learn other images better than one from scratch?",
        paper="Table 4",
        neurips="Table 5",
        needs="any machine" if on_digits else "4 GPUs, and the data sets of the paper's Table 4",
        deviations=DEVIATIONS,
        minutes={"smoke": 0.4, "laptop": 4},
        rounds=1,
        groups=tuple(groups),
    )


def _digits(scale: Scale) -> list[Group]:
    """Every task fine-tuned, from scratch, and from scratch with few steps, for each seed."""
    before, after = STEPS[scale]
    pretraining = Training(
        data=("digits",), data_args=FIRST_DIGITS, recipe=SMALL_RECIPE, steps=before
    )
    runs = []
    for seed in range(SEEDS[scale]):
        for task in DIGITS:
            training = Training(data=(task.data,), data_args=task.data_args, recipe=SMALL_RECIPE)
            fine_tuning = training.model_copy(update={"pretraining": pretraining})
            ways = ((after, fine_tuning), (before + after, training), (after, training))
            for steps, how in ways:
                runs.append(
                    RunSpec(
                        model="amoebanet-b",
                        model_args={**SMALL, "num_classes": task.outputs},
                        K=2,
                        M=2,
                        N=64,
                        steps=steps,
                        seed=seed,
                        checkpoint="never",
                        balance="parameters",
                        trace=False,
                        task="learn",
                        training=how,
                    )
                )
    return [Group(name="digits", runs=tuple(runs))]


def _paper(scale: Scale) -> list[Group]:
    imagenet_images, _ = DATA["imagenet"].examples
    pretraining = Training(
        data=("imagenet",),
        data_args={"augment": "flip"},
        recipe=imagenet(PAPER_N, imagenet_images).as_dict(),
        steps=EPOCHS * imagenet_images // PAPER_N,
        seed=0,
    )
    groups = []
    for name in TRANSFER.values():
        images, _ = DATA[name].examples
        training = Training(
            data=(name,),
            data_args={"augment": "cutout"},
            recipe=imagenet(PAPER_N, images).as_dict(),
            pretraining=pretraining,
        )
        runs = [
            RunSpec(
                model="amoebanet-b",
                model_args={**PAPER_MODEL, "num_classes": DATA[name].classes},
                K=PAPER_K,
                M=PAPER_M,
                N=PAPER_N,
                steps=FINE_TUNING_STEPS,
                seed=seed,
                balance="parameters",
                trace=False,
                task="learn",
                training=training,
            )
            for seed in range(SEEDS[scale])
        ]
        groups.append(Group(name=name, runs=tuple(runs)))
    return groups
