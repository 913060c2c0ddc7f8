"""Table 4 (arXiv:1811.06965v5; Table 5 at NeurIPS): image classification by fine-tuning."""

from collections.abc import Iterator
from typing import Any, NamedTuple

from repro.data.registry import DATA
from repro.experiments.learned import (
    BRIEF,
    LEARN,
    RATES,
    SMALL,
    Arm,
    beside,
    groups_of,
    large_training,
    small_training,
)
from repro.harness.about import read_about
from repro.harness.spec import ON_CPU, Experiment, RunSpec, Scale

NAME = "table4"


class Task(NamedTuple):
    """What is fine-tuned: a data set, the number of answers, and which images (`ImageTask`)."""

    data: str
    outputs: int
    data_args: dict[str, Any]
    longer: int = 1  # times as many updates, where many images need them to converge


FEWEST = "digits, 5 a class"  # of images; where pretraining has to help, if anywhere
MOST = "digits, all"
TASKS = {
    FEWEST: Task("digits", 10, {"per_class": 5}),
    "digits, 10 a class": Task("digits", 10, {"per_class": 10}),
    "digits, 30 a class": Task("digits", 10, {"per_class": 30}),
    MOST: Task("digits", 10, {}, longer=2),
    "odd or even digits, 10 a class": Task("digits", 2, {"per_class": 10, "labels": "parity"}),
    "rotated digits, 10 a class": Task("digits", 10, {"per_class": 10, "rotate": 90}),
    "symbols, 10 a class": Task("symbols", 20, {"per_class": 10}),
}
# Ways to the task: with the weights of the source, with new ones, and with those of a source of
# shuffled labels, a control.
TUNED, SCRATCH, NOISE = "fine-tuned", "from scratch", "from noise"
WIDTHS = (8, 16)  # of the source models; the last way has the first
# Updates of the pretraining, and on a task.
UPDATES: dict[Scale, tuple[int, int]] = {**dict.fromkeys(BRIEF, (4, 4)), "overnight": (2000, 500)}
N = 64
# Chosen by the tuning runs, for each task and width: of fine-tuning and from scratch.
CHOSEN: dict[str, dict[int, tuple[float, float]]] = {
    FEWEST: {8: (0.005, 0.08), 16: (0.0025, 0.08)},
    "digits, 10 a class": {8: (0.0025, 0.08), 16: (0.005, 0.04)},
    "digits, 30 a class": {8: (0.0025, 0.02), 16: (0.0025, 0.01)},
    MOST: {8: (0.005, 0.02), 16: (0.0025, 0.01)},
    "odd or even digits, 10 a class": {8: (0.08, 0.02), 16: (0.0025, 0.01)},
    "rotated digits, 10 a class": {8: (0.01, 0.04), 16: (0.00125, 0.04)},
    "symbols, 10 a class": {8: (0.005, 0.04), 16: (0.00125, 0.04)},
}
# Of fine-tuning with D=8, where higher rates were as good.
HIGHER = {"digits, 10 a class": [0.01], "digits, 30 a class": [0.01, 0.02], MOST: [0.02]}

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
PAPER_N, PAPER_WIDTH = 256, 512
EPOCHS = 100  # of ImageNet
FINE_TUNING_STEPS = 20_000
ALIKE: dict[str, Any] = {**LEARN, "model": "amoebanet-b"}
ABOUT = read_about(__file__)


def experiment(scale: Scale = "laptop") -> Experiment:
    """Fine-tuned accuracy on several tasks, with a new softmax layer."""
    on_cpu = scale in ON_CPU
    return Experiment(
        **ABOUT.of_experiment,
        paper="Table 4",
        neurips="Table 5",
        needs="any machine" if on_cpu else "4 GPUs, and the data sets of the paper's Table 4",
        minutes={"smoke": 0.2, "laptop": 0.2, "overnight": 145},
        rounds=1,
        groups=groups_of(scale, [*arms(scale)]),
    )


def arm_of(task: str, way: str, D: int) -> str:
    return f"{task}: {way}, D={D}"


def arms(scale: Scale) -> Iterator[Arm]:
    """Each task by each way, for each width."""
    if scale not in ON_CPU:
        yield from _of_paper()
        return
    before, after = UPDATES[scale]
    for D in WIDTHS:
        # As Figure 1 trains this width on the same images.
        source = small_training("glyphs", {}, before, RATES[D])
        source = source.model_copy(update={"steps": before})
        begins = {TUNED: source, SCRATCH: None}
        if scale == "overnight" and WIDTHS[0] == D:
            # True validation labels would stop it where it has learnt least.
            changed = {"data_args": {"shuffled": 1.0}, "validations": 0}
            begins[NOISE] = source.model_copy(update=changed)
        for task, (data, outputs, data_args, longer) in TASKS.items():
            for way, pretraining in begins.items():
                steps = longer * after
                arm = {"arm": arm_of(task, way, D), "pretraining": pretraining, "by_error": True}
                training = small_training(data, data_args, steps).model_copy(update=arm)
                size = {**SMALL, "D": D, "num_classes": outputs}
                fields: Any = {"model_args": size, "steps": steps, "training": training}
                run = RunSpec(**ALIKE, **fields, K=1, M=1, N=N, recompute="never")
                rate = CHOSEN[task][D][way != TUNED]
                tried = beside(rate) if way != NOISE else []
                tried += HIGHER.get(task, []) if (way, D) == (TUNED, WIDTHS[0]) else []
                yield Arm(run, rate, tried)


def _of_paper() -> Iterator[Arm]:
    """Fine-tuning on each data set of the paper; one pretraining serves them all."""
    images, _ = DATA["imagenet"].examples
    source = large_training("imagenet", "flip", PAPER_N)
    source = source.model_copy(update={"steps": EPOCHS * images // PAPER_N, "seed": 0})
    for name, data in TRANSFER.items():
        arm = {"pretraining": source, "arm": arm_of(name, TUNED, PAPER_WIDTH)}
        size = {"L": 18, "D": PAPER_WIDTH, "image": 480, "num_classes": DATA[data].classes}
        fields: Any = {"model_args": size, "steps": FINE_TUNING_STEPS, "K": 4, "M": 32}
        fields["training"] = large_training(data, "cutout", PAPER_N).model_copy(update=arm)
        yield Arm(RunSpec(**ALIKE, **fields, N=PAPER_N))
