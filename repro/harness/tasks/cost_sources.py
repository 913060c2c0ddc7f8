"""Layer times for the cost model: from a device profile, a calibration, or layers that wait."""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import accumulate, pairwise
from typing import Any

from repro.costs import Counter, Device, LayerTime, Messages, Task, mini_batch, roofline
from repro.costs import device as devices
from repro.costs.stage_memory import micro_batch, peak_memory
from repro.gpipe.core.microbatch import sizes
from repro.gpipe.partition.layer_profile import LinkSpeed, Profile
from repro.gpipe.partition.partition import additive, smallest_largest
from repro.harness.spec import Link, RunSpec
from repro.harness.tasks.optimizers import OPTIMIZERS
from repro.io.redact import expanded
from repro.models import Model
from repro.models.timed import TimedLayer
from repro.simulate import FREE, Calibration, StageCosts, settle, simulate

# Causes of a step's time in the order in which they are added. Each has the terms of the roofline
# that count, whether the model's ends (embedding, softmax) count, and whether the link does.
CAUSES: dict[str, tuple[tuple[str, ...], bool, bool]] = {
    "imbalance": (("matmul",), False, False),
    "ends": (("matmul",), True, False),
    "memory-bound": (("matmul", "memory"), True, False),
    "launch": (roofline.TERMS, True, False),
    "transfer": (roofline.TERMS, True, True),
}
# Figures of a device that `sensitivity` scales, one at a time, by each of the factors.
FIGURES = (
    "matmul_flops",
    "other_flops",
    "bytes_per_second",
    "launch_s",
    "link_bytes_per_second",
    "link_latency_s",
)
FACTORS = {"halved": 0.5, "doubled": 2.0}
_last: Counter | None = None  # the last counter of this process, whose traces the next one uses
Times = tuple[Sequence[LayerTime], LayerTime]  # of layers, of the loss


def link_speed(link: Link | None) -> LinkSpeed | None:
    """The link of a spec in the library's type."""
    return LinkSpeed(link.latency, link.bytes_per_second, link.overlap) if link else None


class Source:
    """What a model's layers cost.

    Attributes:
        link: between two stages.
    """

    link: LinkSpeed

    def examples(self) -> int:
        """Examples in a micro-batch; 0 where not even one fits into the spec's memory."""
        raise NotImplementedError

    def layers(self, n: int) -> Profile:
        """Seconds of each layer for a micro-batch of n examples."""
        raise NotImplementedError

    def cut(self, layers: Profile, link: LinkSpeed) -> tuple[int, ...]:
        """Layers of each stage."""
        raise NotImplementedError

    def costs(self, n: int, counts: Sequence[int], link: LinkSpeed) -> StageCosts:
        """Costs of stages with these numbers of layers."""
        raise NotImplementedError

    def cumulative_causes(self, n: int) -> dict[str, float]:
        """Cause -> seconds of the step with it and all causes before it; empty if not known."""
        return {}

    def sensitivity(self, n: int) -> dict[str, dict[str, Any]]:
        """Figure of the device -> its basis, and seconds of the step under each of `FACTORS`."""
        return {}

    def peaks(self, n: int, counts: Sequence[int]) -> list[int] | None:
        """Counted bytes of each stage at its peak; None if not known."""
        return None


class Waits(Source):
    """Layers that wait for a time which they know."""

    def __init__(self, spec: RunSpec, model: Model) -> None:
        self._spec = spec
        made = [layer() for layer in model.layers if callable(layer)]
        self._layers = [layer for layer in made if isinstance(layer, TimedLayer)]
        self.link = link_speed(spec.link) or FREE

    def examples(self) -> int:
        """Examples in a micro-batch."""
        return sizes(self._spec.N, self._spec.M)[0]

    def layers(self, n: int) -> Profile:
        """Seconds of each layer, which do not depend on n, and bytes that it sends."""
        forward = tuple(layer.forward_s for layer in self._layers)
        sent = tuple(4 * layer.elements * n for layer in self._layers[:-1])
        backward = tuple(layer.backward_s for layer in self._layers)
        recompute = forward if self._spec.checkpoint != "never" else (0.0,) * len(forward)
        return Profile(forward, recompute, backward, sent, sent)

    def cut(self, layers: Profile, link: LinkSpeed) -> tuple[int, ...]:
        """Layers of each stage."""
        return _cut(self._spec, layers, link, [1] * len(layers.forward))

    def costs(self, n: int, counts: Sequence[int], link: LinkSpeed) -> StageCosts:
        """Costs of the stages."""
        updates = [vars(layer.weight)["update_s"] for layer in self._layers]
        return StageCosts.of(self.layers(n), counts, link, updates)


class _Counted(Source):
    """A model whose memory and parameters are counted."""

    def __init__(self, spec: RunSpec, model: Model, device: str) -> None:
        global _last
        optimizer = partial(OPTIMIZERS[spec.optimizer], lr=spec.lr)
        _last = self._counter = Counter(model.layers, model.loss, optimizer, _last, device)
        self._spec = spec
        self._few = model.batch(1, 0)

    def cut(self, layers: Profile, link: LinkSpeed) -> tuple[int, ...]:
        """Layers of each stage."""
        inputs = micro_batch(self._few[0], 1)
        costs = [
            self._counter.cost(index, inputs).parameters for index in range(len(self._counter))
        ]
        return _cut(self._spec, layers, link, costs)

    def peaks(self, n: int, counts: Sequence[int]) -> list[int]:
        """Counted bytes of each stage at its peak."""
        spec = self._spec
        schedule = spec.make_schedule()
        inputs, targets = (mini_batch(few, n * spec.M) for few in self._few)
        ends = [0, *accumulate(counts)]
        tasks = [
            Task(schedule, j, range(a, b), inputs, targets, Messages())
            for j, (a, b) in enumerate(pairwise(ends))
        ]
        return [peak_memory(self._counter, task).total for task in tasks]


class Calibrated(_Counted):
    """Layers with the times of a calibration."""

    def __init__(self, spec: RunSpec, model: Model, device: str, calibration: Calibration) -> None:
        super().__init__(spec, model, device)
        if spec.memory is not None:
            raise ValueError(
                f"memory = {spec.memory}: a calibration is cut to no memory; leave it out, or take "
                "a profile"
            )
        if len(calibration.update) != len(model.layers):
            raise ValueError(
                f"calibration: is of {len(calibration.update)} layers, {spec.model} has L = "
                f"{len(model.layers)} here; give the model and arguments that were calibrated"
            )
        self._calibration = calibration
        self.link = link_speed(spec.link) or calibration.link

    def examples(self) -> int:
        """Examples in a micro-batch."""
        return sizes(self._spec.N, self._spec.M)[0]

    def layers(self, n: int) -> Profile:
        """Seconds of each layer for a micro-batch of n examples while all processes compute."""
        checkpoint = self._spec.checkpoint
        # A stage of one layer costs what the layer does.
        stages = self._calibration.stages([1] * len(self._calibration.update), n, checkpoint)
        recompute = stages.recompute if checkpoint != "never" else (0.0,) * stages.stages
        return Profile(
            stages.forward,
            recompute,
            stages.backward,
            tuple(round(size) for size in stages.activations),
            tuple(round(size) for size in stages.gradients),
        )

    def costs(self, n: int, counts: Sequence[int], link: LinkSpeed) -> StageCosts:
        """Costs of the stages, each as fast as the stages that compute at the same time let it."""
        spec, calibration = self._spec, replace(self._calibration, link=link)
        schedule = spec.make_schedule()
        return settle(
            schedule, lambda together: calibration.stages(counts, n, spec.checkpoint, together)
        )


class Roofline(_Counted):
    """Layers with times from a device's profile: FLOPs and bytes over its rates."""

    def __init__(self, spec: RunSpec, model: Model, device: str) -> None:
        assert spec.profile is not None
        super().__init__(spec, model, device)
        self._device = devices.load(expanded(spec.profile))
        self.link = link_speed(spec.link) or self._device.link

    def examples(self) -> int:
        """Examples in a micro-batch: N / M or, with a memory, the most with which stages fit."""
        most = sizes(self._spec.N, self._spec.M)[0]
        if self._spec.memory is None:
            return most
        tries = _sizes(most)
        fitting = bisect_left(tries, True, key=lambda n: not self._fits(n))
        return tries[fitting - 1] if fitting else 0

    def _fits(self, n: int) -> bool:
        assert self._spec.memory is not None
        return max(self.peaks(n, self.cut(self.layers(n), self.link))) <= self._spec.memory

    def layers(self, n: int) -> Profile:
        """Seconds of each layer for a micro-batch of n examples."""
        return self._profile(self._times(n, self._device))

    def _times(self, n: int, device: Device) -> Times:
        """Times of the layers and of the loss."""
        inputs, targets = (micro_batch(few, n) for few in self._few)
        layers = roofline.layers(self._counter, inputs, device)
        return layers, roofline.head(self._counter, inputs, targets, device)

    def _profile(
        self, times: Times, terms: Sequence[str] = roofline.TERMS, *, ends: bool = True
    ) -> Profile:
        return roofline.profile(
            *times, terms=terms, ends=ends, recompute=self._spec.checkpoint != "never"
        )

    def costs(self, n: int, counts: Sequence[int], link: LinkSpeed) -> StageCosts:
        """Costs of the stages."""
        return self._costs(self._times(n, self._device), counts, link)

    def _costs(self, times: Times, counts: Sequence[int], link: LinkSpeed) -> StageCosts:
        return StageCosts.of(self._profile(times), counts, link, [time.update for time in times[0]])

    def cumulative_causes(self, n: int) -> dict[str, float]:
        """Cause -> seconds of the step with it and all before it, each with its best cut."""
        times = self._times(n, self._device)
        seconds = {}
        for cause, (terms, ends, linked) in CAUSES.items():
            layers = self._profile(times, terms, ends=ends)
            link = self.link if linked else FREE
            seconds[cause] = self._step(StageCosts.of(layers, self.cut(layers, link), link))
        return seconds

    def sensitivity(self, n: int) -> dict[str, dict[str, Any]]:
        """Figure -> its basis, and seconds of the step under each factor, with its best cut.

        A link that the spec gives is no figure of the device.
        """
        dependence: dict[str, dict[str, Any]] = {}
        for name in FIGURES:
            if self._spec.link is not None and name.startswith("link"):
                continue
            dependence[name] = {"basis": getattr(self._device, name).basis}
            for word, factor in FACTORS.items():
                scaled = self._device.with_scaled(name, factor)
                dependence[name][word] = self._step_on(n, scaled)
        return dependence

    def _step_on(self, n: int, device: Device) -> float:
        """Seconds of the step on another device."""
        times, link = self._times(n, device), link_speed(self._spec.link) or device.link
        return self._step(self._costs(times, self.cut(self._profile(times), link), link))

    def _step(self, costs: StageCosts) -> float:
        schedule = self._spec.make_schedule()
        return simulate(schedule, costs).step_time


def _sizes(most: int) -> list[int]:
    """Sizes of micro-batches to try for memory: 1, 2, 3, 4, 6, 8, 12, ... and the largest."""
    tries = {most}
    power = 1
    while power <= most:
        tries |= {power, min(most, power * 3 // 2)}
        power *= 2
    return sorted(tries)


def _cut(
    spec: RunSpec, layers: Profile, link: LinkSpeed, parameters: Sequence[int]
) -> tuple[int, ...]:
    """Layers of each stage, cut as `repro.gpipe.Pipeline` cuts with measured times."""
    L = len(layers.forward)
    spec.fit(L)
    if isinstance(spec.balance, tuple):
        return spec.balance
    costs = {
        "time": layers.cost(link),
        "parameters": additive(parameters),
        "uniform": additive([1] * L),
    }
    return tuple(smallest_largest(costs[spec.balance], L, spec.K))
