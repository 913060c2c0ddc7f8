"""`repro simulate`: a training step on other devices, for several K and M to choose from."""

import dataclasses
from itertools import product
from typing import TYPE_CHECKING, Any, Literal

from repro.cli.answers import same, tell
from repro.cli.options import MiniBatch, parse
from repro.cli.source import Chosen, SourceOptions, chosen
from repro.costs.error_bars import UNKNOWN, step_error
from repro.gpipe.schedule import collector
from repro.harness.progress import LEGEND, gantt
from repro.harness.sizes import DEFAULT_N
from repro.harness.spec import PLAIN, Checkpoint, Partitioner, ScheduleName, sweep
from repro.harness.text import size

if TYPE_CHECKING:
    from repro.harness.predict import Prediction

_SHOWN = ("K", "M", "step_s", "step_low_s", "step_high_s", "throughput", "speedup_vs_plain")
_SHOWN += ("speedup_vs_k1", "idle_over_total", "peak_bytes", "peak_bytes_k1", "fits")
_MOST_DRAWN = 16  # ranks of a step that is drawn
_NO_ADVICE = (
    "no K and M is recommended: these layers take the same time for a micro-batch of one example "
    "as for one of all N, so each further micro-batch only makes the step longer"
)
_OF_SPEC = ("D", "tensor_parallel", "schedule", "stages_per_rank", "checkpoint", "balance")
_OF_SPEC += ("partitioner", "optimizer")


@dataclasses.dataclass(frozen=True, kw_only=True)
class SimulateOptions(SourceOptions):
    """Simulate a training step on K devices, for several K and M.

    Layer times come from a device's profile or from `repro calibrate MODEL`; the layers of the
    model timed have fixed ones. The last line names the fastest K and M that fit into the device's
    memory.
    """

    K: tuple[int, ...] = (4,)
    """numbers of devices, which hold one stage each, or --stages-per-rank of them"""
    M: tuple[int, ...] = (1, 4, 32)
    """numbers of micro-batches"""
    N: MiniBatch = DEFAULT_N
    """mini-batch"""
    D: int = 1
    """replicas of the pipeline, which split the mini-batch and sum their gradients"""
    tensor_parallel: int | None = None
    """T devices for each stage, which have parts of its matrices as in Megatron-LM"""
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


@collector.paused()
def main(arguments: list[str]) -> int:
    options = parse(SimulateOptions, arguments, "repro simulate")
    if not options.K or not options.M:
        raise ValueError("--K, --M: allowed is one number or more; try --K 2 4 --M 1 4")
    from repro.gpipe.core.layers import refuse_shared
    from repro.harness.predict import predict

    of = chosen(options, options.tensor_parallel or 1)
    steps = _simulate(options, of)
    whole = of if options.tensor_parallel is None else chosen(options)
    plain = predict(steps[1, options.M[0]].spec.model_copy(update=PLAIN), whole.source)
    error = step_error(of.source.durations)
    points = []
    for K, M in dict.fromkeys(product(options.K, options.M)):
        step, base = steps[K, M], steps[1, M]
        refuse_shared(of.model.layers, step.counts)
        low, high = error.ends(step.step_s) if error else (None, None)
        point = {
            "K": K,
            "M": M,
            "step_s": step.step_s,
            "step_low_s": low,
            "step_high_s": high,
            "throughput": options.N / step.step_s,
            "unit": of.model.unit,
            "speedup_vs_plain": plain.step_s / step.step_s,
            "speedup_vs_k1": base.step_s / step.step_s,
            "idle_over_total": step.idle_over_total,
            "breakdown": {cause: part / step.step_s for cause, part in step.parts.items()},
            "peak_bytes": step.peaks,
            "peak_bytes_k1": base.peaks,
            "fits": _fits(step.peaks, of.memory),
            "balance": step.counts,
        }
        points.append(point)
    sizes = {1: options.N} | {M: options.N // options.D // M for M in options.M}
    of.warn(options.K, sizes, options.optimizer)
    best = points[0] if of.waits else _best(points)
    fields = {
        "fidelity": "simulated",
        "model": of.model.name,
        **same(of, "model_args", "on", "memory"),
        **same(options, "K", "N", *_OF_SPEC),
        "plain": {
            "step_s": plain.step_s,
            "peak_bytes": plain.peaks,
            "fits": _fits(plain.peaks, of.memory),
        },
        "points": points,
    }
    advice = {"advice": _NO_ADVICE if of.waits else _advice(fields, best)}
    drawn = steps[best["K"], best["M"]]
    terminal = fields | _for_terminal(of, points, drawn) | advice
    tell(terminal, fields | advice, as_json=options.json)
    return 0


def _simulate(options: SimulateOptions, of: Chosen) -> dict[tuple[int, int], "Prediction"]:
    """The step of every K and M, and of one stage; all are checked before the first."""
    from repro.harness.predict import predict

    specs = sweep(
        model=of.model.name,
        model_args=of.model_args,
        N=options.N,
        fidelity="simulated",
        profile=of.profile,
        link=options.link_speed,
        **same(options, *_OF_SPEC),
        K=[*dict.fromkeys((1, *options.K))],
        M=[*dict.fromkeys(options.M)],
    )
    for spec in specs:
        spec.check_depth(len(of.model.layers))
    return {(spec.K, spec.M): predict(spec, of.source) for spec in specs}


def _for_terminal(of: Chosen, points: list[dict[str, Any]], drawn: "Prediction") -> dict[str, Any]:
    timeline = drawn.timeline
    assumed = "I and W take half of a backward each, assumed: layers are timed with whole ones"
    times = [{name: point[name] for name in _SHOWN} for point in points]
    spec = drawn.spec
    error = step_error(of.source.durations)
    shares = [{"K": point["K"], "M": point["M"], **point["breakdown"]} for point in points]
    until = ", before the all-reduce" if spec.D > 1 else ""
    title = f"the step at K={spec.K}, M={spec.M}{until}: {LEGEND}"
    picture = {title: gantt(timeline, 72)} if timeline.ranks <= _MOST_DRAWN else {}
    return {
        "model": of.title,
        "model_args": None,
        "K": None,
        "memory": of.memory and size(of.memory),
        "assumed": assumed if timeline.busy(kinds="IW") else None,
        "throughput": f"in {of.model.unit}",
        "plain": "K=1, M=1 without recomputation; the speedup over K=1 is at the same M",
        "points": times,
        "step low, high": None if of.waits else str(error or UNKNOWN),
        "shares of K x step; from bubble on, stages are idle (below 0: docs/cli.md)": shares,
        **picture,
    }


def _fits(peaks: list[int] | None, memory: int | None) -> bool:
    return peaks is None or memory is None or max(peaks) <= memory


def _best(points: list[dict[str, Any]]) -> dict[str, Any]:
    fitting = [point for point in points if point["fits"]]
    if not fitting:
        return min(points, key=lambda point: max(point["peak_bytes"]))
    return min(fitting, key=lambda point: (point["step_s"], point["K"]))


def _advice(fields: dict[str, Any], best: dict[str, Any]) -> str:
    points, memory = fields["points"], fields["memory"]
    base = "" if fields["plain"]["fits"] else ", which would not fit"
    at = f"K={best['K']}, M={best['M']}"
    peak = f"{size(max(best['peak_bytes']))} on its fullest stage"
    device = size(memory) if memory else "unknown memory"
    if not best["fits"]:
        return (
            f"none of these fits into the device's {device}: the leanest, {at}, takes {peak}; try "
            "a larger K or M, or a smaller N"
        )
    fastest = "fastest" if all(point["fits"] for point in points) else "fastest that fits"
    slower = "; plain training is faster" if best["speedup_vs_plain"] < 1 and not base else ""
    return (
        f"{fastest}: {at}, {best['throughput']:,.1f} {best['unit']}, "
        f"{best['speedup_vs_plain']:.2f}x over plain training{base}; it takes {peak}, of "
        f"{device}{slower}"
    )
