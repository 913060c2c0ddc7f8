"""The task "roofline": layer times from the rates that this machine attains right now.

Rates of a machine drift, and are lower while more processes share its memory. So they are measured
on as many processes as a step has, and in the same round as that step. What is recorded has the
form of a calibration, but no layer was timed: the cost model predicts their times.
"""

import os
import time
from typing import Any

import torch

from repro.costs import bench
from repro.costs.device import Device
from repro.gpipe.comm.control_channel import ControlChannel
from repro.harness.job import Job, Measured
from repro.harness.predict import Roofline
from repro.harness.schema import RooflineRound
from repro.harness.spec import RunSpec
from repro.harness.tasks.calibrate import sizes
from repro.harness.tasks.setup import facts_of
from repro.models import Model, build
from repro.simulate.calibration import Calibration


def run(job: Job, rank: int, _groups: list[Any]) -> Measured:
    """Measure the rates on this rank, and predict the times of every layer."""
    began = time.perf_counter()
    spec = job.spec
    wire = ControlChannel(spec.K, rank)
    rates = wire.all_gather(bench.measure(job.device, stages=spec.K))
    if job.device == "cuda":
        memory = torch.cuda.mem_get_info(0)[1]
    else:  # a share of the host's
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // spec.K
    made_by = f"the task roofline on K={spec.K} processes at once"
    device = bench.profile(rates, "here", "this machine", made_by, memory)
    model = build(spec.model, **spec.arguments)
    times = predicted(spec, model, device, job.device)
    facts = {"balance": [len(model.layers)], **facts_of(model, began)}
    return Measured(RooflineRound(device=device.model_dump(), calibration=times, **facts))


def predicted(spec: RunSpec, model: Model, device: Device, kind: str) -> Calibration:
    """Times of the layers by a device's rates, for micro-batches of N / M, 2 N / M, ... N examples.

    `kind`, "cpu" or "cuda", says whose operators are counted.
    """
    source = Roofline(device, model, spec.optimizer, kind=kind)
    timed = sizes(spec)
    tables = [source.layers(n, "always") for n in timed]
    largest, (layers, _) = timed[-1], source.times(timed[-1])
    return Calibration(
        sizes=tuple(timed),
        forward=tuple(table.forward for table in tables),
        recompute=tuple(table.recompute for table in tables),
        backward=tuple(table.backward for table in tables),
        update=tuple(layer.update for layer in layers),
        activations=tuple(layer.activation_bytes / largest for layer in layers[:-1]),
        gradients=tuple(layer.gradient_bytes / largest for layer in layers[:-1]),
        link=device.link,
    )
