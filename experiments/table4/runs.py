"""Table 4 (arXiv:1811.06965v5; Table 5 at NeurIPS): image classification by fine-tuning."""

from typing import Any, NamedTuple

from experiments.learned import LEARN
from repro.data.registry import DATA
from repro.harness.about import read_about
from repro.harness.spec import ON_CPU, Experiment, Group, RunSpec, Scale, Training, sweep
from repro.train.recipe import imagenet

NAME = "table4"
SEEDS: dict[Scale, int] = {"smoke": 2, "laptop": 5, "node": 1, "paper": 5}


class Task(NamedTuple):
    """Classes, the share of the most frequent one, and which digits (`ImageTask`)."""

    outputs: int
    chance: float
    data_args: dict[str, Any]


# What is fine-tuned on a laptop. Three of the five digits are odd.
OTHER_DIGITS = {"classes": [5, 9]}
DIGITS = {
    "digits 5 to 9": Task(5, 0.2, OTHER_DIGITS),
    "digits 5 to 9, 10 images a class": Task(5, 0.2, OTHER_DIGITS | {"per_class": 10}),
    "digits 5 to 9, rotated by 90 degrees": Task(5, 0.2, OTHER_DIGITS | {"rotate": 90}),
    "digits 5 to 9, odd against even": Task(2, 0.6, OTHER_DIGITS | {"labels": "parity"}),
}
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
PAPER_N = 256
EPOCHS = 100  # of ImageNet
FINE_TUNING_STEPS = 20_000
ALIKE: dict[str, Any] = {**LEARN, "model": "amoebanet-b"}
ABOUT = read_about(__file__)


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
    return Experiment(
        **ABOUT.of_experiment,
        paper="Table 4",
        neurips="Table 5",
        needs="any machine" if on_digits else "4 GPUs, and the data sets of the paper's Table 4",
        minutes={"smoke": 0.4, "laptop": 4},
        rounds=1,
        groups=_digits(scale) if on_digits else _paper(scale),
    )


def _digits(scale: Scale) -> tuple[Group, ...]:
    before, after = STEPS[scale]
    pretraining = Training(
        data=("digits",), data_args=FIRST_DIGITS, recipe=SMALL_RECIPE, steps=before
    )
    runs: list[RunSpec] = []
    for seed in range(SEEDS[scale]):
        for task in DIGITS.values():
            training = Training(data=("digits",), data_args=task.data_args, recipe=SMALL_RECIPE)
            fine_tuning = training.model_copy(update={"pretraining": pretraining})
            ways = ((after, fine_tuning), (before + after, training), (after, training))
            common: dict[str, Any] = {"K": 2, "M": 2, "N": 64, "checkpoint": "never", "seed": seed}
            common |= {"model_args": {**SMALL, "num_classes": task.outputs}}
            runs += [RunSpec(**ALIKE, **common, steps=n, training=way) for n, way in ways]
    return (Group(name="digits", runs=tuple(runs)),)


def _paper(scale: Scale) -> tuple[Group, ...]:
    imagenet_images, _ = DATA["imagenet"].examples
    pretraining = Training(
        data=("imagenet",),
        data_args={"augment": "flip"},
        recipe=imagenet(PAPER_N, imagenet_images).model_dump(),
        steps=EPOCHS * imagenet_images // PAPER_N,
        seed=0,
    )
    groups = []
    for name in TRANSFER.values():
        images, _ = DATA[name].examples
        training = Training(
            data=(name,),
            data_args={"augment": "cutout"},
            recipe=imagenet(PAPER_N, images).model_dump(),
            pretraining=pretraining,
        )
        args = {"L": 18, "D": 512, "image": 480, "num_classes": DATA[name].classes}
        common = {"model_args": args, "steps": FINE_TUNING_STEPS, "training": training}
        seeds = [*range(SEEDS[scale])]
        runs = sweep(**ALIKE, **common, K=4, M=32, N=PAPER_N, seed=seeds)
        groups.append(Group(name=name, runs=runs))
    return tuple(groups)
