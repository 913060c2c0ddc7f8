"""`repro simulate`: a training step on other devices, for several K and M to choose from."""

import dataclasses
from typing import TYPE_CHECKING, Any, Literal

from repro.cli.answers import rows, same, tell
from repro.cli.options import parse_named
from repro.cli.source import Chosen, SourceOptions, chosen
from repro.gpipe.schedule import collector
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
    steps, points = _simulate(options, of)
    of.warn(options.K, {M: options.N // M for M in options.M}, options.optimizer)
    fields = {
        "fidelity": "simulated",
        "model": of.model.name,
        **same(of, "model_args", "on", "memory"),
        **same(options, "K", "N", *_OF_SPEC),
        "points": points,
    }
    tell(fields, lambda: _parts(options, of, steps, points), as_json=options.json)
    return 0


@collector.paused()
def _simulate(
    options: SimulateOptions, of: Chosen
) -> tuple[list["Prediction"], list[dict[str, Any]]]:
    """A step of every K and M, and what is told of it; all are checked before the first."""
    from repro.harness.predict import predict

    one_stage = {
        M: RunSpec(
            model=of.model.name,
            model_args=of.model_args,
            K=1,
            M=M,
            N=options.N,
            fidelity="simulated",
            profile=of.profile,
            link=options.link_speed,
            **same(options, *_OF_SPEC),
        )
        for M in dict.fromkeys(options.M)
    }
    Ks = dict.fromkeys(options.K)
    specs = [RunSpec(**{**dict(one_stage[M]), "K": K}) for K in Ks for M in one_stage]
    for spec in specs:
        spec.check_depth(len(of.model.layers))
    source = of.source(options.optimizer, options.link_speed)
    bases = {M: predict(spec, source) for M, spec in one_stage.items()}
    steps: list[Prediction] = []
    points: list[dict[str, Any]] = []
    for spec in specs:
        base = bases[spec.M]
        step = base if spec.K == 1 else predict(spec, source)
        steps.append(step)
        points.append(
            {
                **same(spec, "K", "M"),
                "step_s": step.step_s,
                "throughput": spec.N / step.step_s,
                "unit": of.model.unit,
                "speedup_vs_k1": base.step_s / step.step_s,
                "bubble_idle_over_total": step.timeline.bubble_over_total,
                "breakdown": step.shares,
                "peak_bytes": step.peaks,
                "peak_bytes_k1": base.peaks,
                "balance": step.counts,
                "speedup_vs_first": steps[0].step_s / step.step_s,
            }
        )
    return steps, points


def _parts(
    options: SimulateOptions, of: Chosen, steps: list["Prediction"], points: list[dict[str, Any]]
) -> list["RenderableType"]:
    """Times, shares of the step, one step drawn, and advice."""
    first = points[0]
    best = first if of.waits else _best(points, of.memory)
    drawn = steps[points.index(best)].timeline
    link = f", link {options.link_gbps:g} Gbit/s" if options.link_gbps else ""
    per_rank = options.stages_per_rank
    held = f" with {per_rank} stages a device" if per_rank else ""
    head = (
        f"simulated: {of.title} on {of.on}{link}\nN={options.N}, schedule "
        f"{options.schedule}{held}, recompute {options.checkpoint}, cut by {options.balance} "
        f"({options.partitioner or 'smallest-largest'}), optimizer {options.optimizer}\n"
    )
    if drawn.busy(kinds="IW"):
        head += "I and W take half of a backward each, assumed: layers are timed with whole ones\n"

    def peak(peaks: list[int] | None) -> str:
        mark = "" if _fits(peaks, of.memory) else "!"
        return f"{size(max(peaks))}{mark}" if peaks else "-"

    names = {name: lambda point, name=name: point[name] for name in ("K", "M")}
    times = {
        "step (ms)": lambda point: f"{1e3 * point['step_s']:,.2f}",
        first["unit"]: lambda point: f"{point['throughput']:,.1f}",
        "over K=1": lambda point: f"{point['speedup_vs_k1']:.2f}x",
        f"over K={first['K']}, M={first['M']}": lambda p: f"{p['speedup_vs_first']:.2f}x",
        "idle": lambda point: f"{point['bubble_idle_over_total']:.1%}",
        "peak": lambda point: peak(point["peak_bytes"]),
        "K=1 peak": lambda point: peak(point["peak_bytes_k1"]),
    }
    shares = {
        kind: lambda point, kind=kind: f"{point['breakdown'][kind]:.1%}"
        for kind in first["breakdown"]
        if any(abs(point["breakdown"][kind]) > _SMALL for point in points)
    }
    parts: list[RenderableType] = [
        head,
        rows(points, names | times),
        "over K=1: the step of one stage at the same M and N, with unlimited memory, over "
        "this one; idle: share of K x step",
        "peak: tensors of the fullest stage, counted"
        + (f"; ! is more than the device's {size(of.memory)}" if of.memory else ""),
        "\nshares of K x step, simulated; idle is bubble (which equal stages would have as "
        "well), imbalance and transfer",
        rows(points, names | shares),
    ]
    if any(point["breakdown"]["imbalance"] < -_SMALL for point in points):
        parts.append("imbalance below 0: there the unequal cut shortens the wait")
    if drawn.ranks <= _MOST_DRAWN:
        from repro.harness.progress import gantt, legend

        title = f"\nthe step at K={best['K']}, M={best['M']}: {legend(drawn)}"
        parts += [title, gantt(drawn, 72)]
    return [*parts, f"\n{_NO_ADVICE if of.waits else _advice(points, of.memory)}"]


def _fits(peaks: list[int] | None, memory: int | None) -> bool:
    return peaks is None or memory is None or max(peaks) <= memory


def _best(points: list[dict[str, Any]], memory: int | None) -> dict[str, Any]:
    """The fastest point that fits, or the one with the smallest peak if none fits."""
    fitting = [point for point in points if _fits(point["peak_bytes"], memory)]
    if not fitting:
        return min(points, key=lambda point: max(point["peak_bytes"]))
    return min(fitting, key=lambda point: (point["step_s"], point["K"]))


def _advice(points: list[dict[str, Any]], memory: int | None) -> str:
    """One line about the best point."""
    best = _best(points, memory)
    at, peak = f"K={best['K']}, M={best['M']}", size(max(best["peak_bytes"] or [0]))
    if memory is not None and not _fits(best["peak_bytes"], memory):
        return (
            f"none of these fits into the device's {size(memory)}: the leanest, {at}, takes "
            f"{peak} on its fullest stage; try a larger K or M, or a smaller N"
        )
    all_fit = all(_fits(point["peak_bytes"], memory) for point in points)
    device = f"the device has {size(memory)}" if memory else "the device's memory is not known"
    base = "" if _fits(best["peak_bytes_k1"], memory) else ", which would not fit"
    return (
        f"{'fastest' if all_fit else 'fastest that fits'}: {at}, {best['throughput']:,.1f} "
        f"{best['unit']}, {best['speedup_vs_k1']:.2f}x over K=1 at the same M and N{base}; peak "
        f"{peak} on the fullest stage ({device})"
    )
