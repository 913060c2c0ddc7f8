"""Micro-benchmarks of this machine's rates, for the cost model of `repro.costs.roofline`.

Every case runs on all processes at once, since they share caches, memory bandwidth and power. Each
process repeats the case for a window of time and reports the median call.
"""

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional

from repro.costs.device import Device
from repro.gpipe.comm.control_channel import ControlChannel
from repro.gpipe.comm.links import Links
from repro.gpipe.partition.layer_costs import LinkSpeed

WINDOW = 0.15  # seconds for each case
_TINY = 200  # operators that are launched one after the other, each way
_ELEMENT = 4  # bytes of a float32
_NO_NEIGHBOUR = LinkSpeed(bytes_per_second=1e15)  # the fastest link that a profile may have


@dataclass(frozen=True)
class Rates:
    """Rates that one process attained."""

    matmul: dict[str, float]  # case -> FLOP/s; a multiply-add counts as two
    other: dict[str, float]  # case -> elements written per second
    bytes_per_second: float  # read and written
    launch_s: float  # seconds of an operator on one element
    link: LinkSpeed  # to stage j+1; free on the last stage

    @property
    def matmul_flops(self) -> float:
        return statistics.median(self.matmul.values())

    @property
    def other_flops(self) -> float:
        return statistics.median(self.other.values())


def measure(kind: str, window: float = WINDOW, stages: int | None = None) -> Rates:
    """Measure a "cpu" or "cuda" device; the first K processes of the default group call it."""
    wire = ControlChannel(stages or dist.get_world_size(), dist.get_rank())
    device = torch.device("cpu")
    if kind == "cuda":
        device = torch.device("cuda", wire.rank % torch.cuda.device_count())
    bench = _Bench(wire, device, window)
    with torch.no_grad():
        matmul, other = bench.matmul(), bench.other()
        bandwidth, launch_s = bench.bandwidth(), bench.launch()
    links = Links(wire, device, "auto")
    link = links.speed()
    links.close()
    return Rates(matmul, other, bandwidth, launch_s, link)


def profile(rates: Sequence[Rates], name: str, title: str, source: str, memory: int) -> Device:
    """The rates of all processes as one device: their means, and the slowest link.

    The source is what measured them, such as "`repro calibrate` on K=2 processes at once".
    """
    links = [rate.link for rate in rates[:-1]] or [_NO_NEIGHBOUR]
    cases = (
        f"matmul: median of {', '.join(rates[0].matmul)}; other: median of "
        f"{', '.join(rates[0].other)}"
    )
    measured = ("matmul_flops", "other_flops", "bytes_per_second", "launch_s")
    return Device.measured(
        f"measured by {source}; {cases}",
        max(links, key=lambda link: link.seconds(2**20)),
        name=name,
        title=title,
        precision="float32",
        date=date.today().isoformat(),
        memory=memory,
        **{each: statistics.fmean(getattr(rate, each) for rate in rates) for each in measured},
    )


class _Bench:
    def __init__(self, wire: ControlChannel, device: torch.device, window: float) -> None:
        self._wire, self._device, self._window = wire, device, window
        self._large = device.type == "cuda"

    def matmul(self) -> dict[str, float]:
        """FLOP/s of a matrix product and of convolutions as in AmoebaNet's cells: 3x3 and 1x1."""
        n, batch = (4096, 256) if self._large else (768, 8)
        a, b = self._random(n, n), self._random(n, n)
        rates = {f"{n}x{n} matrices": 2 * n**3 / self._seconds(lambda: torch.mm(a, b))}
        for channels, filters, kernel, side in (
            (64, 64, 3, 32),
            (128, 128, 3, 16),
            (256, 64, 1, 32),
            (512, 128, 1, 16),
        ):
            x = self._random(batch, channels, side, side)
            weight = self._random(filters, channels, kernel, kernel)
            work = 2 * batch * side**2 * channels * filters * kernel**2
            seconds = self._seconds(partial(functional.conv2d, x, weight, padding=kernel // 2))
            rates[f"{kernel}x{kernel} conv, {channels} to {filters}"] = work / seconds
        return rates

    def other(self) -> dict[str, float]:
        """Elements per second of operators without matrix products, at sizes as in a layer."""
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
        count = (2**28 if self._large else 2**26) // _ELEMENT
        a, b, c = (torch.zeros(count, device=self._device) for _ in range(3))
        return 3 * _ELEMENT * count / self._seconds(lambda: torch.add(a, b, out=c))

    def launch(self) -> float:
        """Seconds of an operator on one element, as training launches it.

        That is half by a module that builds a graph, and half by a backward through the graph.
        """
        chain = nn.Sequential(*[nn.ReLU() for _ in range(_TINY)])
        x = torch.ones(1, device=self._device, requires_grad=True)

        def forward_and_backward() -> None:
            with torch.enable_grad():
                chain(x).backward()

        return self._seconds(forward_and_backward) / (2 * _TINY)

    def _random(self, *shape: int) -> torch.Tensor:
        return torch.randn(shape, device=self._device)

    def _seconds(self, call: Callable[[], Any], calls: int = 1) -> float:
        """Median seconds of a call, over a window of time that begins when all are ready."""
        call()
        self._synchronise()
        self._wire.all_gather(None)
        times: list[float] = []
        end = time.perf_counter() + self._window
        while len(times) < 3 or time.perf_counter() < end:
            start = time.perf_counter()
            for _ in range(calls):
                call()
            self._synchronise()
            times.append((time.perf_counter() - start) / calls)
        return statistics.median(times)

    def _synchronise(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
