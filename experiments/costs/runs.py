"""The cost model held against steps that others published, and against steps measured here."""

from typing import Any

from repro.harness.about import read_about
from repro.harness.sizes import AMOEBANET, TRANSFORMER, small
from repro.harness.spec import Checkpoint, Experiment, Group, Optimizer, RunSpec, Scale, sweep
from repro.paper import lingvo, torchgpipe
from repro.paper.numbers import Peer

NAME = "costs"
ABOUT = read_about(__file__)
SCALES: tuple[Scale, ...] = ("gpu", "gpu-dry")
P40, V100 = "p40", "v100"
SIMULATED: dict[str, Any] = {"fidelity": "simulated", "trace": False}
AMOEBANET_SPEED = {"L": 18, "D": 256, "image": 224}
LAYERS_ON_A_V100 = 8  # of a Transformer, in Lingvo's comment on weak scaling
LINGVO: dict[str, Any] = {"d": 2048, "H": 8192, "heads": 16, "V": 32000, "T": 1024}
# Optimizers whose state is counted: Lingvo's own settings have Adam, the paper has RMSProp.
OPTIMIZERS: tuple[Optimizer, ...] = ("adam", "rmsprop")
# Measured here: stages, micro-batches, mini-batch. Powers of 2, so that a micro-batch of every M is
# among the sizes whose layer times are computed.
KS, MS = (1, 2), (1, 4, 32)
N: dict[Scale, int] = {"smoke": 32, "laptop": 64, "node": 64, "paper": 64}
ROUNDS: dict[Scale, int] = {"smoke": 1, "laptop": 3, "node": 3, "paper": 3}
HERE = "-here"  # ends the names of the groups that are measured
# On one GPU: steps of K=1, and layers for single stages, against profiles of data sheets. The
# Transformer has the paper's widths and as many layers as fit without recomputation.
GPU = "-gpu"  # ends the names of these groups
PROFILES = ("h100", "h200")  # a profile is held against GPUs whose names contain its name
GPU_MS = (1, 4, 32)  # those of Table 2
STAGES = {"amoebanet-d": 8, "transformer": 4}  # as many as its layers allow
GPU_COMMON: dict[str, Any] = {"optimizer": "rmsprop", "steps": 2, "trace": False}
RULES: tuple[Checkpoint, ...] = ("always", "never")
GPU_MODELS: dict[str, tuple[dict[str, Any], int]] = {
    "amoebanet-d": (AMOEBANET["paper"], 128),
    "transformer": ({"L": 4}, 32),
}
DRY_MODELS: dict[str, tuple[dict[str, Any], int]] = {
    "amoebanet-d": (AMOEBANET["smoke"], 32),
    "transformer": (TRANSFORMER["smoke"], 32),
}


def experiment(scale: Scale = "laptop") -> Experiment:
    """Steps and memory that the cost model predicts, against published and measured ones.

    The paper has no cost model. Sources: torchgpipe's AmoebaNet-D (18, 256) and ResNet-101 on Tesla
    P40, its memory table, Lingvo's comments on its GPipe language model, and this machine. Scale
    smoke leaves out what takes minutes to count.
    """
    if scale in SCALES:
        groups = on_one_gpu(scale)
    else:
        groups = _elsewhere(scale)
    return Experiment(
        name=NAME,
        **ABOUT.of_experiment,
        needs="any machine; 2 devices to measure every cell",
        minutes={"smoke": 0.5, "gpu-dry": 1, "laptop": 9, "gpu": 10, "node": 15, "paper": 15},
        rounds=ROUNDS.get(scale, 3),
        groups=tuple(groups),
    )


def _elsewhere(scale: Scale) -> list[Group]:
    """Published steps and memory, and steps measured here by this machine's own rates."""
    smoke = scale == "smoke"
    published = [
        Group(name=name, runs=tuple(spec for spec, _ in cells())) for name, cells in SPEED.items()
    ]
    memory = [
        Group(name="torchgpipe-memory", runs=tuple(spec for spec, _ in torchgpipe_memory())),
        Group(name="lingvo-memory", runs=lingvo_memory()),
    ]
    models = {"amoebanet-d": AMOEBANET[scale], "transformer": TRANSFORMER[scale]}
    models["timm:resnet50"] = small("timm:resnet50", scale)
    measured = [_measured(model, args, scale) for model, args in models.items()]
    return measured[1:2] if smoke else [*published, *memory, *measured]


def on_one_gpu(scale: Scale) -> list[Group]:
    groups = []
    for model, (args, N) in (DRY_MODELS if scale == "gpu-dry" else GPU_MODELS).items():
        common = {"model": model, "model_args": args, "K": 1, "N": N, **GPU_COMMON}
        measured = sweep(M=list(GPU_MS), checkpoint=list(RULES), **common)
        layers = RunSpec(M=GPU_MS[-1], task="calibrate", **common)
        groups.append(Group(name=f"{model}{GPU}", runs=(*measured, layers)))
        for profile in PROFILES:
            modelled = {"fidelity": "simulated", "profile": profile}
            steps = [run.model_copy(update=modelled) for run in measured]
            stages = measured[-2].model_copy(update={**modelled, "K": STAGES[model]})
            name = simulated_group(model, profile)
            groups.append(Group(name=name, runs=(*steps, stages), rounds=1))
    return groups


def simulated_group(model: str, profile: str) -> str:
    return f"{model}-on-{profile}"


def _measured(model: str, args: dict[str, Any], scale: Scale) -> Group:
    """Steps, and the layer times from the rates that this machine attains in the same round."""
    common = {"model": model, "model_args": args, "N": N[scale], "steps": 1, "trace": False}
    Ms = list(MS[:2] if scale == "smoke" else MS)
    rates = sweep(K=list(KS), M=Ms[-1], task="roofline", balance="uniform", **common)
    steps = sweep(K=list(KS), M=Ms, **common)
    return Group(name=f"{model.removeprefix('timm:')}{HERE}", runs=(*rates, *steps))


def _published(spec: RunSpec, peer: Peer, value: str) -> tuple[RunSpec, float]:
    throughput = peer.values[value]
    assert throughput is not None
    return spec, throughput


def torchgpipe_amoebanet() -> list[tuple[RunSpec, float]]:
    """Simulated runs with torchgpipe's samples/s; the first is what its ratios are over."""
    return [
        _published(_on_p40("amoebanet-d", AMOEBANET_SPEED, peer), peer, "samples_per_s")
        for peer in torchgpipe("amoebanetd_speed")
    ]


def torchgpipe_resnet() -> list[tuple[RunSpec, float]]:
    """The same of ResNet-101; the first is one GPU without a pipeline."""
    cells = []
    for peer in torchgpipe("resnet101_speed"):
        # Its benchmark leaves the rule at torchgpipe's default.
        rule = "never" if peer.K is None else "except_last"
        spec = _on_p40("timm:resnet101", {}, peer, balance="time", checkpoint=rule)
        cells.append(_published(spec, peer, "samples_per_s"))
    return cells


def lingvo_scaling() -> list[tuple[RunSpec, float]]:
    """Simulated runs with Lingvo's throughput for each GPU over that of one.

    A step of every K does the same work on each GPU, so this is the step of K=1 over that of K.
    """
    return [
        _published(_lingvo([LAYERS_ON_A_V100] * (peer.K or 1), "adam", peer), peer, "per_gpu")
        for peer in lingvo("throughput")
    ]


# Group -> its runs with what was published.
SPEED = {
    "torchgpipe-amoebanet-d": torchgpipe_amoebanet,
    "torchgpipe-resnet101": torchgpipe_resnet,
    "lingvo-v100": lingvo_scaling,
}


def torchgpipe_memory() -> list[tuple[RunSpec, Peer]]:
    """Runs whose peak is counted, with the row of torchgpipe's memory table."""
    sizes = ((18, 416), (18, 544), (36, 544), (72, 512))
    peers = [peer for peer in torchgpipe("amoebanetd_memory") if peer.K is not None]
    rest: dict[str, Any] = {"checkpoint": "except_last", "optimizer": "rmsprop"}
    return [
        (_on_p40("amoebanet-d", {"L": L, "D": D, "image": 224}, peer, **rest), peer)
        for (L, D), peer in zip(sizes, peers, strict=True)
    ]


def lingvo_memory() -> tuple[RunSpec, ...]:
    """Lingvo's 94 layers, one more on the last stage, which has the softmax, and more on each."""
    (peer,) = lingvo("memory")
    blocks = list(peer.balance or ())
    cuts = [blocks, [*blocks[:-1], blocks[-1] + 1]]
    cuts += [[count + more for count in blocks] for more in (2, 3)]
    return tuple(_lingvo(cut, optimizer, peer) for optimizer in OPTIMIZERS for cut in cuts)


def with_ends(blocks: list[int]) -> tuple[int, ...]:
    """Layers of each stage: the embedding is in the first one, the softmax in the last one."""
    counts = list(blocks)
    counts[0] += 1
    counts[-1] += 1
    return tuple(counts)


def _on_p40(model: str, args: dict[str, Any], peer: Peer, **changed: Any) -> RunSpec:
    M = peer.M or 1
    assert peer.N is not None
    as_published: dict[str, Any] = {
        "K": peer.K or 1,
        "M": M,
        "N": M * round(peer.N / M),
        "checkpoint": peer.checkpoint,
        "balance": peer.balance or "time",
    }
    return RunSpec(model=model, model_args=args, **SIMULATED, profile=P40, **as_published | changed)


def _lingvo(blocks: list[int], optimizer: Optimizer, peer: Peer) -> RunSpec:
    return RunSpec(
        model="transformer",
        model_args={"L": sum(blocks), **LINGVO},
        K=len(blocks),
        M=peer.M or 1,
        N=peer.N or 1,
        balance=with_ends(blocks),
        optimizer=optimizer,
        **SIMULATED,
        profile=V100,
    )
