"""The training loop on a running `Pipeline`: updates, evaluation, checkpoints, exact resume.

    pipe = Pipeline(layers, stages=2, micro_batches=8)
    trainer = Trainer(pipe, loss, recipe, batches, folder="run", save_every=100)
    trainer.resume()                          # goes on if the folder has a checkpoint
    history = trainer.run(steps=1000)

Every rank makes the same calls. Only the first stage needs inputs, and only the last one targets.
"""

import json
import shutil
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from repro.gpipe import Pipeline, whole_state_dict
from repro.gpipe.checkpoint.files import read_index
from repro.gpipe.checkpoint.save_load import together
from repro.gpipe.core.loss import Loss
from repro.gpipe.core.microbatch import batch_size
from repro.train import checkpoints
from repro.train.average import Average
from repro.train.evaluation import evaluate
from repro.train.history import Evaluation, History, Step
from repro.train.recipe import Recipe

Report = Callable[[History], None]


class MiniBatches(Protocol):
    """What a replica trains on: mini-batches without end, such as `repro.data.batches.Batches`.

    `labels` are facts that every result must state.
    """

    labels: dict[str, str]

    def next(self) -> tuple[Any, Any]:
        """Inputs and targets of this replica's part of the next mini-batch."""
        ...

    def state(self) -> dict[str, Any]:
        """Where the order stands, as plain JSON."""
        ...

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue where `state` was taken."""


def make_optimizer(module: nn.Module, recipe: Recipe) -> Optimizer:
    """An optimizer of a module's parameters; the module may have none.

    There are two parameter groups on every stage. The first one decays: parameters of two
    dimensions or more, so matrices and convolutions. Biases and norms do not decay.
    """
    parameters = list(module.parameters())
    groups = [
        {"params": [p for p in parameters if p.dim() >= 2], "weight_decay": recipe.weight_decay},
        {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
    ]
    if recipe.optimizer == "sgd":
        return torch.optim.SGD(groups, lr=recipe.lr, momentum=recipe.momentum)
    if recipe.optimizer == "adam":
        betas = (recipe.momentum, recipe.square_decay)
        return torch.optim.Adam(groups, lr=recipe.lr, betas=betas, eps=recipe.epsilon, fused=True)
    from timm.optim.rmsprop_tf import RMSpropTF  # timm takes a second to import

    squares: Any = {"alpha": recipe.square_decay, "eps": recipe.epsilon}
    return RMSpropTF(groups, lr=recipe.lr, momentum=recipe.momentum, **squares)


class Trainer:
    """Trains a pipeline by a recipe; built alike on every rank.

    `settings` are facts of this run that JSON can hold, such as the model's name: `resume` refuses
    a checkpoint with other ones. As the attribute they have D, the labels of the data and the
    recipe, too. `average` is the moving average of this stage's weights, or None.
    """

    def __init__(
        self,
        pipe: Pipeline,
        loss: Loss,  # (outputs, targets) of a micro-batch -> its mean loss; or `Weighted`
        recipe: Recipe,
        batches: MiniBatches,  # of this replica, each of N / replicas examples
        *,
        folder: Path | str | None = None,  # of the checkpoints, which all hosts see
        save_every: int = 0,  # steps between checkpoints; 0: one at the end of `run`
        evaluation: Sequence[tuple[Any, Any]] = (),  # inputs and targets, as many on every replica
        evaluate_every: int = 0,  # steps between evaluations; 0: one at the end of `run`
        # What else to evaluate, by name: functions like a loss. One named "loss" is evaluated in
        # place of `loss`, such as one without label smoothing.
        metrics: Mapping[str, Loss] | None = None,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        if save_every < 0 or evaluate_every < 0:
            raise ValueError(
                f"save_every={save_every}, evaluate_every={evaluate_every}: allowed are 0 and more"
            )
        self.pipe = pipe
        self.recipe = recipe
        self.batches = batches
        self.folder = None if folder is None else Path(folder)
        self.step = 0
        self.history = History()
        self.optimizer = make_optimizer(pipe.module, recipe)
        self.average = None if recipe.ema is None else Average(pipe.module, recipe.ema)
        self.scaler = pipe.grad_scaler(enabled=recipe.precision == "float16")
        self._loss = loss
        self._save_every = save_every
        self._evaluation = evaluation
        self._evaluate_every = evaluate_every
        self._metrics = {"loss": loss, **(metrics or {})}
        all_settings = {
            **(settings or {}),
            "D": pipe.replicas,
            **{f"data: {name}": value for name, value in batches.labels.items()},
            **{f"recipe: {name}": value for name, value in recipe.model_dump().items()},
        }
        # As a checkpoint gives them back, with lists for tuples.
        self.settings: dict[str, Any] = json.loads(json.dumps(all_settings))
        self._reads = pipe.is_first or pipe.is_last
        self._may_write = False  # whether this run's own checkpoints are in the folder, or none
        self._everyone = pipe.engine.everyone
        self._is_coordinator = self._everyone.rank == 0

    # Training.

    def run(self, steps: int, report: Report | None = None) -> History:
        """Train until so many steps are done in all, those before a restart included.

        Evaluates and saves as often as asked for, and once more after the last step. `report` is
        called on every rank after each step, with the history.

        Raises:
            ValueError: one line, if the folder has checkpoints of another run, or a checkpoint
                cannot be written.
            NonFiniteError: on every rank, if the loss or a gradient is inf or nan.
        """
        run = self.folder
        if run is not None and not self._may_write:
            there = self._first_of_all(run, lambda: checkpoints.committed(run))
            if there:
                raise ValueError(
                    f"{run}: it has the checkpoint {there[-1].name} of an earlier run; resume it, "
                    "or choose another folder"
                )
            self._may_write = True
        while self.step < steps:
            self._do_step()
            if self._evaluation and self._is_due(self._evaluate_every, steps):
                values = self.evaluate(self._evaluation)
                self.history.evaluations.append(Evaluation(self.step, values))
            if report is not None:
                report(self.history)
            # The checkpoint comes last, so that its history has the evaluation.
            if self.folder is not None and self._is_due(self._save_every, steps):
                self.save()
        return self.history

    def _is_due(self, every: int, steps: int) -> bool:
        return self.step == steps or (every > 0 and self.step % every == 0)

    def _do_step(self) -> None:
        started = time.perf_counter()
        inputs, targets, examples = None, None, 0
        if self._reads:
            # Both ends read the same mini-batch, so that inputs meet their own targets.
            inputs, targets = self.batches.next()
            examples = batch_size(inputs) * self.pipe.replicas
        lr = self.recipe.learning_rate(self.step)
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        loss = self._update(
            inputs if self.pipe.is_first else None, targets if self.pipe.is_last else None
        )
        self.step += 1
        if self.average is not None:
            self.average.update(self.step)
        seconds = time.perf_counter() - started
        self.history.steps.append(Step(self.step, loss, lr, seconds, examples))

    def _update(self, inputs: Any, targets: Any) -> float:
        pipe, optimizer, scaler = self.pipe, self.optimizer, self.scaler
        if self.recipe.clip is None:
            with self._precision():
                return pipe.train_step(inputs, targets, self._loss, optimizer, scaler=scaler).loss
        optimizer.zero_grad()
        with self._precision():
            loss = pipe.train_step(inputs, targets, self._loss, scaler=scaler).loss
        scaler.unscale_(optimizer)
        pipe.clip_grad_norm_(self.recipe.clip)
        scaler.step(optimizer)
        scaler.update()
        return loss

    def _precision(self) -> AbstractContextManager[Any]:
        if self.recipe.precision == "float32":
            return nullcontext()
        dtype = getattr(torch, self.recipe.precision)
        return torch.autocast(self.pipe.device.type, dtype=dtype)

    def evaluate(self, batches: Sequence[tuple[Any, Any]]) -> dict[str, float]:
        """Means of the loss and the metrics over some data; call it on every rank.

        With a moving average, that is evaluated in place of the weights; see
        `repro.train.evaluation.evaluate`.
        """
        averaged = self.average.in_place_of_weights() if self.average else nullcontext()
        with averaged, self._precision():
            return evaluate(self.pipe, batches, self._metrics)

    # Checkpoints.

    def save(self) -> Path:
        """Write a checkpoint into the folder, then delete the oldest; call it on every rank.

        If that is impossible, as on a full disk, every rank raises a one-line ValueError, and the
        checkpoints before it stay.
        """
        run = self.folder
        assert run is not None, "a checkpoint needs a folder; give Trainer a folder"
        path = run / f"step-{self.step:06}"
        self._first_of_all(run, lambda: checkpoints.committed(run))  # refuses links
        try:
            self._write(path)
        except (OSError, ValueError) as error:
            whole = checkpoints.committed(run)
            if self._is_coordinator and path not in whole:
                checkpoints.discard(path)
            if not isinstance(error, OSError):
                raise
            free = shutil.disk_usage(run if run.exists() else Path.cwd()).free
            raise ValueError(
                f"{run}: the checkpoint of step {self.step} cannot be written ({error}); {free} "
                f"bytes are free there; "
                f"{f'{whole[-1]} is whole' if whole else 'there is no earlier one'}; free some "
                "space and resume"
            ) from error
        self._may_write = True
        if self._is_coordinator:
            checkpoints.remove_old(run)
        return path

    def _write(self, path: Path) -> None:
        states = self._everyone.all_gather(self.batches.state() if self._reads else None)
        extra = {
            "step": self.step,
            "data": states[:: self.pipe.stages],  # of the first stage of each replica
            "history": self._first_of_all(
                path, lambda: checkpoints.write_history(path, self.history)
            ),
            "settings": self.settings,
            "scaler": self.scaler.state_dict(),
        }
        if self.average is not None:
            with self.average.in_place_of_weights():
                self.pipe.save(path / checkpoints.AVERAGE)
        self.pipe.save(path, self.optimizer, extra)  # its index is what makes the checkpoint whole

    def resume(self) -> int:
        """Go on from the newest checkpoint that is not damaged; call it on every rank.

        All that follows is the same as without the interruption, bit for bit on the CPU. K may be
        another one. A warning names each newer checkpoint that is damaged. Every rank raises a
        one-line ValueError if all are damaged, or if the newest usable one is of another model,
        recipe, data or number of replicas. Returns the step; 0 if the folder has no checkpoint.
        """
        run = self.folder
        assert run is not None, "a checkpoint needs a folder; give Trainer a folder"
        path, damaged = self._first_of_all(run, lambda: checkpoints.newest_usable(run))
        for damage in damaged if self._is_coordinator else ():
            warnings.warn(f"{damage}; going on from {path}", stacklevel=2)
        self._may_write = True
        if path is None:
            return 0
        saved = read_index(path).extra["settings"]
        for name in sorted(saved.keys() | self.settings.keys()):
            before, now = saved.get(name), self.settings.get(name)
            if before != now:
                raise ValueError(
                    f"checkpoint {path}: it was trained with {name} = {before!r}, not {now!r}; "
                    "resume it as it was begun, or begin another run from its weights"
                )
        if self.average is not None:
            self.pipe.load(path / checkpoints.AVERAGE)
            self.average.restart()
        extra = self.pipe.load(path, self.optimizer)
        self.batches.restore(extra["data"][self.pipe.replica])
        self.scaler.load_state_dict(extra["scaler"])
        self.history = checkpoints.read_history(path)
        self.step = extra["step"]
        return self.step

    def start_from(self, source: Path | str | Mapping[str, Tensor], new_layers: int = 0) -> None:
        """Begin with another run's weights; call it on every rank, before the first step.

        The paper fine-tunes with a new softmax layer and all other layers from ImageNet: that is
        `new_layers=1`.

        Args:
            source: the folder of a run, of which the newest usable checkpoint is taken, its moving
                average if it has one; or a folder of `Pipeline.save`; or the state dict of the
                unsplit model.
            new_layers: how many layers at the end keep their initial weights.
        """
        layers = self.pipe.layer_names
        if not 0 <= new_layers < len(layers):
            raise ValueError(
                f"new_layers={new_layers}: allowed is 0 to {len(layers) - 1}, since the model has "
                f"{len(layers)} layers"
            )
        if not isinstance(source, Mapping):
            folder = Path(source)
            source = whole_state_dict(
                self._first_of_all(folder, lambda: checkpoints.weights_of(folder))
            )
        new = set(layers[len(layers) - new_layers :])
        here = self.pipe.module.state_dict()
        merged = {key: value for key, value in source.items() if key.split(".")[0] not in new}
        merged |= {key: value for key, value in here.items() if key.split(".")[0] in new}
        self.pipe.load_state_dict(merged)
        if self.average is not None:
            self.average.restart()

    def _first_of_all(self, where: Path, call: Callable[[], Any]) -> Any:
        """Call a function on the first rank only; every rank returns or raises what it did."""
        return together(
            f"checkpoint {where}",
            self.pipe.rank,
            self._everyone.all_gather,
            lambda: call() if self._is_coordinator else None,
        )[0]
