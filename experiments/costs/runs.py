"""The cost model held against steps that others published, and against steps measured here."""

from collections.abc import Iterator, Mapping
from functools import partial
from math import nan
from typing import Any

from repro.harness.about import read_about
from repro.harness.sizes import AMOEBANET, TRANSFORMER, in_blocks, sets, small
from repro.harness.spec import SIZES_AT, TINY, Experiment, Group, Optimizer, RunSpec, Scale, sweep
from repro.paper.numbers import Peer, lingvo, torchgpipe

NAME = "costs"
ABOUT = read_about(__file__)
LAYERS_ON_A_V100 = 8  # of a Transformer, in Lingvo's comment on weak scaling
LINGVO: dict[str, Any] = {"d": 2048, "H": 8192, "heads": 16, "V": 32000, "T": 1024}
# Optimizers whose state is counted: Lingvo's own settings have Adam, the paper has RMSProp.
OPTIMIZERS: tuple[Optimizer, ...] = ("adam", "rmsprop")
# Measured here: stages, micro-batches, and N with rounds. Powers of 2, so that a micro-batch of
# every M is among the sizes whose layer times are computed.
KS, MS = [1, 2], [1, 4, 32]
HERE = "-here"  # ends the names of the groups that are measured
# On one GPU: steps of K=1 against profiles of data sheets. The Transformer has the paper's widths
# and as many layers as fit without recomputation.
GPU, LAYERS = "-gpu", "-layers"  # end the names of the groups with steps, and with single layers
LAYER_PASSES = 3  # over single layers, besides the first
PROFILES = ("h100", "h200")  # a profile is held against GPUs whose names contain its name
GPU_MODELS: dict[str, tuple[dict[str, Any], int]] = {
    "amoebanet-d": (AMOEBANET["paper"], 64),
    "transformer": ({"L": 4}, 32),
}
DRY_MODELS: dict[str, tuple[dict[str, Any], int]] = {
    "amoebanet-d": (AMOEBANET["smoke"], 32),
    "transformer": (TRANSFORMER["smoke"], 32),
}
Published = tuple[RunSpec, float]  # a simulated run, and what was published of it


def experiment(scale: Scale = "laptop") -> Experiment:
    """Steps and memory that the cost model predicts, against published and measured ones.

    The paper has no cost model. Sources: torchgpipe's AmoebaNet-D (18, 256), ResNet-101 and U-Net
    on Tesla P40, its memory table, Lingvo's comments on its GPipe language model, and this machine.
    Scale smoke leaves out what takes minutes to count.
    """
    if scale in SIZES_AT:
        groups = on_one_gpu(scale)
    elif scale == "smoke":
        groups = [_measured("transformer", TRANSFORMER[scale], scale)]
    else:
        groups = _elsewhere(scale)
    return Experiment(
        **ABOUT.of_experiment,
        needs="any machine; 2 devices to measure every cell",
        minutes={"smoke": 0.5, "gpu-dry": 1, "laptop": 13, "gpu": 10, "node": 15, "paper": 15},
        rounds=sets(scale),
        groups=tuple(groups),
    )


def _elsewhere(scale: Scale) -> list[Group]:
    cells = {name: published() for name, published in SPEED.items()}
    cells |= {"torchgpipe-memory": torchgpipe_memory()}
    return [
        *(Group(name=name, runs=tuple(spec for spec, _ in of)) for name, of in cells.items()),
        Group(name="lingvo-memory", runs=lingvo_memory()),
        _measured("amoebanet-d", AMOEBANET[scale], scale),
        _measured("transformer", TRANSFORMER[scale], scale),
        _measured("timm:resnet50", small("timm:resnet50", scale), scale),
    ]


def on_one_gpu(scale: Scale) -> list[Group]:
    groups = []
    for model, (args, N) in (DRY_MODELS if scale == "gpu-dry" else GPU_MODELS).items():
        common = {"model": model, "model_args": args, "K": 1, "N": N, "optimizer": "rmsprop"}
        common |= {"trace": False, "M": MS, "checkpoint": ["always", "never"]}
        alone = common | {"M": MS[-1], "checkpoint": "always"}
        layers = sweep(**alone, task="roofline", balance="uniform", steps=LAYER_PASSES)
        groups.append(Group(name=f"{model}{LAYERS}", runs=layers, rounds=1))
        # The same kernels take as long in every step, so a few blocks do.
        steps = sweep(**common, warmup=1, steps=1 if scale in TINY else 3)
        groups.append(Group(name=f"{model}{GPU}", runs=steps, rounds=1))
        for profile in PROFILES:
            steps = sweep(**common, fidelity="simulated", profile=profile)
            groups.append(Group(name=simulated_group(model, profile), runs=steps, rounds=1))
    return groups


def simulated_group(model: str, profile: str) -> str:
    return f"{model}-on-{profile}"


def _measured(model: str, args: dict[str, Any], scale: Scale) -> Group:
    """Steps, and the layer times by a device that is fitted to single layers in the same round."""
    common = {"model": model, "model_args": args, "N": 32 if scale == "smoke" else 64, "K": KS}
    common |= {"trace": False}
    Ms = MS[:2] if scale == "smoke" else MS
    rates = sweep(M=Ms[-1], task="roofline", balance="uniform", steps=LAYER_PASSES, **common)
    # Six steps of ResNet-50 take fifteen seconds on two CPU cores.
    common |= in_blocks(scale, 2 if model.startswith("timm:") else 6)
    name = f"{model.removeprefix('timm:')}{HERE}"
    return Group(name=name, runs=(*rates, *sweep(**common, M=Ms)))


def _of_torchgpipe(
    name: str, model: str, args: dict[str, Any], **changed: Any
) -> Iterator[Published]:
    """Simulated runs with torchgpipe's samples/s; the first is what its ratios are over."""
    for peer in torchgpipe(name):
        # Some of its benchmarks leave the rule at torchgpipe's default.
        rule = peer.checkpoint or ("never" if peer.K is None else "except_last")
        spec = _on_p40(model, args, peer, checkpoint=rule, **changed)
        yield spec, peer.values["samples_per_s"] or nan


def lingvo_scaling() -> Iterator[Published]:
    """Simulated runs with Lingvo's throughput for each GPU over that of one.

    A step of every K does the same work on each GPU, so this is the step of K=1 over that of K.
    """
    for peer in lingvo("throughput"):
        spec = _lingvo([LAYERS_ON_A_V100] * (peer.K or 1), "adam", peer)
        yield spec, peer.values["per_gpu"] or nan


# Group -> its runs with what was published.
SPEED = {
    "torchgpipe-amoebanet-d": partial(
        _of_torchgpipe, "amoebanetd_speed", "amoebanet-d", {"L": 18, "D": 256, "image": 224}
    ),
    "torchgpipe-resnet101": partial(
        _of_torchgpipe, "resnet101_speed", "timm:resnet101", {}, balance="time"
    ),
    "torchgpipe-unet": partial(_of_torchgpipe, "unet_speed", "unet", {}),
    "lingvo-v100": lingvo_scaling,
}


def torchgpipe_memory() -> list[tuple[RunSpec, Mapping[str, float | None]]]:
    sizes = ((18, 416), (18, 544), (36, 544), (72, 512))
    peers = [peer for peer in torchgpipe("amoebanetd_memory") if peer.K is not None]
    rest: dict[str, Any] = {"checkpoint": "except_last", "optimizer": "rmsprop"}
    return [
        (_on_p40("amoebanet-d", {"L": L, "D": D, "image": 224}, peer, **rest), peer.values)
        for (L, D), peer in zip(sizes, peers, strict=True)
    ]


def lingvo_memory() -> tuple[RunSpec, ...]:
    """Lingvo's 94 layers, one more on the last stage, which has the softmax, and more on each."""
    (peer,) = lingvo("memory")
    blocks = list(peer.balance or ())
    cuts = [blocks, [*blocks[:-1], blocks[-1] + 1]]
    cuts += [[count + more for count in blocks] for more in (2, 3)]
    return tuple(_lingvo(cut, optimizer, peer) for optimizer in OPTIMIZERS for cut in cuts)


def _on_p40(model: str, args: dict[str, Any], peer: Peer, **changed: Any) -> RunSpec:
    M = peer.M or 1
    assert peer.N is not None
    as_published: dict[str, Any] = {"K": peer.K or 1, "M": M, "N": M * round(peer.N / M)}
    as_published |= {"checkpoint": peer.checkpoint, "balance": peer.balance or "time"}
    as_published |= {"fidelity": "simulated", "trace": False, "profile": "p40"}
    return RunSpec(model=model, model_args=args, **as_published | changed)


def _lingvo(blocks: list[int], optimizer: Optimizer, peer: Peer) -> RunSpec:
    # The embedding is in the first stage, the softmax in the last one.
    layers = [*blocks]
    layers[0] += 1
    layers[-1] += 1
    pipeline: dict[str, Any] = {"K": len(blocks), "M": peer.M or 1, "N": peer.N or 1}
    pipeline |= {"balance": tuple(layers), "optimizer": optimizer}
    args = {"L": sum(blocks), **LINGVO}
    device: dict[str, Any] = {"fidelity": "simulated", "trace": False, "profile": "v100"}
    return RunSpec(model="transformer", model_args=args, **pipeline, **device)
