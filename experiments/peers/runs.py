"""Our pipeline beside other libraries that train with the same schedule."""

from typing import Any, NamedTuple

from repro.harness.about import read_about
from repro.harness.sizes import AMOEBANET, TRANSFORMER
from repro.harness.spec import Experiment, Group, RunSpec, Scale, ScheduleName, sweep

NAME = "peers"
ABOUT = read_about(__file__)
SCALES: tuple[Scale, ...] = ("gpu", "gpu-dry")  # besides those of every experiment


class Sizes(NamedTuple):
    rounds: int
    N: int
    Ms: tuple[int, ...]
    other_M: int  # of other schedules, and of GPipe's without recomputation; 1F1B needs K or more
    steps: int
    # Stages of known duration: seconds of F (B takes twice as long), K, and M with N = M.
    known: tuple[float, int, tuple[int, ...]]


SIZES: dict[Scale, Sizes] = {
    "smoke": Sizes(2, 8, (4,), 4, 1, (0.002, 2, (4,))),
    "laptop": Sizes(5, 32, (4, 8, 32), 8, 3, (0.01, 8, (4, 32))),
    "node": Sizes(5, 128, (4, 8, 32), 8, 5, (0.01, 8, (4, 32))),
}
SIZES["paper"] = SIZES["node"]
# Schedule of ours -> the peers that have it.
PEERS: dict[ScheduleName, list[str]] = {
    "gpipe": ["torch"],
    "1f1b": ["torch-1f1b", "deepspeed"],
    "interleaved-1f1b": ["torch-interleaved"],
}
PER_RANK = {"interleaved-1f1b": 2}  # stages
# (K, M) of stages of known duration under GPipe's schedule -> what the median throughput of ours
# over the peer's is to reach.
GOALS: dict[tuple[int, int], float] = {(8, 4): 1.25, (8, 32): 1.12}


def experiment(scale: Scale = "laptop") -> Experiment:
    """Correctness, then speed, against torch.distributed.pipelining, DeepSpeed and torchgpipe.

    The paper compares with no other implementation. Ours against a peer is measured at K=2 on both
    models with real compute, and at K=8 on stages of known duration, where the schedules alone
    explain a ratio of 1.19 at M=4 and 1.05 at M=32 (early recompute, F:R:B = 1:1:2) and the
    runtimes the rest. A peer that is not installed is skipped. At scale gpu only our library is
    checked, for several K whose stages share the GPU.
    """
    if scale in SCALES:
        rounds, groups = 1, [Group(name="checks", runs=_shared_checks())]
    else:
        size = SIZES[scale]
        rounds = size.rounds
        groups = [
            Group(name="checks", runs=_checks()),
            Group(name="amoebanet-d", runs=_speed("amoebanet-d", AMOEBANET[scale], size)),
            Group(name="transformer", runs=_speed("transformer", TRANSFORMER[scale], size)),
            Group(name="known-durations", runs=_known(*size.known)),
        ]
    return Experiment(
        **ABOUT.of_experiment,
        needs="2 devices; torchgpipe and deepspeed are optional extras",
        minutes={"smoke": 1, "gpu-dry": 1, "laptop": 6, "gpu": 3, "node": 25, "paper": 25},
        rounds=rounds,
        groups=tuple(groups),
    )


def _checks() -> tuple[RunSpec, ...]:
    common: dict[str, Any] = {"model": "import:repro.methods.probe:probe", "K": 2, "M": 4, "N": 16}
    common |= {"task": "check", "trace": False}
    runs = sweep(library=["repro", "torch", "torchgpipe"], balance=(2, 2), **common)
    for schedule in ("1f1b", "interleaved-1f1b"):
        common |= {"schedule": schedule, "stages_per_rank": PER_RANK.get(schedule)}
        runs += sweep(library=PEERS[schedule], balance="uniform", **common)
    return runs


def _shared_checks() -> tuple[RunSpec, ...]:
    """Our library with stages that share one GPU and send their messages through the host.

    The models have batch norm and tuples at boundaries, and dropout, in nine and eight layers.
    """
    common: dict[str, Any] = {"M": 4, "N": 16, "task": "check", "trace": False}
    common |= {"balance": "uniform", "transport": "gloo", "K": [1, 2, 4, 8]}
    amoebanet = sweep(model="amoebanet-d", model_args=AMOEBANET["smoke"], **common)
    return amoebanet + sweep(model="transformer", model_args=TRANSFORMER["smoke"], **common)


def _speed(model: str, args: dict[str, Any], size: Sizes) -> tuple[RunSpec, ...]:
    """Real compute at K=2, at one N."""
    common: dict[str, Any] = {"model": model, "model_args": args, "K": 2, "N": size.N}
    common |= {"steps": size.steps}
    runs = sum((_beside("gpipe", M=M, **common) for M in size.Ms), ())
    runs += _again(M=size.Ms[0], **common)
    for schedule in PEERS:
        for checkpoint in ("always", "never"):
            if (schedule, checkpoint) != ("gpipe", "always"):
                runs += _beside(schedule, checkpoint=checkpoint, M=size.other_M, **common)
    return runs


def _known(F: float, K: int, Ms: tuple[int, ...]) -> tuple[RunSpec, ...]:
    """Stages of known duration, one layer each, or two layers of half of it."""
    common: dict[str, Any] = {"model": "timed", "K": K, "balance": "uniform", "warmup": 2}
    common |= {"fidelity": "emulated", "steps": 1}
    # Messages of 64 KiB each way.
    args = {"L": K, "forward_s": F, "backward_s": 2 * F, "elements": 16384}
    halves = {**args, "L": 2 * K, "forward_s": F / 2, "backward_s": F}
    runs = sum((_beside("gpipe", M=M, N=M, model_args=args, **common) for M in Ms), ())
    runs += _again(M=Ms[0], N=Ms[0], model_args=args, **common)
    runs += _beside("1f1b", M=K, N=K, model_args=args, **common)
    return runs + _beside("interleaved-1f1b", M=K, N=K, model_args=halves, **common)


def _beside(schedule: ScheduleName, **common: Any) -> tuple[RunSpec, ...]:
    """Ours and each peer that has the schedule."""
    common |= {"schedule": schedule, "stages_per_rank": PER_RANK.get(schedule), "trace": False}
    return sweep(library=["repro", *PEERS[schedule]], **common)


def _again(**common: Any) -> tuple[RunSpec, ...]:
    """A point of ours as another run (A/A)."""
    return sweep(seed=1, trace=False, **common)
