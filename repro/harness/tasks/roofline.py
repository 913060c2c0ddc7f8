"""The task "roofline": layer times from the rates that this machine attains right now.

Rates of a machine drift, and are lower while more processes share its memory. So they are measured
on as many processes as a step has, and in the same round as that step. What is recorded has the
form of a calibration, but no layer was timed: the cost model predicts their times.
"""

import os
import time
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch

from repro.costs import Counter, Device, LayerTime, bench, roofline
from repro.costs.stage_memory import micro_batch
from repro.gpipe.comm.control_channel import Wire
from repro.harness.job import Job, Measured
from repro.harness.schema import RooflineRound
from repro.harness.spec import RunSpec
from repro.harness.tasks.calibrate import sizes
from repro.harness.tasks.optimizers import OPTIMIZERS
from repro.models import Model, build
from repro.simulate import Calibration

_last: Counter | None = None  # the last counter of this process, whose traces the next one uses


def run(job: Job, rank: int, _groups: list[Any]) -> Measured:
    """Measure the rates on this rank, and predict the times of every layer."""
    began = time.perf_counter()
    spec = job.spec
    wire = Wire(spec.K, rank)
    rates = wire.all_gather(bench.measure(wire, job.device))
    source = f"the task roofline on K={spec.K} processes at once"
    device = bench.profile(rates, "here", "this machine", source, _memory(job))
    model = build(spec.model, **spec.arguments)
    record = RooflineRound(
        device=device.model_dump(),
        calibration=predicted(spec, model, device, job.device),
        balance=[len(model.layers)],
        setup_s=time.perf_counter() - began,
        unit=model.unit,
        labels=dict(model.labels),
    )
    return Measured(record)


def predicted(spec: RunSpec, model: Model, device: Device, kind: str) -> Calibration:
    """Times of the layers by a device's rates, for micro-batches of N / M, 2 N / M, ... N examples.

    Args:
        spec: has N, M and the optimizer.
        model: its layers.
        device: the rates.
        kind: "cpu" or "cuda", whose operators are counted.
    """
    global _last

    optimizer = partial(OPTIMIZERS[spec.optimizer], lr=spec.lr)
    _last = counter = Counter(model.layers, model.loss, optimizer, _last, kind)
    few = model.batch(1, spec.seed)
    tables: dict[str, list[Sequence[float]]] = {"forward": [], "recompute": [], "backward": []}
    layers: Sequence[LayerTime] = ()
    for n in sizes(spec):
        inputs, targets = (micro_batch(part, n) for part in few)
        layers = roofline.layers(counter, inputs, device)
        profile = roofline.profile(layers, roofline.head(counter, inputs, targets, device))
        for name, rows in tables.items():
            rows.append(getattr(profile, name))
    largest = sizes(spec)[-1]
    values = {
        "sizes": sizes(spec),
        **{name: [list(row) for row in rows] for name, rows in tables.items()},
        "update": [layer.update for layer in layers],
        "activations": [layer.activation_bytes / largest for layer in layers[:-1]],
        "gradients": [layer.gradient_bytes / largest for layer in layers[:-1]],
        "link": device.link,
    }
    return Calibration(**values)


def _memory(job: Job) -> int:
    """Bytes of each stage: its share of the host's, or those of a GPU."""
    if job.device == "cuda":
        return torch.cuda.mem_get_info(0)[1]
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // job.spec.K
