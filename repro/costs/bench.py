"""What one process attains here while the others do the same: micro-benchmarks of the terms of `repro.costs.roofline`.

Every case runs on all processes at once, since they share caches, memory bandwidth and power; each
counts the calls that it gets done in a window of time, and the median call is what it reports.
"""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch.nn import functional

from repro.gpipe.comm.control_channel import Wire
from repro.gpipe.comm.links import Links
from repro.gpipe.partition.layer_profile import LinkSpeed

WINDOW = 0.15  # seconds for each case
_TINY = 200  # launches that are timed together: one takes a microsecond or two
_ELEMENT = 4  # bytes of a float32


@dataclass(frozen=True)
class Rates:
    """What one process attained.

    Attributes:
        matmul: case -> operations per second, a multiply-add being two.
        other: case -> elements written per second.
        bytes_per_second: read and written, by an addition of buffers that no cache holds.
        launch_s: seconds of an operator that has next to nothing to do.
        link: to the stage after; free on the last.
    """

    matmul: dict[str, float]
    other: dict[str, float]
    bytes_per_second: float
    launch_s: float
    link: LinkSpeed

    @property
    def matmul_flops(self) -> float:
        """The median case."""
        return statistics.median(self.matmul.values())

    @property
    def other_flops(self) -> float:
        """The median case."""
        return statistics.median(self.other.values())


def run(kind: str, window: float = WINDOW) -> Rates:
    """Measure; every process of a default group calls it.

    Args:
        kind: "cpu" or "cuda"; processes take the GPUs in turn.
        window: seconds for each case.
    """
    wire = Wire(dist.get_world_size(), dist.get_rank())
    device = (
        torch.device("cuda", wire.rank % torch.cuda.device_count())
        if kind == "cuda"
        else torch.device("cpu")
    )
    with torch.no_grad():
        bench = _Bench(wire, device, window)
        found = bench.matmul(), bench.other(), bench.bandwidth(), bench.launch()
    links = Links(wire, device, "auto")
    speed = links.speed()
    links.close()
    return Rates(*found, speed)


class _Bench:
    def __init__(self, wire: Wire, device: torch.device, window: float) -> None:
        self._wire, self._device, self._window = wire, device, window
        self._large = device.type == "cuda"

    def matmul(self) -> dict[str, float]:
        """A matrix, and the convolutions of AmoebaNet's cells: dense 3x3, and 1x1 that brings states to one width."""
        n, batch = (4096, 256) if self._large else (768, 8)
        found = {}
        a, b = self._random(n, n), self._random(n, n)
        found[f"{n}x{n} matrices"] = 2 * n**3 / self._seconds(lambda: torch.mm(a, b))
        for channels, filters, kernel, side in (
            (64, 64, 3, 32),
            (128, 128, 3, 16),
            (256, 64, 1, 32),
            (512, 128, 1, 16),
        ):
            x, weight = (
                self._random(batch, channels, side, side),
                self._random(filters, channels, kernel, kernel),
            )
            work = 2 * batch * side**2 * channels * filters * kernel**2
            seconds = self._seconds(
                lambda x=x, w=weight, k=kernel: functional.conv2d(x, w, padding=k // 2)
            )
            found[f"{kernel}x{kernel} conv, {channels} to {filters}"] = work / seconds
        return found

    def other(self) -> dict[str, float]:
        """Operators that multiply no matrices, on what a layer would give them."""
        x = self._random(64 if self._large else 4, 64, 32, 32)
        mean, variance = torch.zeros(64, device=self._device), torch.ones(64, device=self._device)
        cases: dict[str, Callable[[], Any]] = {
            "relu": lambda: torch.relu(x),
            "addition": lambda: x + x,
            "softmax": lambda: torch.softmax(x, -1),
            "batch norm": lambda: functional.batch_norm(x, mean, variance, training=True),
            "3x3 average pool": lambda: functional.avg_pool2d(x, 3, stride=1, padding=1),
        }
        return {name: x.numel() / self._seconds(call, calls=4) for name, call in cases.items()}

    def bandwidth(self) -> float:
        """Bytes per second of c = a + b."""
        count = (2**28 if self._large else 2**26) // _ELEMENT
        a, b, c = (torch.zeros(count, device=self._device) for _ in range(3))
        return 3 * _ELEMENT * count / self._seconds(lambda: torch.add(a, b, out=c))

    def launch(self) -> float:
        """Seconds."""
        x = torch.zeros(1, device=self._device)
        return self._seconds(lambda: x + x, calls=_TINY)

    def _random(self, *shape: int) -> torch.Tensor:
        return torch.randn(shape, device=self._device)

    def _seconds(self, call: Callable[[], Any], calls: int = 1) -> float:
        """Of one call: the median over a window of time that begins when the others are ready."""
        call()
        self._synchronise()
        self._wire.all_gather(None)
        took: list[float] = []
        end = time.perf_counter() + self._window
        while len(took) < 3 or time.perf_counter() < end:
            start = time.perf_counter()
            for _ in range(calls):
                call()
            self._synchronise()
            took.append((time.perf_counter() - start) / calls)
        return statistics.median(took)

    def _synchronise(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
