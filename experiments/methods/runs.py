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
from repro.methods.named import COUNTED, fields_of

NAME = "methods"
ABOUT = read_about(__file__)
WORK = ("transformer", "amoebanet-d")  # groups of the methods on one model each
TRAFFIC = "traffic-paper-size"

ON_TWO = ("naive", "gpipe", "1f1b", "interleaved", "zb", "pipedream", "data", "fully-sharded")
# What divides layers: the matrices of a Transformer, or convolutions, of which only what they send
# is counted.
DIVIDED = {"transformer": ("tensor",), "amoebanet-d": COUNTED}
# Each layer waits for messages of its own; on two CPU cores a step takes up to four times as long.
SLOW = ("fully-sharded", "tensor")


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

K = 8  # devices of the paper's size
_COUNTED: dict[str, Any] = {"task": "traffic", "fidelity": "counted", "trace": False}
_COUNTED |= {"balance": "flops", "recompute": "never"}


def experiment(scale: Scale = "laptop") -> Experiment:
    """Throughput, memory, messages and staleness of each method on the same work."""
    return Experiment(
        **ABOUT.of_experiment,
        needs="2 devices",
        minutes={"smoke": 0.4, "laptop": 3, "node": 30, "paper": 30},
        rounds=sets(scale),
        groups=(*_work(scale), _traffic(scale)),
    )


def _work(scale: Scale) -> Iterator[Group]:
    size = SIZES[scale]
    # Without dropout, whose random numbers differ in each method.
    arguments = {**size.transformer, "dropout": 0.0}, size.amoebanet
    for model, args, batch in zip(WORK, arguments, (size.batch, size.images), strict=True):
        run = partial(_run, batch=batch, model=model, model_args=args, **in_blocks(scale))
        names = [*ON_TWO]
        runs = [run("single", 1)]
        if model == "transformer":
            names.append("tensor")
            for recompute in ("except_last", "always"):
                runs += [run("single", 1, recompute=recompute)]
                runs += [run("gpipe", 2, recompute=recompute)]
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
        "recompute": "never",
        "balance": "flops",
        "optimizer": "adam",
        "lr": 3e-4,
        # Only steps of our pipeline can be traced.
        "trace": "library" not in fields,
    }
    return RunSpec(**settings | fields | given)


def _traffic(scale: Scale) -> Group:
    """What each of K devices sends at the paper's size."""
    devices = 2 if scale == "smoke" else K  # the small Transformer has two heads
    work = {"transformer": (MODELLED_TRANSFORMER[scale], 32)}
    work["amoebanet-d"] = MODELLED_AMOEBANET[scale], 128
    runs = []
    for model, (args, N) in work.items():
        for name in ("gpipe", "data", *DIVIDED[model]):
            divided = {"K": 1, "library": name, "tensor_parallel": devices}
            fields = divided if name in COUNTED else fields_of(name, devices)
            runs.append(RunSpec(**_COUNTED, **fields, model=model, model_args=args, M=1, N=N))
    return Group(name=TRAFFIC, runs=tuple(runs), first=True)
