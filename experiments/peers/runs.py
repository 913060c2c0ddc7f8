"""Our pipeline beside other libraries that train with the same schedule."""

from collections.abc import Iterator
from typing import Any, NamedTuple

from repro.harness.about import read_about
from repro.harness.sizes import AMOEBANET, TRANSFORMER, controls_at, in_blocks, sets
from repro.harness.spec import ON_CPU, Experiment, Group, RunSpec, Scale, ScheduleName, sweep

NAME = "peers"
ABOUT = read_about(__file__)


class Sizes(NamedTuple):
    amoebanet: dict[str, Any]
    transformer: dict[str, Any]
    N: int
    Ms: tuple[int, ...]  # 1F1B has K or more
    # Stages of known duration: seconds of F (B takes twice as long), K, and M with N = M.
    known: tuple[float, int, tuple[int, ...]]


_A, _T = AMOEBANET, TRANSFORMER
# Steps are short, so that those of a block are disturbed alike.
_SHORT: dict[str, Any] = {**_T["laptop"], "L": 6, "T": 16}
SIZES: dict[Scale, Sizes] = {
    "smoke": Sizes(_A["smoke"], _T["smoke"], 8, (4,), (0.002, 2, (4,))),
    # M from one to many; node has those between.
    "laptop": Sizes(_A["smoke"], _SHORT, 32, (1, 32), (0.01, 8, (4,))),
    "node": Sizes(_A["node"], _T["node"], 128, (1, 4, 32), (0.01, 8, (4, 32))),
}
SIZES["paper"] = SIZES["node"]
# Schedule of ours -> the peers that have it.
PEERS: dict[ScheduleName, list[str]] = {
    "gpipe": ["torch"],
    "1f1b": ["torch-1f1b", "deepspeed"],
    "interleaved-1f1b": ["torch-interleaved"],
    "zb": ["torch-zb", "torch-zbv", "torch-dualpipev"],
}
PER_RANK = {"interleaved-1f1b": 2}  # stages


def experiment(scale: Scale = "laptop") -> Experiment:
    """Speed against torch.distributed.pipelining and DeepSpeed."""
    return Experiment(
        **ABOUT.of_experiment,
        version=2,
        needs="2 devices; deepspeed is an optional extra",
        minutes={"smoke": 0.4, "laptop": 6.4, "node": 25, "paper": 25},
        rounds=sets(scale),
        groups=(
            *_speed(scale),
            # Waits hardly differ from round to round.
            Group(name="known-durations", runs=_known(*SIZES[scale].known, scale), rounds=1),
        ),
    )


def _speed(scale: Scale) -> Iterator[Group]:
    size = SIZES[scale]
    for model, args in (("amoebanet-d", size.amoebanet), ("transformer", size.transformer)):
        common: dict[str, Any] = {"model": model, "model_args": args, "K": 2, "N": size.N}
        common |= {"recompute": ["always", "never"]}
        # Steps at M=1 are the shortest, and the nearest to a peer's.
        blocks = {M: in_blocks(scale, 15 if M == 1 else 8) for M in size.Ms}
        for schedule in ("gpipe", "1f1b", "interleaved-1f1b"):
            at = [M for M in size.Ms if schedule == "gpipe" or M >= 2]
            runs = [run for M in at for run in _beside(schedule, scale, M=M, **blocks[M], **common)]
            if (model, schedule) == ("transformer", "gpipe") and scale in ON_CPU:
                page = common | {"library": "minimal", "recompute": "always", "trace": False}
                runs += [RunSpec(M=M, **blocks[M], **page) for M in at]
            yield Group(name=f"{model}-{schedule}", runs=tuple(runs))
    yield Group(name="transformer-zb", runs=_zero_bubble(size, scale))


def _zero_bubble(size: Sizes, scale: Scale) -> tuple[RunSpec, ...]:
    """Ours with one stage a rank, torch's with two, so that each is cut on its own."""
    common: dict[str, Any] = {"model": "transformer", "model_args": size.transformer, "K": 2}
    common |= {"N": size.N, "recompute": "never", "balance": "flops", **in_blocks(scale, 8)}
    beside = [_beside("zb", scale, M=M, **common) for M in sorted({4, size.Ms[-1]})]
    return tuple(run for runs in beside for run in runs)


def _known(F: float, K: int, Ms: tuple[int, ...], scale: Scale) -> tuple[RunSpec, ...]:
    """Stages of known duration, one layer each, or two layers of half of it."""
    common: dict[str, Any] = {"model": "timed", "K": K, "balance": "uniform"}
    common |= {"fidelity": "emulated", **in_blocks(scale, 5)}
    # Messages of 64 KiB each way.
    args = {"L": K, "forward_s": F, "backward_s": 2 * F, "elements": 16384}
    halves = {**args, "L": 2 * K, "forward_s": F / 2, "backward_s": F}
    runs = [_beside("gpipe", scale, M=M, N=M, model_args=args, **common) for M in Ms]
    runs += [_beside("1f1b", scale, M=K, N=K, model_args=args, **common)]
    runs += [_beside("interleaved-1f1b", scale, M=K, N=K, model_args=halves, **common)]
    return tuple(run for beside in runs for run in beside)


def _beside(schedule: ScheduleName, scale: Scale, **common: Any) -> tuple[RunSpec, ...]:
    """Ours and the peers at one M, and ours again by the last rule, whose steps are the shortest.

    On CPUs the peers use gloo, so ours is there over gloo too, besides shared memory.
    """
    common |= {"schedule": schedule, "stages_per_rank": PER_RANK.get(schedule), "trace": False}
    ours = sweep(**common)
    over_gloo = sweep(transport="gloo", **common) if scale in ON_CPU else ()
    again = controls_at(scale, ours[-1])[:1]
    return (*ours, *over_gloo, *sweep(library=PEERS[schedule], **common), *again)
