"""How far the cost model is off: steps that others published, and steps with timed layers."""

from collections.abc import Iterator
from functools import partial
from math import nan
from typing import Any

from repro.harness.about import read_about
from repro.harness.sizes import AMOEBANET, in_blocks, sets
from repro.harness.spec import Experiment, Group, RunSpec, Scale, sweep
from repro.paper.numbers import lingvo, torchgpipe

NAME = "costs"
ABOUT = read_about(__file__)
SOURCE_ON_V100 = "Lingvo, Transformer on V100"
LAYERS_ON_A_V100 = 8  # of a Transformer, in Lingvo's comment on weak scaling
LINGVO: dict[str, Any] = {"d": 2048, "H": 8192, "heads": 16, "V": 32000, "T": 1024}
SMALLEST = 3  # examples of the smallest micro-batch that is timed
# M and N of steps with timed layers, and the largest micro-batch that is timed. No micro-batch of a
# step has a size that is timed.
SMOKE, LAPTOP = ([1, 4], 32, 48), ([1, 4, 8, 32], 128, 192)
SIMULATED: dict[str, Any] = {"fidelity": "simulated", "trace": False}
Published = tuple[RunSpec, float]  # a simulated run, and the throughput that was published


def experiment(scale: Scale = "laptop") -> Experiment:
    """Steps that the cost model predicts, against published and measured ones."""
    published = {} if scale == "smoke" else PUBLISHED
    return Experiment(
        **ABOUT.of_experiment,
        needs="any machine; 2 devices for steps with timed layers",
        minutes={"smoke": 0.2, "laptop": 1.8, "node": 6},
        rounds=sets(scale),
        groups=(
            *(
                Group(name=name, runs=tuple(spec for spec, _ in steps()))
                for name, (_, steps) in published.items()
            ),
            _timed(scale),
        ),
    )


def _timed(scale: Scale) -> Group:
    """Layers that are timed, and the steps that are predicted from them, in the same rounds.

    Those of a Transformer are in `advise`.
    """
    Ms, N, most = SMOKE if scale == "smoke" else LAPTOP
    model = "amoebanet-d"
    common: dict[str, Any] = {"model": model, "model_args": AMOEBANET[scale], "K": 2}
    layers: dict[str, Any] = {"task": "calibrate", "balance": "uniform", "steps": 1}
    timed = RunSpec(N=most, M=most // SMALLEST, **layers, **common)
    return Group(name=model, runs=(timed, *sweep(M=Ms, N=N, **common, **in_blocks(scale, 5))))


def _of_torchgpipe(name: str, model: str, **changed: Any) -> Iterator[Published]:
    """Simulated runs with torchgpipe's samples/s; ratios are over the first."""
    for peer in torchgpipe(name):
        # Some of its benchmarks leave the rule at torchgpipe's default.
        rule = peer.checkpoint or ("never" if peer.K is None else "except_last")
        M = peer.M or 1
        assert peer.N is not None
        fields: dict[str, Any] = {"K": peer.K or 1, "M": M, "N": M * round(peer.N / M)}
        fields |= {"checkpoint": rule, "balance": peer.balance or "time", "profile": "p40"}
        yield (
            RunSpec(model=model, **SIMULATED, **fields | changed),
            peer.values["samples_per_s"] or nan,
        )


def _of_lingvo() -> Iterator[Published]:
    """Simulated runs with Lingvo's throughput for each GPU over that of one.

    A step of every K does the same work on each GPU, so this is the step of K=1 over that of K.
    """
    for peer in lingvo("throughput"):
        K = peer.K or 1
        # The embedding is in the first stage, the softmax in the last one.
        layers = [LAYERS_ON_A_V100] * K
        layers[0] += 1
        layers[-1] += 1
        fields: dict[str, Any] = {"K": K, "M": peer.M or 1, "N": peer.N or 1, "optimizer": "adam"}
        fields |= {"model_args": {"L": LAYERS_ON_A_V100 * K, **LINGVO}, "balance": tuple(layers)}
        spec = RunSpec(model="transformer", profile="v100", **fields, **SIMULATED)
        yield spec, peer.values["per_gpu"] or nan


# Group -> the source, and its runs with what was published.
PUBLISHED = {
    "torchgpipe-amoebanet-d": (
        "torchgpipe, AmoebaNet-D on P40",
        partial(
            _of_torchgpipe,
            "amoebanetd_speed",
            "amoebanet-d",
            model_args={"L": 18, "D": 256, "image": 224},
        ),
    ),
    "torchgpipe-resnet101": (
        "torchgpipe, ResNet-101 on P40",
        partial(_of_torchgpipe, "resnet101_speed", "timm:resnet101", balance="time"),
    ),
    "torchgpipe-unet": ("torchgpipe, U-Net on P40", partial(_of_torchgpipe, "unet_speed", "unet")),
    "lingvo-v100": (SOURCE_ON_V100, _of_lingvo),
}
