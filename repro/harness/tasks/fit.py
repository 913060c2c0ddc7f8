"""The task "fit": count the largest model that fits, or train one size within the memory."""

import time
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from repro.costs.fit import Step, largest
from repro.costs.limit import capped, over_limit, refuse_over
from repro.costs.size_ladder import size_ladders
from repro.costs.stage_memory import Messages
from repro.gpipe.core.memory import LiveBytes
from repro.harness.cut import config_with
from repro.harness.request import Measure, Request, Result, Status
from repro.harness.schema import CutModel, FitRound, Fitted, Tried
from repro.harness.spec import RunSpec
from repro.harness.tasks.optimizers import OPTIMIZERS
from repro.harness.tasks.setup import device_of, drawn_on, facts_of, setup_of
from repro.methods.own import Own
from repro.models import build


def run(request: Request, rank: int, groups: list[Any]) -> Result:
    spec = request.spec
    if spec.fidelity == "counted":
        return Result(counted(request))
    began = time.perf_counter()
    model = drawn_on(device_of(request.device, rank), build(spec.model, **spec.arguments))
    batch = model.batch(spec.N, spec.seed)
    method = Own(setup_of(request, model, batch[0], rank, groups))
    with closing(method):
        peaks, allocated = attempt(spec, method, batch, request.device, rank)
    # The coordinator knows the rest.
    tried = Tried(peak_bytes=peaks, allocator_bytes=allocated)
    fit = Fitted(largest=None, next=None, tried=[tried])
    balance = list(method.balance)
    return Result(FitRound(fit=fit, peak_bytes=peaks, balance=balance, **facts_of(model, began)))


def trained(measure: Measure, request: Request, deadline: float) -> Result | Status:
    """One size, trained by the stages into which it is counted to be cut.

    A stage that runs out of the memory is a result. A size that is counted not to fit is trained
    all the same.
    """
    by_counting = request.spec.model_copy(update={"fidelity": "counted"})
    try:
        record = counted(replace(request, spec=by_counting))
    except ValueError as error:  # it cannot be counted
        return Status("failed", str(error))
    size = record.fit.largest or record.fit.next
    assert size is not None
    found = measure(replace(request, balance=tuple(size.balance)), deadline)
    if isinstance(found, Result):
        assert isinstance(found.record, FitRound)
        (tried,) = found.record.fit.tried
        fit = Fitted(largest=size, next=None, counted=record.fit.largest)
    elif reason := over_limit(found.reason):
        tried = Tried(status="oom", reason=reason)
        fit = Fitted(largest=None, next=size, counted=record.fit.largest)
    else:
        return found
    known = {"args": size.args, "parameters": size.parameters}
    known["counted_bytes"] = [stage.total for stage in size.stages]
    fit.tried = [tried.model_copy(update=known)]
    changed = {"fit": fit, "peak_bytes": tried.peak_bytes, "balance": size.balance}
    return Result(record.model_copy(update=changed))


def counted(request: Request) -> FitRound:
    spec, device = request.spec, request.device
    began = time.perf_counter()
    optimizer = partial(OPTIMIZERS[spec.optimizer], lr=spec.lr)
    step = Step(config_with(spec, spec.balance), spec.N, optimizer, _messages(spec, device), device)
    assert spec.memory is not None
    sizes = size_ladders(spec.model, spec.arguments)
    answer = largest(partial(build, spec.model), step, spec.memory, sizes)
    shown = answer.best or answer.above
    assert shown is not None  # `largest` raises an error where no size can be counted
    best, above = (cut and CutModel(**cut.plain()) for cut in (answer.best, answer.above))
    return FitRound(
        fit=Fitted(largest=best, next=above),
        peak_bytes=[stage.total for stage in best.stages] if best else None,
        balance=list(shown.balance),
        **facts_of(build(spec.model, **shown.args), began),
    )


def _messages(spec: RunSpec, device: str) -> Messages:
    """What the links of this run keep in the memory of a stage's device."""
    if spec.transport == "shm":
        return Messages(0, 0)
    share_gpus = device == "cuda" and torch.cuda.device_count() < spec.K
    if device == "cuda" and (share_gpus or spec.transport == "gloo"):
        return Messages(posted=0)  # receives are posted in the memory of the host
    return Messages()


def attempt(
    spec: RunSpec, method: Own, batch: tuple[Any, Any], device: str, rank: int
) -> tuple[list[int], list[list[int]] | None]:
    """Train one size within the memory; a MemoryError on the stage that needs more.

    Two steps: before the first there are no gradients, and the optimizer has no state. On a GPU a
    third one watches every operator, to tell tensors from kernels' workspace.

    Returns:
        Peak bytes of each stage, and on a GPU its bytes of tensors, of tensors and workspace, and
        of all that its allocator reserved.
    """
    assert spec.memory is not None
    if device != "cuda":
        method.peak_bytes(*batch)
        peaks = method.peak_bytes(*batch)
        refuse_over(peaks[rank % spec.K], spec.memory)
        method.gather(None)  # rank 0 gives a result only if no rank is refused
        return peaks, None
    limit = partial(capped, torch.device("cuda", torch.cuda.current_device()), spec.memory)
    peaks: list[int] = []
    for _ in range(2):
        with limit():
            peaks = method.peak_bytes(*batch)
    reserved = method.gather(torch.cuda.max_memory_reserved())
    with limit(), LiveBytes(method.tensors(*batch), device="cuda") as meter:
        method.train_step(*batch)
    tensors = method.gather(meter.peak)
    return peaks, [list(stage) for stage in zip(tensors, peaks, reserved, strict=True)]
