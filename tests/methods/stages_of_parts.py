"""A function to launch in four processes: pipelines with tensor parallelism and with ZeRO-1."""

from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.optim import ZeroRedundancyOptimizer

from repro.gpipe import Pipeline, PipelineConfig
from repro.gpipe.core.microbatch import split
from repro.methods import make
from repro.methods.method import Method, Setup
from repro.models import Model, build

SIZES = {"L": 2, "d": 16, "H": 32, "heads": 2, "V": 64, "T": 8}
N, M = 9, 4
ADAM = partial(torch.optim.Adam, lr=0.01)
State = dict[str, Tensor]


def model(dropout: float = 0.1) -> Model:
    return build("transformer", dropout=dropout, **SIZES)


def everything(folder: Path) -> dict[Any, Any]:
    """All that the tests look at, on this process of four."""
    results: dict[Any, Any] = {}
    for name, config in CONFIGS.items():
        results[name] = losses_and_gradients(config)
    for zero in (False, True):
        results["zero", zero] = trained_with_adam(zero=zero)
    results["resumed"] = resumed(folder)
    return results


CONFIGS = {
    "K=2, T=2": PipelineConfig(2, M, balance="uniform", tensor_parallel=2),
    "K=2, T=2, 1f1b": PipelineConfig(
        2, M, balance="uniform", schedule="1f1b", checkpoint="never", tensor_parallel=2
    ),
    "K=2, T=2, interleaved": PipelineConfig(
        2,
        M,
        balance="uniform",
        schedule="interleaved-1f1b",
        stages_per_rank=2,
        tensor_parallel=2,
    ),
    "K=1, T=2, D=2": PipelineConfig(1, M // 2, replicas=2, balance="uniform", tensor_parallel=2),
}


def own_group(members: list[list[int]]) -> Any:
    """The one of these process groups that this process is in; all processes make all of them."""
    groups = [dist.new_group(ranks) for ranks in members]
    return next(
        group for group, ranks in zip(groups, members, strict=True) if dist.get_rank() in ranks
    )


def setup_of(config: PipelineConfig, group: Any, dropout: float = 0.1, **more: Any) -> Setup:
    transformer = model(dropout)
    return Setup(
        transformer.layers,
        transformer.loss,
        config,
        sample=None,
        device=torch.device("cpu"),
        group=group,
        **more,
    )


def part_of_batch(config: PipelineConfig) -> tuple[Any, Any]:
    """The mini-batch of this process's replica."""
    replica = dist.get_rank() // (config.stages * config.tensor_parallel)
    inputs, targets = (split(t, config.replicas)[replica] for t in model().batch(N, 0))
    return inputs, targets


def parts(config: PipelineConfig) -> list[list[int]]:
    """Ranks of the parts of each stage of each replica."""
    K, T = config.stages, config.tensor_parallel
    return [
        [(d * T + t) * K + j for t in range(T)] for d in range(config.replicas) for j in range(K)
    ]


def losses_and_gradients(config: PipelineConfig) -> dict[str, Any]:
    """Gradients of a step without dropout; then losses with it, an evaluation, memory, bytes."""
    group = own_group(parts(config))
    inputs, targets = part_of_batch(config)
    quiet = make("repro", setup_of(config, group, dropout=0.0))
    loss = quiet.train_step(inputs, targets).loss
    results: dict[str, Any] = {"gradients": (loss, gradients(quiet.module))}
    quiet.close()
    method = make("repro", setup_of(config, group, optimizer=ADAM))
    results["losses"] = [method.train_step(inputs, targets).loss for _ in range(3)]
    results["evaluated"] = method.evaluate(inputs, targets).loss
    results["peak"] = method.peak_bytes(inputs, targets)
    results["sent"] = method.sent_bytes(inputs, targets)
    method.close()
    return results


def gradients(module: nn.Module) -> State:
    return {name: p.grad.clone() for name, p in module.named_parameters() if p.grad is not None}


def trained_with_adam(*, zero: bool) -> dict[str, Any]:
    """K=2 stages of D=2 replicas after three steps of Adam, with and without ZeRO-1."""
    config = PipelineConfig(2, M // 2, replicas=2, balance="uniform")
    group = own_group([[0, 2], [1, 3]])
    method: Method = make("repro", setup_of(config, group, optimizer=ADAM, zero=zero))
    inputs, targets = part_of_batch(config)
    losses = [method.train_step(inputs, targets).loss for _ in range(3)]
    weights = {name: value.clone() for name, value in method.module.state_dict().items()}
    results = {
        "losses": losses,
        "weights": weights,
        "peak": method.peak_bytes(inputs, targets),
        "sent": method.sent_bytes(inputs, targets),
    }
    method.close()
    return results


def resumed(folder: Path) -> dict[str, State]:
    """Weights after two steps and one more, in one go and over a checkpoint, with ZeRO-1."""
    config = PipelineConfig(2, M // 2, replicas=2, balance="uniform")
    group = own_group([[0, 2], [1, 3]])
    inputs, targets = part_of_batch(config)
    transformer = model()

    def pipeline() -> tuple[Pipeline, torch.optim.Optimizer]:
        pipe = Pipeline(transformer.layers, config)
        optimizer: Any = ZeroRedundancyOptimizer(
            pipe.parameters(), optimizer_class=torch.optim.Adam, process_group=group, lr=0.01
        )
        return pipe, optimizer

    first, optimizer = pipeline()
    for _ in range(2):
        first.train_step(inputs, targets, transformer.loss, optimizer)
    first.save(folder, optimizer)
    second, its_optimizer = pipeline()
    second.load(folder, its_optimizer)
    for pipe, its in ((first, optimizer), (second, its_optimizer)):
        pipe.train_step(inputs, targets, transformer.loss, its)
    return {"in one go": first.module.state_dict(), "resumed": second.module.state_dict()}
