"""`repro simulate`: a training step on other devices, for several K and M to choose from."""

import dataclasses
from dataclasses import field
from typing import TYPE_CHECKING, Any, Literal

from repro.cli.answers import rows, same, tell
from repro.cli.options import parse_named
from repro.cli.source import Chosen, SourceOptions, chosen
from repro.gpipe.schedule.timeline import Timeline
from repro.harness.spec import Checkpoint, Partitioner, RunSpec, ScheduleName
from repro.harness.text import size

if TYPE_CHECKING:
    from rich.console import RenderableType

    from repro.harness.predict import Prediction

_MOST_DRAWN = 16  # ranks of a step that is drawn
_NO_ADVICE = (
    "no K and M is recommended: these layers take the same time for a micro-batch of one example "
    "as for one of all N, so each further micro-batch only makes the step longer"
)
_OF_SPEC = ("schedule", "stages_per_rank", "checkpoint", "balance", "partitioner", "optimizer")
_SMALL = 5e-4  # a share of the step that would be printed as 0.0 %


@dataclasses.dataclass(frozen=True, kw_only=True)
class SimulateOptions(SourceOptions):
    """Simulate a training step on K devices, for several K and M.

    [MODEL] is transformer, amoebanet-d, timm:NAME, or a function of your own,
    import:package.module:function, which is code and is run. Layer times come from a device's
    profile or from `repro calibrate MODEL`; the layers of the model timed have fixed ones. The last
    line names the fastest K and M that fit into the device's memory.
    """

    K: tuple[int, ...] = (4,)
    """numbers of devices, which hold one stage each, or --stages-per-rank of them"""
    M: tuple[int, ...] = (1, 4, 32)
    """numbers of micro-batches"""
    N: int = 128
    """mini-batch"""
    checkpoint: Checkpoint = "always"
    """which micro-batches are recomputed"""
    schedule: ScheduleName = "gpipe"
    """order of forwards and backwards"""
    stages_per_rank: int | None = None
    """stages of each device; at least 2 for the schedule interleaved-1f1b, otherwise left out"""
    balance: Literal["time", "flops", "parameters", "uniform"] = "time"
    """what stages are cut by"""
    partitioner: Partitioner | None = None
    """rule of the cut: the paper's or Lingvo's; by default the smallest largest stage"""


def main(arguments: list[str]) -> int:
    hint = "try `repro simulate transformer --device v100`"
    options = parse_named(SimulateOptions, arguments, "simulate", "model", hint, needed=False)
    for name, values in (("K", options.K), ("M", options.M)):
        if not values:
            raise ValueError(f"--{name}: allowed is one number or more; try --{name} 1 4")
    of = chosen(options)
    answer = _answer(options, of)
    of.warn(options.K, {M: options.N // M for M in options.M}, options.optimizer)
    tell(answer.fields, answer.parts, as_json=options.json)
    return 0


@dataclasses.dataclass(frozen=True)
class Point:
    """The simulated step of one K and M, with its ratios to K=1 and to the first point."""

    K: int
    M: int
    step_s: float
    throughput: float
    unit: str
    speedup_vs_k1: float
    bubble_idle_over_total: float
    breakdown: dict[str, float]
    peak_bytes: list[int] | None
    peak_bytes_k1: list[int] | None
    balance: tuple[int, ...]
    speedup_vs_first: float
    timeline: Timeline = field(repr=False)

    @property
    def fullest(self) -> int:
        return max(self.peak_bytes or (0,))


def _answer(options: SimulateOptions, of: Chosen) -> "Answer":
    """Simulate every K and M; all are checked before the first is simulated."""
    from repro.harness.predict import predict

    link = options.link_speed

    def spec(K: int, M: int) -> RunSpec:
        return RunSpec(
            model=of.model.name,
            model_args=of.model_args,
            K=K,
            M=M,
            N=options.N,
            fidelity="simulated",
            profile=of.profile,
            link=link,
            **same(options, *_OF_SPEC),
        )

    Ms = list(dict.fromkeys(options.M))
    specs = [spec(K, M) for K in dict.fromkeys(options.K) for M in Ms]
    for each in specs:
        each.check_depth(len(of.model.layers))
    source = of.source(options.optimizer, link)
    one_stage = {M: predict(spec(1, M), source) for M in Ms}
    points: list[Point] = []
    for each in specs:
        step = one_stage[each.M] if each.K == 1 else predict(each, source)
        first_s = points[0].step_s if points else step.step_s
        points.append(_point(step, one_stage[each.M], first_s, of.model.unit))
    return Answer(options, of, points)


def _point(step: "Prediction", one_stage: "Prediction", first_s: float, unit: str) -> Point:
    return Point(
        K=step.spec.K,
        M=step.spec.M,
        step_s=step.step_s,
        throughput=step.spec.N / step.step_s,
        unit=unit,
        speedup_vs_k1=one_stage.step_s / step.step_s,
        bubble_idle_over_total=step.timeline.bubble_over_total,
        breakdown=step.shares,
        peak_bytes=step.peaks,
        peak_bytes_k1=one_stage.peaks,
        balance=step.counts,
        speedup_vs_first=first_s / step.step_s,
        timeline=step.timeline,
    )


@dataclasses.dataclass(frozen=True)
class Answer:
    options: SimulateOptions
    chosen: Chosen
    points: list[Point]

    @property
    def fields(self) -> dict[str, Any]:
        """What `--json` prints."""
        return {
            "fidelity": "simulated",
            "model": self.chosen.model.name,
            **same(self.chosen, "model_args", "on", "memory"),
            **same(self.options, "K", "N", *_OF_SPEC),
            "points": self.points,
        }

    @property
    def memory(self) -> int | None:
        return self.chosen.memory

    def parts(self) -> list["RenderableType"]:
        """Times, shares of the step, one step drawn, and advice."""
        drawn = self.points[0] if self.chosen.waits else self.best
        kinds = [
            kind
            for kind in self.points[0].breakdown
            if any(abs(point.breakdown[kind]) > _SMALL for point in self.points)
        ]
        shares = {"K": lambda point: point.K, "M": lambda point: point.M} | {
            kind: lambda point, kind=kind: f"{point.breakdown[kind]:.1%}" for kind in kinds
        }
        parts = [
            self._head(drawn.timeline),
            self._steps(),
            "over K=1: the step of one stage at the same M and N, with unlimited memory, over "
            "this one; idle: share of K x step",
            "peak: tensors of the fullest stage, counted"
            + (f"; ! is more than the device's {size(self.memory)}" if self.memory else ""),
            "\nshares of K x step, simulated; idle is bubble (which equal stages would have as "
            "well), imbalance and transfer",
            rows(self.points, shares),
        ]
        if any(point.breakdown["imbalance"] < -_SMALL for point in self.points):
            parts.append("imbalance below 0: there the unequal cut shortens the wait")
        if drawn.timeline.ranks <= _MOST_DRAWN:
            from repro.harness.progress import gantt, legend

            title = f"\nthe step at K={drawn.K}, M={drawn.M}: {legend(drawn.timeline)}"
            parts += [title, gantt(drawn.timeline, 72)]
        return [*parts, f"\n{_NO_ADVICE if self.chosen.waits else self._advice()}"]

    def _head(self, drawn: Timeline) -> str:
        options, per_rank = self.options, self.options.stages_per_rank
        link = f", link {options.link_gbps:g} Gbit/s" if options.link_gbps else ""
        held = f" with {per_rank} stages a device" if per_rank else ""
        head = (
            f"simulated: {self.chosen.title} on {self.chosen.on}{link}\nN={options.N}, schedule "
            f"{options.schedule}{held}, recompute {options.checkpoint}, cut by {options.balance} "
            f"({options.partitioner or 'smallest-largest'}), optimizer {options.optimizer}\n"
        )
        if drawn.busy(kinds="IW"):
            head += (
                "I and W take half of a backward each, assumed: layers are timed with whole ones\n"
            )
        return head

    def _steps(self) -> "RenderableType":
        first = self.points[0]
        return rows(
            self.points,
            {
                "K": lambda point: point.K,
                "M": lambda point: point.M,
                "step (ms)": lambda point: f"{1e3 * point.step_s:,.2f}",
                first.unit: lambda point: f"{point.throughput:,.1f}",
                "over K=1": lambda point: f"{point.speedup_vs_k1:.2f}x",
                f"over K={first.K}, M={first.M}": lambda point: f"{point.speedup_vs_first:.2f}x",
                "idle": lambda point: f"{point.bubble_idle_over_total:.1%}",
                "peak": lambda point: self._peak(point.peak_bytes),
                "K=1 peak": lambda point: self._peak(point.peak_bytes_k1),
            },
        )

    def _peak(self, peaks: list[int] | None) -> str:
        if not peaks:
            return "-"
        return f"{size(max(peaks))}{'' if self._fits(peaks) else '!'}"

    def _fits(self, peaks: list[int] | None) -> bool:
        return peaks is None or self.memory is None or max(peaks) <= self.memory

    @property
    def best(self) -> Point:
        """The fastest point that fits, or the one with the smallest peak if none fits."""
        fitting = [point for point in self.points if self._fits(point.peak_bytes)]
        if not fitting:
            return min(self.points, key=lambda point: point.fullest)
        return min(fitting, key=lambda point: (point.step_s, point.K))

    def _advice(self) -> str:
        """One line about the best point."""
        best = self.best
        if self.memory is not None and not self._fits(best.peak_bytes):
            return (
                f"none of these fits into the device's {size(self.memory)}: the leanest, "
                f"K={best.K}, M={best.M}, takes {size(best.fullest)} on its fullest stage; try a "
                "larger K or M, or a smaller N"
            )
        all_fit = all(self._fits(point.peak_bytes) for point in self.points)
        device = "the device's memory is not known"
        if self.memory is not None:
            device = f"the device has {size(self.memory)}"
        base = "" if self._fits(best.peak_bytes_k1) else ", which would not fit"
        return (
            f"{'fastest' if all_fit else 'fastest that fits'}: K={best.K}, M={best.M}, "
            f"{best.throughput:,.1f} {best.unit}, {best.speedup_vs_k1:.2f}x over K=1 at the same M "
            f"and N{base}; peak {size(best.fullest)} on the fullest stage ({device})"
        )
