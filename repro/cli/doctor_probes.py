"""What the stage processes of `repro doctor --check` run: small pipelines that look at themselves.

`serve` and `fail` are started by `launch` in one process for each stage, on the devices that a
Pipeline takes by itself.
"""

import pickle
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from multiprocessing import Queue
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from repro.gpipe import Pipeline
from repro.models import build

READY = "ready"
M = 4  # a power of two, so that its share of the mini-batch is exact in every number format
GAPS = "every second number"  # a view with gaps
RATE_BYTES = 8 * 2**20
_FAILING = 1  # micro-batch


def serve(answers: Queue, stages: int, probes: Sequence[tuple[str, Callable[[int], Any]]]) -> None:
    """Say that this stage is ready, run probes in turn, put (name, stage, pickled answer) for each."""
    _ready(answers)
    for name, probe in probes:
        answers.put((name, dist.get_rank(), pickle.dumps(probe(stages))))


def _ready(answers: Queue) -> None:
    answers.put((READY, dist.get_rank(), pickle.dumps(None)))


def patterns(device: torch.device | str = "cpu") -> dict[str, Tensor]:
    """Tensors that every stage can make again: number formats, sizes and orders of memory.

    Whole numbers below 128, which every format holds exactly, also after division by `M`.
    """
    generator = torch.Generator().manual_seed(0)

    def whole(*shape: int) -> Tensor:
        return torch.randint(-127, 128, shape, generator=generator).to(device)

    return {
        "one number": whole(1).float(),
        "float32": whole(1000, 33).float(),
        "float16": whole(64, 3).half(),
        "bfloat16": whole(64, 3).bfloat16(),
        "int64": whole(64, 3),
        "bool": whole(64, 3) > 0,
        "1 MiB": whole(512, 512).float(),
        "transposed": whole(32, 7).float().t(),
        "channels last": whole(2, 3, 5, 4).float().contiguous(memory_format=torch.channels_last),
        GAPS: _with_gaps(whole(16, 5).float()),
    }


def _with_gaps(tensor: Tensor) -> Tensor:
    return torch.stack((tensor, tensor), -1)[..., 0]


class Watch(nn.Module):
    """Passes on a dict of tensors and notes in `wrong` what is not its pattern, gradients included."""

    def __init__(self, *, emit: bool = False) -> None:
        super().__init__()
        self.emit = emit
        self.zero = nn.Parameter(torch.zeros(1))
        self.wrong: dict[str, None] = {}

    def forward(self, value: Any) -> dict[str, Tensor]:
        """The patterns: made here by the first stage from [1, 1], whatever it is, or those that came."""
        expected = patterns(self.zero.device)
        if self.emit:
            return {name: self._watched(name, t, t) for name, t in expected.items()}
        return {name: self._watched(name, value[name], t) for name, t in expected.items()}

    def _watched(self, name: str, found: Tensor, expected: Tensor) -> Tensor:
        if (found.dtype, found.stride()) != (expected.dtype, expected.stride()) or not torch.equal(
            found, expected
        ):
            self.wrong[name] = None
        if not found.is_floating_point():
            return found
        passed = found + self.zero.to(found.dtype)
        if passed.requires_grad:
            passed.register_hook(lambda g: self._gradient(name, g, expected))
        return _with_gaps(passed) if name == GAPS else passed

    def _gradient(self, name: str, found: Tensor, expected: Tensor) -> None:
        if not torch.equal(found, expected / M):
            self.wrong[f"gradient of {name}"] = None


def weighed(outputs: dict[str, Tensor], _targets: object) -> Tensor:
    """A loss whose gradient of each tensor is its own pattern."""
    first = outputs["float32"]
    floats = {name: p for name, p in patterns(first.device).items() if p.is_floating_point()}
    return torch.stack(
        [(outputs[name].float() * p.float()).sum() for name, p in floats.items()]
    ).sum()


def exchange(stages: int) -> dict[str, Any]:
    """What arrived wrong at this stage in three steps (one learns the shapes, two know them), and the rate."""
    layers = [lambda: Watch(emit=True), *[Watch] * (stages - 1)]
    pipe = Pipeline(layers, stages, M, balance="uniform")
    for _ in range(3):
        pipe.train_step(torch.zeros(M, 1), None, weighed)
    wrong = [
        name for layer in pipe.module.children() if isinstance(layer, Watch) for name in layer.wrong
    ]
    pipe.close()
    return {"wrong": wrong, "bytes_per_s": _rate(stages)}


def _rate(stages: int) -> float:
    """Bytes per second of a message of `RATE_BYTES` between neighbours: the best of a few, both directions."""
    model = build("timed", L=stages, forward_s=0.0, backward_s=0.0, elements=RATE_BYTES // 4)
    inputs, targets = model.batch(1, 0)
    pipe = Pipeline(model.layers, stages, 1, balance="uniform")
    waits = []
    for _ in range(4):
        timeline = pipe.train_step(inputs, targets, model.loss, trace=True).timeline
        assert timeline is not None
        for kind in "FB":
            spans = sorted((s for s in timeline.spans if s.kind == kind), key=lambda s: s.start)
            waits += [after.start - before.end for before, after in pairwise(spans)]
    pipe.close()
    return RATE_BYTES / max(min(waits), 1e-9)


def gradients(stages: int) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Gradients, summed, and running statistics after two steps: of this stage among K; on the first also of K=1."""
    return _trained(stages, stages), _trained(1, stages) if dist.get_rank() == 0 else {}


def _trained(stages: int, blocks: int) -> dict[str, Tensor]:
    pipe = Pipeline([_block] * blocks, stages, M, balance="uniform", seed=1)
    generator = torch.Generator().manual_seed(0)
    for _ in range(2):
        inputs, targets = (torch.randn(32, 16, generator=generator) for _ in range(2))
        pipe.train_step(inputs, targets, nn.functional.mse_loss)
    found = {
        f"gradient of {name}": p.grad
        for name, p in pipe.module.named_parameters()
        if p.grad is not None
    }
    found |= dict(pipe.module.named_buffers())
    pipe.close()
    return {name: tensor.detach().cpu() for name, tensor in found.items()}


def _block() -> nn.Module:
    """Random numbers and running statistics; no bias, whose gradient before a batch norm is rounding alone."""
    return nn.Sequential(
        nn.Linear(16, 16, bias=False), nn.BatchNorm1d(16), nn.Dropout(0.2), nn.Tanh()
    )


class Failing(nn.Module):
    """Raises at its second micro-batch."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(16, 16)
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        """[n, 16] -> the same, once."""
        self.calls += 1
        if self.calls > _FAILING:
            raise RuntimeError(f"injected failure at {time.time():.3f}")
        return self.linear(x)


def fail(answers: Queue, stages: int) -> None:
    """A step whose last stage fails."""
    _ready(answers)
    layers: list[Callable[[], nn.Module]] = [*[lambda: nn.Linear(16, 16)] * (stages - 1), Failing]
    pipe = Pipeline(layers, stages, M, balance="uniform")
    pipe.train_step(torch.zeros(M, 16), torch.zeros(M, 16), nn.functional.mse_loss)


def peaks(stages: int) -> list[int]:
    """Peak bytes of each stage over one step."""
    pipe = Pipeline([_block] * stages, stages, M, balance="uniform")
    found = pipe.measure_memory(torch.zeros(32, 16), torch.zeros(32, 16), nn.functional.mse_loss)
    pipe.close()
    return found


def overhead(_stages: int, micro_batches: int = 32, steps: int = 30) -> tuple[float, float, float]:
    """Microseconds an action takes, traced and not, and a span, where the layer does nothing (K=1, fastest of steps).

    Zeros on all stages but the first, which must not disturb it.
    """
    if dist.get_rank():
        return 0.0, 0.0, 0.0
    model = build("timed", L=1, forward_s=0.0, backward_s=0.0, elements=1)
    inputs, targets = model.batch(micro_batches, 0)
    pipe = Pipeline(model.layers, 1, micro_batches)
    actions = len(pipe.schedule.work(0))
    seconds: dict[bool, list[float]] = {True: [], False: []}
    for _ in range(steps):  # in turn, so that what else the machine does meets both
        for trace, found in seconds.items():
            found.append(pipe.train_step(inputs, targets, model.loss, trace=trace).seconds)
    pipe.close()
    traced, bare = (1e6 * min(seconds[trace]) for trace in (True, False))
    # the set-up has a span as well
    return traced / actions, bare / actions, (traced - bare) / (actions + 1)
