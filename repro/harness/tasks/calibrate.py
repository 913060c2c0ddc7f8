"""The task "calibrate": times of the layers of a model on this machine.

Processes share memory bandwidth and caches, so all processes compute at once, as stages mostly do.
Each process runs the whole chain of layers, forward and back, as a stage runs its part: a layer
that is timed again and again would find its weights in the cache.
"""

import statistics
import time
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from repro.gpipe.comm.control_channel import ControlChannel
from repro.gpipe.comm.links import Links
from repro.gpipe.core.layers import build as build_layer
from repro.gpipe.exact import rng
from repro.gpipe.partition.layer_profile import timed as seconds_of
from repro.gpipe.tree import Tree, flatten, map_leaves, unflatten, unwrapped
from repro.harness.request import Request, Result
from repro.harness.schema import CalibrateRound
from repro.harness.spec import RunSpec
from repro.harness.tasks.optimizers import OPTIMIZERS
from repro.harness.tasks.setup import device_of, drawn_on, facts_of
from repro.models import Model, build
from repro.simulate.calibration import Calibration

Pass = list[list[float]]  # seconds of each layer: forward, recompute, backward


def sizes(spec: RunSpec) -> list[int]:
    """Examples of the micro-batches that are timed: N / M, twice as many, and so on up to N."""
    examples = [spec.N // spec.M]
    while 2 * examples[-1] <= spec.N:
        examples.append(2 * examples[-1])
    return examples


def run(request: Request, rank: int, _groups: list[Any]) -> Result:
    """Time every layer on this rank, while the other ranks compute too."""
    began = time.perf_counter()
    model = build(request.spec.model, **request.spec.arguments)
    calibration = timed_layers(request, rank, model)
    facts = {"balance": [len(model.layers)], **facts_of(model, began)}
    return Result(CalibrateRound(calibration=calibration, **facts))


def timed_layers(request: Request, rank: int, model: Model) -> Calibration:
    """Seconds of every layer, the mean over the processes, which all compute at once."""
    spec, device = request.spec, device_of(request.device, rank)
    channel = ControlChannel(spec.K, rank)
    layers = _Chain(spec, model, channel, device)

    def mean(seconds: Any) -> Any:
        """Over the processes, as nested lists."""
        return np.mean(channel.all_gather(np.asarray(seconds).tolist()), axis=0).tolist()

    tables = []  # for each size, for each kind, seconds of each layer
    for n in sizes(spec):
        passes = [layers.run(n) for _ in range(spec.warmup + spec.steps)][spec.warmup :]
        tables.append(mean(np.median(passes, axis=0)))
    links = Links(channel, device, spec.transport)
    # The last stage sends nothing on, so its own link has no speed.
    speed = max(channel.all_gather(links.speed()), key=lambda link: link.seconds(2**20))
    links.close()
    return Calibration(
        *zip(*tables, strict=True),
        sizes=tuple(sizes(spec)),
        update=mean(layers.updates(spec.steps)),
        activations=tuple(onward for onward, _ in layers.sent),
        gradients=tuple(back for _, back in layers.sent),
        link=speed,
    )


class _Chain:
    """All layers of a model in one process, and the loss as a part of the last one."""

    def __init__(
        self, spec: RunSpec, model: Model, channel: ControlChannel, device: torch.device
    ) -> None:
        self._spec, self._model, self._channel, self._device = spec, model, channel, device
        layers = drawn_on(device, model).layers
        self._modules = [
            build_layer(layer, index, spec.seed, device) for index, layer in enumerate(layers)
        ]
        # Bytes of an example behind each layer but the last: activations, and their gradients.
        self.sent: list[tuple[float, float]] = []

    def run(self, n: int) -> Pass:
        """One micro-batch through all layers and back; all processes begin each way together."""
        batch = self._model.batch(n, self._spec.seed)
        inputs, targets = (
            map_leaves(Tensor, lambda t: t.to(self._device), unwrapped(tree)) for tree in batch
        )
        self._channel.all_gather(None)
        with rng.preserved(self._device):
            with torch.no_grad():
                forward, _ = self._forward(inputs, targets)
            self._channel.all_gather(None)
            recompute, outputs = self._forward(inputs, targets)
            backward = [self._backward(output) for output in reversed(outputs)]
        self.sent = [(_nbytes(each) / n, _nbytes(_roots(each)) / n) for each in outputs[:-1]]
        return [forward, recompute, backward[::-1]]

    def _forward(self, inputs: Tree, targets: Tree) -> tuple[list[float], list[Tree]]:
        """Seconds of each layer, and its outputs; each has a graph of its own."""
        took, outputs, value = [], [], inputs
        for module in self._modules:
            tensors, skeleton = flatten(value)
            starts = [t.detach().requires_grad_(t.requires_grad) for t in tensors]
            # A layer may write to its inputs.
            copies = unflatten([t.clone() for t in starts], skeleton)
            seconds, value = seconds_of(self._device, partial(module, copies))
            took.append(seconds)
            outputs.append(value)
        seconds, outputs[-1] = seconds_of(self._device, lambda: self._model.loss(value, targets))
        took[-1] += seconds
        return took, outputs

    def _backward(self, output: Tree) -> float:
        roots = _roots(output)
        gradients = [torch.ones_like(t) for t in roots]
        return seconds_of(self._device, lambda: torch.autograd.backward(roots, gradients))[0]

    def updates(self, repeats: int) -> list[float]:
        """Seconds of the optimizer's update of each layer; 0 for a layer without parameters."""
        found = []
        for module in self._modules:
            took = [0.0]
            if parameters := [*module.parameters()]:
                step = OPTIMIZERS[self._spec.optimizer](parameters, lr=self._spec.lr).step
                took = [seconds_of(self._device, step)[0] for _ in range(repeats)]
            found.append(statistics.median(took))
        return found


def _roots(output: Tree) -> list[Tensor]:
    return [t for t in flatten(output)[0] if t.requires_grad]


def _nbytes(value: Tree) -> int:
    return sum(t.nbytes for t in flatten(value)[0])
