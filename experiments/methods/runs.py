"""Every method that the sources compare, side by side on the same work, and what each sends."""

from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

from repro.harness.about import read_about
from repro.harness.sizes import (
    AMOEBANET,
    MODELLED_AMOEBANET,
    MODELLED_TRANSFORMER,
    TRANSFORMER,
    controls_at,
    in_blocks,
    sets,
)
from repro.harness.spec import Experiment, Group, RunSpec, Scale
from repro.methods.named import fields_of

NAME = "methods"
ABOUT = read_about(__file__)
WORK = ("transformer", "amoebanet-d")  # groups of the methods on one model each
SCHEDULES, TRAFFIC, TRAFFIC_AT_PAPER_SIZE = "schedules", "traffic", "traffic-paper-size"

ON_TWO = ("naive", "gpipe", "1f1b", "interleaved", "zb", "pipedream", "data", "fully-sharded")
# What divides layers: the matrices of a Transformer, or convolutions.
DIVIDED = {"transformer": ("tensor",), "amoebanet-d": ("channels", "rows")}
# Each layer waits for messages of its own; on two CPU cores a step takes up to ten times as long.
SLOW = ("fully-sharded", "zero2", "tensor", "channels", "rows")


class Sizes(NamedTuple):
    transformer: dict[str, Any]
    amoebanet: dict[str, Any]
    batch: tuple[int, int]  # N and M of the Transformer
    images: tuple[int, int]  # of AmoebaNet-D


# At scale node no method recomputes, so the models are smaller there than the paper's: one device
# of 16 GB is to hold them.
_FOR_16_GB = {"L": 12, "d": 1024, "H": 4096, "heads": 16, "T": 128}
_IMAGES_FOR_16_GB = {"L": 6, "D": 128, "image": 128}
_T, _A = TRANSFORMER, AMOEBANET
SIZES: dict[Scale, Sizes] = {
    "smoke": Sizes(_T["smoke"], _A["smoke"], (8, 2), (8, 2)),
    "laptop": Sizes(_T["laptop"], _A["laptop"], (32, 8), (16, 4)),
    "node": Sizes(_FOR_16_GB, _IMAGES_FOR_16_GB, (32, 8), (64, 8)),
    "paper": Sizes(_T["paper"], _A["paper"], (128, 8), (128, 8)),
}

# One layer is half a stage, so that an interleaved schedule has two stages on each rank.
K, SIMULATED_M, LAYERS = 8, 16, 16
LAYER_S = 0.005  # of F; B takes twice as long
PIPELINES = {name: fields_of(name, K) for name in ("naive", "gpipe", "1f1b", "interleaved")}
# ZB-H1, whose idle time has a formula.
PIPELINES["zero-bubble"] = {"K": K, "schedule": "zb-h1", "checkpoint": "never"}
_COUNTED: dict[str, Any] = {"task": "traffic", "fidelity": "counted", "trace": False}
_COUNTED |= {"balance": "flops", "checkpoint": "never"}


def experiment(scale: Scale = "laptop") -> Experiment:
    """Throughput, memory, messages, bubble and staleness of each method on the same work."""
    return Experiment(
        **ABOUT.of_experiment,
        needs="2 devices",
        minutes={"smoke": 0.4, "laptop": 3, "node": 30, "paper": 30},
        rounds=sets(scale),
        groups=(*_work(scale), Group(name=SCHEDULES, runs=_schedules()), *_traffic(scale)),
    )


def _work(scale: Scale) -> Iterator[Group]:
    size = SIZES[scale]
    # Without dropout, whose random numbers differ in each method.
    arguments = {**size.transformer, "dropout": 0.0}, size.amoebanet
    for model, args, batch in zip(WORK, arguments, (size.batch, size.images), strict=True):
        run = partial(_run, batch=batch, model=model, model_args=args, **in_blocks(scale))
        names = [*ON_TWO, *DIVIDED[model]]
        runs = [run("single", 1)]
        if model == "transformer":
            names += ["zero1", "zero2"]
            for checkpoint in ("except_last", "always"):
                runs += [run("single", 1, checkpoint=checkpoint)]
                runs += [run("gpipe", 2, checkpoint=checkpoint)]
        runs += [run(name, 2) for name in names]
        yield Group(name=model, runs=(*runs, *controls_at(scale, run("gpipe", 2))))


def _run(name: str, devices: int, *, batch: tuple[int, int], **given: Any) -> RunSpec:
    """A method on so many devices, with as many micro-batches on all replicas together."""
    fields = fields_of(name, devices)
    N, M = batch
    if name in SLOW and given["steps"] > 1:
        given["steps"] //= 5
    settings: dict[str, Any] = {
        "N": N,
        # M counts those of one replica. So all methods have micro-batches of the same size.
        "M": M // fields.get("D", 1),
        "checkpoint": "never",
        "balance": "flops",
        "optimizer": "adam",
        "lr": 3e-4,
        # Only steps of our pipeline can be traced.
        "trace": "library" not in fields,
    }
    return RunSpec(**settings | fields | given)


def _schedules() -> tuple[RunSpec, ...]:
    """Every schedule on K equal ranks with F:R:B = 1:1:2 and free messages."""
    args = {"L": LAYERS, "forward_s": LAYER_S, "backward_s": 2 * LAYER_S, "elements": 1}
    common: dict[str, Any] = {"model": "timed", "model_args": args, "fidelity": "simulated"}
    common |= {"M": SIMULATED_M, "N": SIMULATED_M, "checkpoint": "never", "balance": "uniform"}
    return tuple(RunSpec(**common | fields) for fields in PIPELINES.values())


def _traffic(scale: Scale) -> Iterator[Group]:
    """What each device sends: two at the sizes that are measured, and K at the paper's."""
    size, modelled = SIZES[scale], (MODELLED_TRANSFORMER[scale], MODELLED_AMOEBANET[scale])
    many = 2 if scale == "smoke" else K  # the small Transformer has two heads
    work = {
        TRAFFIC: (2, (size.transformer, size.amoebanet), (size.batch, size.images)),
        TRAFFIC_AT_PAPER_SIZE: (many, modelled, ((32, 1), (128, 1))),
    }
    for group, (devices, arguments, batches) in work.items():
        runs = []
        for model, args, (N, M) in zip(DIVIDED, arguments, batches, strict=True):
            for name in ("gpipe", "data", *DIVIDED[model]):
                fields = fields_of(name, devices)
                fields |= {"M": max(1, M // fields.get("D", 1)), "model_args": args}
                runs.append(RunSpec(**_COUNTED, **fields, model=model, N=N))
        yield Group(name=group, runs=tuple(runs), first=group == TRAFFIC_AT_PAPER_SIZE)
