"""Methods of one process, right or wrong in one known way each, and functions to launch."""

import time
from collections.abc import Callable
from dataclasses import fields
from datetime import timedelta
from functools import partial
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import nn

from repro.gpipe import EvaluationResult, PipelineConfig, StepResult
from repro.gpipe.core.layers import build
from repro.gpipe.core.microbatch import batch_size, gather
from repro.gpipe.exact.batchnorm import once_per_mini_batch
from repro.methods import make
from repro.methods.checks import Check, examine
from repro.methods.method import Method, Setup
from repro.methods.probe import probe


class Right(Method):
    """The unsplit model, micro-batch after micro-batch, recomputed as a pipeline would."""

    balance = (4,)
    equal_weights: ClassVar[bool] = False

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup, 1, 0)
        self.setup = setup
        layers = [build(layer, n, setup.seed, setup.device) for n, layer in enumerate(setup.layers)]
        self.module = nn.Sequential(*layers)

    def train_step(self, inputs: Any, targets: Any, *, trace: bool = False) -> StepResult:
        start, total = time.perf_counter(), 0.0
        parts = self.cut(inputs)
        with self.statistics() as statistics:
            for part, target in zip(parts, self.cut(targets), strict=True):
                share = (
                    1 / len(parts) if self.equal_weights else batch_size(part) / batch_size(inputs)
                )
                statistics.counting = True
                state = torch.get_rng_state()
                loss = self.setup.loss(self.module(part), target) * share
                if self.setup.config.checkpoint == "always":
                    statistics.counting = False
                    loss = self.recompute(part, target, share, state)
                loss.backward()
                total += loss.item()
        return StepResult(total, start, time.perf_counter())

    def statistics(self) -> Any:
        return once_per_mini_batch(self.module.modules())

    def recompute(self, part: Any, target: Any, share: float, state: torch.Tensor) -> torch.Tensor:
        torch.set_rng_state(state)
        return self.setup.loss(self.module(part), target) * share

    def evaluate(self, inputs: Any, targets: Any) -> EvaluationResult:
        self.module.eval()
        with torch.no_grad():
            outputs = gather([self.module(part) for part in self.cut(inputs)])
        self.module.train()
        return EvaluationResult(0.0, outputs)


class Counts:
    """Stands for `Statistics` where nobody looks after them."""

    counting = True

    def __enter__(self) -> "Counts":
        return self

    def __exit__(self, *error: object) -> None:
        return None


class CountsTwice(Right):
    """Running statistics move with every micro-batch, and again when it is recomputed."""

    def statistics(self) -> Any:
        return Counts()


class OtherMask(Right):
    """Drops other activations when it recomputes."""

    def recompute(self, part: Any, target: Any, share: float, state: torch.Tensor) -> torch.Tensor:
        return self.setup.loss(self.module(part), target) * share


class EqualWeights(Right):
    """Takes the mean of the micro-batches' means."""

    equal_weights = True


class Refuses(Right):
    """Wants micro-batches of one size."""

    def train_step(self, inputs: Any, targets: Any, *, trace: bool = False) -> StepResult:
        if batch_size(inputs) % self.setup.config.micro_batches:
            raise RuntimeError("sizes\ndiffer")
        return super().train_step(inputs, targets)


class ForgetsAMode(Right):
    """Evaluates with the micro-batch's own statistics."""

    def evaluate(self, inputs: Any, targets: Any) -> EvaluationResult:
        with torch.no_grad():
            return EvaluationResult(0.0, gather([self.module(part) for part in self.cut(inputs)]))


def setup(**changed: Any) -> Setup:
    """A small model; `changed` are fields of the setup or of its pipeline's settings."""
    model = probe()
    config: dict[str, Any] = {"stages": 2, "micro_batches": 4, "balance": (2, 2)}
    for field in fields(PipelineConfig):
        if field.name in changed:
            config[field.name] = changed.pop(field.name)
    common = {
        "layers": model.layers,
        "loss": model.loss,
        "config": PipelineConfig(**config),
    }
    return Setup(
        **{**common, "sample": model.batch(4, 0)[0], "device": torch.device("cpu"), **changed}
    )


def examined(maker: Callable[[Setup], Any], spare: Any = None, **changed: Any) -> dict[str, Check]:
    return examine(maker, setup(**changed), probe().batch, 16, spare)


# Schedules of torch.distributed.pipelining: of the setup, and the stages of a rank.
TORCH_SCHEDULES: dict[str, dict[str, Any]] = {
    "torch": {},
    "torch-1f1b": {"schedule": "1f1b"},
    "torch-interleaved": {
        "schedule": "interleaved-1f1b",
        "stages_per_rank": 2,
        "balance": (1, 1, 1, 1),
    },
}


def two_ranks() -> dict[str, tuple[dict[str, Check], list[float]]] | None:
    """In 3 processes, one without a stage: checks of ours and torch, and losses of three steps."""
    from repro.methods.peers.pipelining import groups

    short = timedelta(seconds=5)
    group, *spares = groups(2, [timedelta(minutes=2), *(short for _ in TORCH_SCHEDULES)])
    if dist.get_rank() == 2:
        return None
    results = {"repro": (examined(partial(make, "repro")), _trained("repro", group))}
    for (library, settings), spare in zip(TORCH_SCHEDULES.items(), spares, strict=True):
        checks = examined(partial(make, library), spare, group=group, **settings)
        results[library] = (checks, _trained(library, group, **settings))
    return results


def deepspeed_ranks() -> tuple[dict[str, Check], list[float], list[float]]:
    """In 2 processes: checks of DeepSpeed, and losses of ours and of it."""
    like_it: dict[str, Any] = {"schedule": "1f1b"}
    checks = examined(partial(make, "deepspeed"), **like_it)
    ours = _trained("repro", None, **like_it)
    return checks, ours, _trained("deepspeed", None, **like_it)


def _trained(library: str, group: Any, **settings: Any) -> list[float]:
    """Losses while training without dropout, an evaluation in between."""
    quiet = [nn.Flatten(), partial(nn.Linear, 192, 16), nn.ReLU(), partial(nn.Linear, 16, 5)]
    optimizer = partial(torch.optim.SGD, lr=0.1)
    method = make(library, setup(layers=quiet, group=group, optimizer=optimizer, **settings))
    inputs, targets = probe().batch(16, 0)
    losses = [method.train_step(inputs, targets).loss]
    losses.append(method.evaluate(inputs, targets).loss)
    losses += [method.train_step(inputs, targets).loss for _ in range(2)]
    method.close()
    return losses
