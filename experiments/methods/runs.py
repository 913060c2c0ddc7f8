"""Every method that the sources compare, side by side on the same work."""

from math import ceil
from typing import Any

from repro.gpipe.partition.layer_costs import LinkSpeed
from repro.harness.sizes import AMOEBANET, MODELLED_TRANSFORMER, TRANSFORMER
from repro.harness.spec import Checkpoint, Experiment, Fidelity, Group, RunSpec, Scale
from repro.methods.named import fields_of

NAME = "methods"
# Its groups, besides those of `WORK`.
SHAPES, CURVES, SCHEDULES = "deep-and-shallow", "loss-curves", "schedules"
PAPER_SIZE, SKIP = "paper-size", "skip-connection"

ON_TWO = (
    "naive",
    "gpipe",
    "1f1b",
    "interleaved",
    "pipedream",
    "data",
    "fully-sharded",
    "zero1",
    "tensor",
)
ON_FOUR = ("gpipe-x-data", "gpipe-x-zero1", "gpipe-x-tensor")
# At scale smoke with fewer blocks, whose counting takes seconds.
RESNET: dict[Scale, str] = {
    "smoke": "timm:resnet18",
    "laptop": "timm:resnet50",
    "node": "timm:resnet50",
    "paper": "timm:resnet50",
}
RESNET_ARGS: dict[Scale, dict[str, Any]] = {
    "smoke": {"image": 32, "num_classes": 10},
    "laptop": {"image": 32, "num_classes": 10},
    "node": {},
    "paper": {},
}
# An image model has no matrices that can be divided as a Transformer's.
ON_TWO_FOR_IMAGES = tuple(name for name in ON_TWO if name not in ("tensor", "zero1"))
WORK = ("transformer", "amoebanet-d", "resnet50")  # groups of the methods on one model each
# At scale node no method recomputes, so the models are smaller there than the paper's: one device
# of 16 GB is to hold them.
TRANSFORMERS: dict[Scale, dict[str, Any]] = {
    **TRANSFORMER,
    "node": {"L": 12, "d": 1024, "H": 4096, "heads": 16, "T": 128},
}
AMOEBANETS: dict[Scale, dict[str, Any]] = {
    **AMOEBANET,
    "node": {"L": 6, "D": 128, "image": 128},
}
N: dict[Scale, int] = {"smoke": 8, "laptop": 32, "node": 32, "paper": 128}
M: dict[Scale, int] = {"smoke": 2, "laptop": 8, "node": 8, "paper": 8}
# Of the image models.
IMAGES_N: dict[Scale, int] = {"smoke": 8, "laptop": 16, "node": 64, "paper": 128}
IMAGES_M: dict[Scale, int] = {"smoke": 2, "laptop": 4, "node": 8, "paper": 8}
STEPS: dict[Scale, int] = {"smoke": 1, "laptop": 2, "node": 5, "paper": 5}
ROUNDS: dict[Scale, int] = {"smoke": 1, "laptop": 5, "node": 5, "paper": 5}
LR = 3e-4

# Two Transformers with equally many weights in their blocks, 12 L d^2: four times as many blocks of
# half the width.
SHAPE_METHODS = ("single", "gpipe", "tensor", "data")
DEEP: dict[Scale, dict[str, Any]] = {
    "smoke": {"L": 8, "d": 16, "H": 64, "heads": 2, "V": 128, "T": 16},
    "laptop": {"L": 24, "d": 64, "H": 256, "heads": 4, "V": 512, "T": 32},
    "node": {"L": 24, "d": 1024, "H": 4096, "heads": 16, "T": 128},
    "paper": {"L": 24, "d": 2048, "H": 8192, "heads": 32},
}
# The sizes at which communication is counted beside what is measured.
COUNTED_DEVICES, COUNTED_N, COUNTED_T, COUNTED_V = 8, 32, 1024, 32000

CURVE_STEPS: dict[Scale, int] = {"smoke": 4, "laptop": 30, "node": 200, "paper": 200}

# One layer is half a stage, so that an interleaved schedule has two stages on each rank.
K, SIMULATED_M, LAYERS = 8, 16, 16
LAYER_S = 0.005  # of F; B takes twice as long
PIPELINES = ("naive", "gpipe", "1f1b", "interleaved", "zero-bubble")
GOAL = 0.9  # of the devices' time is spent computing
PROFILE = "tpu-v3"
# Table 2's Transformer; at scale smoke with as many layers as an interleaved schedule has stages.
FULL_SIZE: dict[Scale, dict[str, Any]] = {
    **MODELLED_TRANSFORMER,
    "smoke": {**MODELLED_TRANSFORMER["smoke"], "L": 2 * K},
}

# A skip connection over all stages makes each message twice as large.
SKIP_K, SKIP_M, SKIP_FORWARD_S = 4, 8, 0.01
MESSAGE = 2**20  # bytes of a micro-batch's activations at a boundary
LINKS = (1e9, 1e8)  # bytes per second

DEVIATIONS = (
    "The paper compares GPipe with data and model parallelism in words. Here each is a run on the "
    "same model and mini-batch, with Adam and without dropout, so that all losses can be compared.",
    "No method recomputes, apart from the lines that say so. The paper's GPipe always does.",
    "One device and GPipe run all forwards before their backwards, so they keep the activations of "
    "the whole mini-batch. Replicas, sharded and tensor parallelism accumulate gradients, and keep "
    "those of one micro-batch.",
    "Combinations of two methods take four processes, and so does PipeDream with four stages. At "
    "scale smoke and laptop these share the cores there are: their memory, messages and losses are "
    "measured, and nothing is timed. With two devices ZeRO-1 has one stage and two replicas.",
    "Stages are cut by counted FLOPs in all libraries alike.",
    "The loss curves repeat one mini-batch. They show what stale weights do to optimization, and "
    "nothing about generalization.",
)


def experiment(scale: Scale = "laptop") -> Experiment:
    """Throughput, memory, messages, bubble, staleness and loss of each method on the same work.

    Paper: sections 1 and 6 say what data parallelism, SPMD (Mesh-TensorFlow) and PipeDream cost:
    memory of a whole model on each device, all-reduces inside each layer, and stale weights.
    Section 2.3: GPipe sends only the activations at the boundaries of stages.

    Where this departs from it, and why, stands in the report and at the top of
    experiments/methods/runs.py.
    """
    transformer, amoebanet, resnet = WORK
    return Experiment(
        name=NAME,
        title="The methods side by side",
        question=(
            "What does each way of using several devices give and cost on the same model, beside "
            "GPipe?"
        ),
        needs="2 devices; 4 at scale node and paper",
        deviations=DEVIATIONS,
        minutes={"smoke": 0.5, "laptop": 6, "node": 20, "paper": 20},
        rounds=ROUNDS[scale],
        groups=(
            Group(name=transformer, runs=_transformers(scale)),
            Group(name=amoebanet, runs=_images("amoebanet-d", AMOEBANETS[scale], scale)),
            Group(name=resnet, runs=_images(RESNET[scale], RESNET_ARGS[scale], scale)),
            Group(name=SHAPES, runs=_shapes(scale)),
            Group(name=CURVES, runs=_curves(scale), rounds=1),
            Group(name=SCHEDULES, runs=_schedules()),
            Group(name=PAPER_SIZE, runs=_paper_size(scale)),
            # Waits hardly differ from round to round.
            Group(name=SKIP, runs=_skips(), rounds=1),
        ),
    )


def least_m(checkpoint: Checkpoint) -> int:
    """The least M at which K devices compute for the share `GOAL` of their time.

    By M/(M+K-1) without recomputation, and 4M/(4M+3(K-1)) with early recomputation (section 2.3).
    """
    waiting = (K - 1) if checkpoint == "never" else 3 * (K - 1) / 4
    return ceil(waiting * GOAL / (1 - GOAL) - 1e-9)


def shallow(deep: dict[str, Any]) -> dict[str, Any]:
    """The Transformer of a quarter of the blocks and twice the width."""
    return {**deep, "L": deep["L"] // 4, "d": 2 * deep["d"], "H": 2 * deep["H"]}


def _run(name: str, devices: int, scale: Scale, micro_batches: int, **given: Any) -> RunSpec:
    """A method on so many devices, with as many micro-batches on all replicas together."""
    if name == "zero1":
        # With two devices there is one stage, and replicas that shard the optimizer's state.
        fields: dict[str, Any] = {"K": 1, "D": devices, "zero": 1}
    else:
        fields = fields_of(name, devices)
    # Only steps of our pipeline can be traced.
    ours = "library" not in fields and "tensor_parallel" not in fields
    settings: dict[str, Any] = {
        # M counts those of one replica. So all methods have micro-batches of the same size.
        "M": micro_batches // fields.get("D", 1),
        "checkpoint": "never",
        "balance": "flops",
        "optimizer": "adam",
        "lr": LR,
        "steps": STEPS[scale],
        "trace": ours,
    }
    return RunSpec(**settings | fields | given)


def _transformer(name: str, devices: int, scale: Scale, **changed: Any) -> RunSpec:
    """A method on the Transformer, without dropout, whose random numbers differ in each method."""
    given: dict[str, Any] = {"model": "transformer", "model_args": TRANSFORMERS[scale]} | changed
    given["model_args"] = {**given["model_args"], "dropout": 0.0}
    return _run(name, devices, scale, M[scale], N=N[scale], **given)


def _transformers(scale: Scale) -> tuple[RunSpec, ...]:
    runs = [_transformer("single", 1, scale)]
    runs += [_transformer(name, 2, scale) for name in ON_TWO]
    runs += [_transformer(name, 4, scale, **_on_four(scale)) for name in ON_FOUR]
    recomputing: tuple[Checkpoint, ...] = ("except_last", "always")
    for name, devices in (("single", 1), ("gpipe", 2)):
        for checkpoint in recomputing:
            runs.append(_transformer(name, devices, scale, checkpoint=checkpoint))
    return tuple(runs)


def _on_four(scale: Scale) -> dict[str, Any]:
    """Where four devices are rare, four processes share the cores there are."""
    return {"shared": True, "trace": False} if scale in ("smoke", "laptop") else {}


def _images(model: str, args: dict[str, Any], scale: Scale) -> tuple[RunSpec, ...]:
    given: dict[str, Any] = {"model": model, "model_args": args, "N": IMAGES_N[scale]}
    names = [("single", 1), *((name, 2) for name in ON_TWO_FOR_IMAGES)]
    return tuple(_run(name, devices, scale, IMAGES_M[scale], **given) for name, devices in names)


def _shapes(scale: Scale) -> tuple[RunSpec, ...]:
    return tuple(
        _transformer(name, 1 if name == "single" else 2, scale, model_args=args)
        for args in (DEEP[scale], shallow(DEEP[scale]))
        for name in SHAPE_METHODS
    )


def _curves(scale: Scale) -> tuple[RunSpec, ...]:
    """GPipe updates once for a mini-batch, PipeDream once for each micro-batch, with stale weights.

    PipeDream on one device has no stale weights, so it shows what the staleness does.
    """
    timing: dict[str, Any] = {"warmup": 0, "steps": CURVE_STEPS[scale], "trace": False}
    return (
        _transformer("gpipe", 2, scale, **timing),
        *(_transformer("pipedream", devices, scale, **timing) for devices in (1, 2)),
        _transformer("pipedream", 4, scale, **timing | _on_four(scale)),
    )


def _simulated(
    name: str, micro_batches: int = SIMULATED_M, checkpoint: Checkpoint = "never"
) -> RunSpec:
    """A pipeline of K equal ranks with F:R:B = 1:1:2 and free messages."""
    fields: dict[str, Any] = {"checkpoint": checkpoint} | fields_of(name, K)
    args = {"L": LAYERS, "forward_s": LAYER_S, "backward_s": 2 * LAYER_S, "elements": 1}
    return RunSpec(
        model="timed",
        model_args=args,
        M=micro_batches,
        N=micro_batches,
        balance="uniform",
        fidelity="simulated",
        trace=micro_batches == SIMULATED_M,
        **fields,
    )


def _schedules() -> tuple[RunSpec, ...]:
    """Every schedule at one M, and GPipe's at the M where it reaches the goal and one less."""
    runs = [_simulated(name) for name in PIPELINES]
    runs.append(_simulated("gpipe", checkpoint="always"))
    choices: tuple[Checkpoint, ...] = ("never", "always")
    for checkpoint in choices:
        least = least_m(checkpoint)
        runs += [_simulated("gpipe", count, checkpoint) for count in (least - 1, least)]
    return tuple(runs)


def _paper_size(scale: Scale) -> tuple[RunSpec, ...]:
    """The schedules on Table 2's Transformer, whose memory is counted."""
    choices: tuple[Checkpoint, ...] = ("never", "always")
    runs = []
    for name in PIPELINES:
        for checkpoint in choices:
            fields: dict[str, Any] = {"checkpoint": checkpoint} | fields_of(name, K)
            if fields["checkpoint"] != checkpoint:
                continue  # its backwards are split, so it never recomputes
            runs.append(
                RunSpec(
                    model="transformer",
                    model_args=FULL_SIZE[scale],
                    M=SIMULATED_M,
                    N=2 * SIMULATED_M,
                    optimizer="adam",
                    fidelity="simulated",
                    profile=PROFILE,
                    trace=False,
                    **fields,
                )
            )
    return tuple(runs)


def _skips() -> tuple[RunSpec, ...]:
    """A pipeline on each link, without and with a tensor that all stages pass on."""
    fidelities: tuple[Fidelity, ...] = ("simulated", "emulated")
    return tuple(
        RunSpec(
            model="timed",
            model_args={
                "L": SKIP_K,
                "forward_s": SKIP_FORWARD_S,
                "backward_s": 2 * SKIP_FORWARD_S,
                "elements": tensors * MESSAGE // 4,
            },
            K=SKIP_K,
            M=SKIP_M,
            N=SKIP_M,
            balance="uniform",
            steps=1,
            fidelity=fidelity,
            link=LinkSpeed(bytes_per_second=speed),
            trace=False,
        )
        for fidelity in fidelities
        for speed in LINKS
        for tensors in (1, 2)
    )
