"""Functions to launch: methods without a pipeline train small models in two processes."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from repro.gpipe import PipelineConfig
from repro.gpipe.core.layers import build as build_layer
from repro.gpipe.core.microbatch import split
from repro.methods import make
from repro.methods.method import Method, Setup
from repro.models import Model, build

D, M = 2, 2  # replicas, and micro-batches of each
WIDTH = 128
TRANSFORMER = {"L": 2, "d": 16, "H": 32, "heads": 2, "V": 64, "T": 8}
TRANSLATION = {"L": 1, "d": 16, "H": 24, "A": 2, "head_dim": 8, "V": 32, "S": 12, "T": 13}
MODELS = {
    "ddp": ("transformer", "translation"),
    "fsdp": ("transformer", "translation"),
    "tensor": ("transformer",),
}
# Weights that take much more memory than activations, and can be divided.
WIDE = {"L": 2, "d": 128, "H": 512, "heads": 2, "V": 16, "T": 1}
State = dict[str, Tensor]


def models() -> dict[str, Model]:
    """Models without dropout; the loss of "translation" weighs micro-batches by their tokens."""
    return {
        "transformer": build("transformer", dropout=0.0, **TRANSFORMER),
        "translation": build("translation", dropout=0.0, **TRANSLATION),
    }


def batch(model: Model) -> tuple[Any, Any]:
    """Nine examples: neither replicas nor micro-batches get equally many."""
    return model.batch(9, 0)


def unsplit(model: Model) -> tuple[float, State]:
    """Loss and gradients of the whole mini-batch in plain torch."""
    device = torch.device("cpu")
    layers = [build_layer(layer, n, 0, device) for n, layer in enumerate(model.layers)]
    whole = nn.Sequential(*layers)
    inputs, targets = batch(model)
    loss = model.loss(whole(inputs), targets)
    loss.backward()
    return loss.item(), gradients(whole)


def gradients(module: nn.Module) -> State:
    """Gradients by name; those that are sharded are gathered."""
    return {
        name: whole_tensor(p.grad) for name, p in module.named_parameters() if p.grad is not None
    }


def whole_tensor(tensor: Any) -> Tensor:
    """A DTensor's whole value, or the tensor itself."""
    return (tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor).detach().clone()


def method_of(library: str, model: Model, **changed: Any) -> tuple[Method, Any, Any]:
    """A method of two processes, and this one's part of the mini-batch."""
    checkpoint = changed.pop("checkpoint", "never")
    inputs, targets = batch(model)
    if library == "tensor":
        config = PipelineConfig(1, D * M, tensor_parallel=2, checkpoint=checkpoint)
    else:
        config = PipelineConfig(1, M, replicas=D, checkpoint=checkpoint)
        inputs, targets = (replica_part(tree) for tree in (inputs, targets))
    setup = Setup(
        model.layers,
        model.loss,
        config,
        sample=inputs,
        device=torch.device("cpu"),
        group=dist.group.WORLD,
        **changed,
    )
    return make(library, setup), inputs, targets


def replica_part(tree: Any) -> Any:
    """The part of this replica, as the harness cuts it."""
    return split(tree, D)[dist.get_rank()]


def everything(library: str) -> dict[Any, Any]:
    """All that the tests of a method without a pipeline look at, on this process."""
    results: dict[Any, Any] = {}
    for name in MODELS[library]:
        model = models()[name]
        for checkpoint in ("never", "always"):
            method, inputs, targets = method_of(library, model, checkpoint=checkpoint)
            loss = method.train_step(inputs, targets).loss
            results[name, checkpoint] = loss, gradients(method.module)
            results[name, "evaluated"] = method.evaluate(inputs, targets).loss
            method.close()
    optimizer: Callable[..., Any] = partial(torch.optim.SGD, lr=0.1, momentum=0.9)
    model = build("transformer", **TRANSFORMER)
    method, inputs, targets = method_of(library, model, optimizer=optimizer)
    results["losses"] = [method.train_step(inputs, targets).loss for _ in range(3)]
    results["sent"] = method.sent_bytes(inputs, targets)
    model = build("transformer", **WIDE) if library == "tensor" else wide()
    method, inputs, targets = method_of(library, model, optimizer=optimizer)
    for _ in range(2):  # after the first, DistributedDataParallel makes its buckets anew
        method.train_step(inputs, targets)
    results["peak"] = method.peak_bytes(inputs, targets)
    return results


def wide() -> Model:
    """Eight layers whose weights take much more memory than their activations."""
    return Model(
        name="wide",
        layers=[partial(nn.Linear, WIDTH, WIDTH)] * 8,
        batch=lambda N, seed: (torch.ones(N, WIDTH), torch.ones(N, WIDTH)),
        loss=nn.functional.mse_loss,
        unit="examples/s",
    )
