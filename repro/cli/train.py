"""`repro train`: trains an image model to an accuracy, with checkpoints from which it goes on."""

import dataclasses
import shlex
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro
from annotated_types import Interval

from repro.cli.answers import same
from repro.cli.main import print_warnings_once
from repro.cli.options import MiniBatch, parse
from repro.cli.source import ModelName, ModelOptions
from repro.harness import machine
from repro.harness.catalog import pairs
from repro.harness.sizes import DEFAULT_N
from repro.harness.spec import Checkpoint, RunSpec, Scale, slug
from repro.harness.text import duration, number
from repro.harness.wandb_mirror import Mode, TrainingLog, default_mode
from repro.io import signals
from repro.io.untrusted import message

if TYPE_CHECKING:
    from repro.data.classification import ImageTask
    from repro.models import Model
    from repro.train.history import History
    from repro.train.recipe import Recipe
    from repro.train.trainer import Trainer

_COUNT = Interval(ge=1, le=10**9)
# Data of small images, for which --image is 32.
_SMALL = ("digits", "glyphs", "symbols", "cifar10", "cifar100")


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainOptions(ModelOptions):
    """Train an image model to an accuracy, with checkpoints and exact resume.

    [MODEL] is amoebanet-b, amoebanet-d, timm:NAME, or a function of your own,
    import:package.module:function, which is code and is run. Its number of
    classes is that of the data. docs/training.md explains everything.
    """

    model: ModelName = tyro.MISSING
    """named first"""
    data: str = "digits"
    """digits, glyphs, cifar10, ..., or folder:PATH: images by class, or parquet"""
    image: Annotated[int | None, _COUNT] = None
    """height and width of the images; by default 32 for small images, else 224"""
    augment: Literal["none", "flip", "cutout", "autoaugment"] = "none"
    """how training images are changed at random"""
    K: Annotated[int, _COUNT] = 1
    """stages, a process each"""
    M: Annotated[int | None, _COUNT] = None
    """micro-batches; by default 4 K, or as many as a replica has examples; 1 with one stage"""
    D: Annotated[int, _COUNT] = 1
    """replicas of the pipeline"""
    N: MiniBatch = DEFAULT_N
    """mini-batch, over all replicas"""
    epochs: Annotated[float, Interval(ge=1e-6, le=1e6)] = 10.0
    """passes over the training data, if --steps is not given"""
    steps: Annotated[int | None, _COUNT] = None
    """updates in all, also those before a resume"""
    recipe: Literal["imagenet", "sgd"] = "imagenet"
    """imagenet is the paper's; sgd has momentum 0.9 and a constant learning rate"""
    recipe_args: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME=VALUE ...")] = ()
    """changes of the recipe, such as ema=null warm_up=10"""
    lr: float | None = None
    """learning rate at its peak, instead of the recipe's"""
    precision: Literal["float32", "bfloat16", "float16"] = "float32"
    """in which the layers run; weights stay float32"""
    checkpoint: Checkpoint | None = None
    """which micro-batches are recomputed; by default always, and never with one stage"""
    balance: Literal["parameters", "uniform"] = "parameters"
    """what the stages have alike"""
    seed: int = 0
    """of initial weights, of the order of the data and of dropout"""
    every: Annotated[int | None, _COUNT] = None
    """steps between evaluations, and between checkpoints; by default an epoch"""
    out: Path | None = None
    """folder of the checkpoints; by default one in runs/"""
    resume: tyro.conf.FlagCreatePairsOff[bool] = False
    """go on from the newest checkpoint in that folder, if it has one"""
    start_from: Path | None = None
    """begin with the weights of another run, for fine-tuning; a resumed run keeps its own"""
    new_layers: int = 1
    """with --start-from: how many layers at the end begin anew"""
    threads: Annotated[int, _COUNT] = 1
    """of each process on the CPU; with 1 the weights are the same bits for every K"""
    wandb: Mode = dataclasses.field(default_factory=default_mode)
    """Weights & Biases; training never depends on it"""

    @property
    def micro_batches(self) -> int:
        if self.M is not None:
            return self.M
        return 1 if self.K == 1 else min(4 * self.K, self.N // self.D)

    @property
    def folder(self) -> Path:
        return self.out or Path("runs") / slug(f"{self.model}-{self.data}")


def main(arguments: list[str]) -> int:
    """Train; under torchrun every rank comes here."""
    options = parse(TrainOptions, arguments, "repro train")
    if options.N % options.D:
        raise ValueError(f"--N {options.N}: allowed is a multiple of D={options.D}")
    spec = RunSpec(**same(options, "model", "K", "N", "D"), M=options.micro_batches)
    from repro.gpipe import launch
    from repro.gpipe.runtime.launch import StageError
    from repro.harness.rehearsal import rehearse

    model = _model(options, _task(options))
    spec.check_depth(len(model.layers))
    rehearse(spec, model)
    try:
        launch(_work, options, stages=options.K * options.D, threads=options.threads)
    except KeyboardInterrupt:
        from repro.train import checkpoints

        kept = checkpoints.committed(options.folder)
        resume = [] if options.resume else ["--resume"]
        command = shlex.join(["repro", "train", *arguments, *resume])
        text = f"{kept[-1]} is kept; `{command}` goes on" if kept else "no checkpoint was written"
        print(f"interrupted: {text}", file=sys.stderr)
        return signals.exit_status()
    except StageError as error:
        # A mistake of the user in a stage; anything else is shown with its traceback.
        _, is_mistake, text = error.failure.text.partition("ValueError: ")
        if not is_mistake:
            raise
        raise ValueError(text) from None
    if machine.torchrun_rank() in (None, 0):
        print(f"checkpoints: {options.folder}")
    return 0


def _work(options: TrainOptions) -> None:
    """The work of each process; a mistake of the user's, of whatever class, is a ValueError."""
    from repro.gpipe import NonFiniteError

    try:
        _train(options)
        return
    except NonFiniteError as error:
        text = f"{error}; try a lower --lr, and --resume from the last checkpoint"
    except ValueError as error:
        text = message(error)
    raise ValueError(text)


def _task(options: TrainOptions) -> "ImageTask":
    from repro.data.classification import ImageTask

    size = options.image or (32 if options.data in _SMALL else 224)
    return ImageTask(name=options.data, size=size, augment=options.augment)


def _model(options: TrainOptions, task: "ImageTask") -> "Model":
    """The model for images of that size, of which no layer is built; its own data are left out."""
    from repro.data.classification import count_classes
    from repro.models import build, parameters
    from repro.models.model import of_images

    of_data = {"image": task.size, "num_classes": count_classes(task)}
    takes = parameters(options.model)
    taken = {name: value for name, value in of_data.items() if name in takes}
    model = build(options.model, **taken | pairs("model_args", options.model_args))
    if model.unit != "images/s":
        raise ValueError(
            f"model={options.model!r}: no image model, and this command trains on images; "
            "repro.train in Python trains any model"
        )
    return of_images(options.model, model.layers, task.size, of_data["num_classes"])


def _train(options: TrainOptions) -> None:
    import torch.distributed as dist

    from repro.data.classification import count_classes, evaluation_images, open_images
    from repro.gpipe import Pipeline
    from repro.train.losses import accuracy, classification
    from repro.train.trainer import Trainer

    print_warnings_once()
    task = _task(options)
    replica = dist.get_rank() // options.K
    batches = open_images(task, options.N, options.seed, replica, options.D)
    model = _model(options, task)
    examples = sum(batches.state()["examples"])
    recipe = _recipe(options, examples)
    pipe = Pipeline(
        model.layers,
        options.K,
        options.micro_batches,
        replicas=options.D,
        checkpoint=options.checkpoint or ("never" if options.K == 1 else "always"),
        balance=options.balance,
        seed=options.seed,
    )
    epoch = max(1, round(examples / options.N))
    steps = options.steps or max(1, round(options.epochs * epoch))
    every = options.every or epoch
    trainer = Trainer(
        pipe,
        classification(recipe.label_smoothing, classes=count_classes(task)),
        recipe,
        batches,
        folder=options.folder,
        save_every=every,
        evaluation=evaluation_images(task, options.N),
        evaluate_every=every,
        metrics={"loss": classification(), "accuracy": accuracy},
        settings={
            **same(options, "model", "augment", "N", "seed"),
            "model_args": list(options.model_args),
            "image": task.size,
            "M": options.micro_batches,
        },
    )
    shows = pipe.is_first and pipe.replica == 0
    step = trainer.resume() if options.resume else 0
    if options.resume and shows:
        begins = f"goes on after step {step}" if step else "no checkpoint yet, so this begins"
        print(f"{options.folder}: {begins}")
        if step >= steps:
            print(f"nothing is left to train: asked for are {steps} steps in all")
    if step == 0 and options.start_from is not None:
        trainer.start_from(options.start_from, options.new_layers)
    if not shows:
        trainer.run(steps)
        return
    progress, name = Progress(steps, model.unit), options.folder.name
    with TrainingLog(options.wandb, options.folder, name, _config(options, trainer)) as log:

        def report(history: "History") -> None:
            progress(history)
            log(history)

        trainer.run(steps, report)


def _config(options: TrainOptions, trainer: "Trainer") -> dict[str, Any]:
    """What W&B shows; method and place are named as those of `repro run`, by the kind of device."""
    scale: Scale = "laptop" if trainer.pipe.device.type == "cpu" else "gpu"
    spread = [name for name, number in (("gpipe", options.K), ("data", options.D)) if number > 1]
    return trainer.settings | {
        **same(options, "K", "D"),
        "experiment": "train",
        "method": "-x-".join(spread) or "single",
        "machine": machine.detect(scale).slug,
        "scale": scale,
    }


def _recipe(options: TrainOptions, examples: int) -> "Recipe":
    from repro.train.recipe import Recipe, imagenet

    recipe = imagenet(options.N, examples) if options.recipe == "imagenet" else Recipe(lr=0.05)
    changed = recipe.model_dump() | pairs("recipe_args", options.recipe_args)
    changed["precision"] = options.precision
    if options.lr is not None:
        changed["lr"] = options.lr
    return Recipe(**changed)


@dataclasses.dataclass
class Progress:
    """Prints a line every ten seconds, and one for each evaluation; called after each step."""

    steps: int
    unit: str  # of the throughput, such as "images/s"
    printed_at: float = dataclasses.field(default_factory=time.monotonic)

    def __call__(self, history: "History") -> None:
        step, evaluated = history.steps[-1].step, history.evaluations[-1:]
        is_new = bool(evaluated) and evaluated[0].step == step
        if not is_new and time.monotonic() < self.printed_at + 10.0:
            return
        recent = history.steps[-20:]
        parts = [f"step {step} of {self.steps}"]
        parts.append(f"loss {sum(each.loss for each in recent) / len(recent):.3g}")
        for name, value in evaluated[0].values.items() if evaluated else ():
            is_share = name == "accuracy"
            parts.append(f"accuracy {value:.1%}" if is_share else f"evaluated {name} {value:.3g}")
        parts.append(f"{number(history.throughput())} {self.unit}")
        seconds = sum(each.seconds for each in recent) / len(recent)
        if step < self.steps:
            parts.append(f"{duration(seconds * (self.steps - step))} left")
        print(" · ".join(parts), flush=True)
        self.printed_at = time.monotonic()
