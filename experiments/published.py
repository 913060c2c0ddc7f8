"""Steps that others published, as simulated runs, which the experiment `costs` has."""

from collections.abc import Iterator
from functools import partial
from math import nan
from typing import Any

from repro.harness.spec import RunSpec
from repro.paper.numbers import lingvo, torchgpipe

SOURCE_ON_V100 = "Lingvo, Transformer on V100"
LAYERS_ON_A_V100 = 8  # of a Transformer, in Lingvo's comment on weak scaling
LINGVO: dict[str, Any] = {"d": 2048, "H": 8192, "heads": 16, "V": 32000, "T": 1024}
SIMULATED: dict[str, Any] = {"fidelity": "simulated", "trace": False}
Published = tuple[RunSpec, float]  # a simulated run, and the throughput that was published


def _of_torchgpipe(name: str, model: str, **changed: Any) -> Iterator[Published]:
    """Simulated runs with torchgpipe's samples/s; ratios are over the first."""
    for peer in torchgpipe(name):
        # Some of its benchmarks leave the rule at torchgpipe's default.
        rule = peer.recompute or ("never" if peer.K is None else "except_last")
        M = peer.M or 1
        assert peer.N is not None
        fields: dict[str, Any] = {"K": peer.K or 1, "M": M, "N": M * round(peer.N / M)}
        fields |= {"recompute": rule, "balance": peer.balance or "time", "profile": "p40"}
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
