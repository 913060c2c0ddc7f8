"""What the tasks of a worker share: the setup of a method, process groups, devices."""

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from repro.gpipe.comm.transport import TIMEOUT
from repro.gpipe.tree import split
from repro.harness.cut import config_of
from repro.harness.request import Request
from repro.harness.spec import PIPELINING, REPLICATED, TIMED, RunSpec
from repro.harness.tasks.optimizers import OPTIMIZERS
from repro.methods.method import Setup
from repro.models import Model


def setup_of(request: Request, model: Model, inputs: Any, rank: int, groups: list[Any]) -> Setup:
    """The arguments of a method; a balance by time is measured on the first micro-batch."""
    spec = request.spec
    sample = split(inputs, spec.M)[0]
    return Setup(
        model.layers,
        model.loss,
        config=config_of(request, model, sample),
        sample=sample,
        seed=spec.seed,
        device=device_of(request.device, rank),
        optimizer=partial(OPTIMIZERS[spec.optimizer], lr=spec.lr),
        group=groups[0] if groups else None,
    )


def drawn_on(device: torch.device, model: Model) -> Model:
    """The model with other weights on a GPU, for runs of which only time or memory is read.

    They are drawn there, since the CPU draws a billion in half a minute.
    """
    if device.type == "cpu":
        return model
    layers = [
        layer if isinstance(layer, nn.Module) else partial(_drawn, layer, index, device)
        for index, layer in enumerate(model.layers)
    ]
    return replace(model, layers=layers)


def _drawn(layer: Callable[[], nn.Module], index: int, device: torch.device) -> nn.Module:
    counted = torch.empty(0).is_meta  # asked for a layer without memory
    with torch.device("meta"):
        module = layer()
    if counted:
        return module
    module.to_empty(device=device)
    draw = torch.Generator(device).manual_seed(index)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.normal_(std=0.02, generator=draw)
        for buffer in module.buffers():
            buffer.zero_()
    return module


def facts_of(model: Model, began: float) -> dict[str, Any]:
    """What every record has: seconds since a moment of `time.perf_counter`, unit and labels."""
    setup_s = time.perf_counter() - began
    return {"setup_s": setup_s, "unit": model.unit, "labels": dict(model.labels)}


def groups_of(spec: RunSpec) -> list[Any]:
    """The process group of a run, if its library needs one. All workers make it together."""
    needs = spec.library in (*PIPELINING, *REPLICATED, "minimal")
    if spec.fidelity not in TIMED or not (needs or spec.tensor_parallel):
        return []
    # Torch's pipelines refuse a group with more processes than stages.
    group = dist.new_group(range(spec.devices), timeout=TIMEOUT)
    return [group] if dist.get_rank() < spec.devices else []


def device_of(kind: str, rank: int) -> torch.device:
    if kind == "cpu":
        return torch.device("cpu")
    device = torch.device("cuda", rank % torch.cuda.device_count())
    torch.cuda.set_device(device)
    return device
