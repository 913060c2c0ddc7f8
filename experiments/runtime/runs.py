"""What the runtime costs: on stages of known duration, and on one GPU."""

from typing import Any

from repro.harness.about import read_about
from repro.harness.sizes import in_blocks
from repro.harness.spec import Experiment, Group, RunSpec, Scale, sweep

NAME = "runtime"
ABOUT = read_about(__file__)
MESSAGE = 64 * 2**10  # bytes of a micro-batch between two stages
# Seconds of F (B takes twice as long), K, M. A step of K=8, M=32 at 20 ms takes 3 s: one is enough.
KNOWN = [*((0.01, K, M) for K in (2, 8) for M in (4, 32)), (0.02, 8, 32)]
OTHERS = "import:repro.models.on_gpu"
# What one GPU trains: sizes of Table 1 that fit without recomputation, and two others. The module
# that makes these needs torch.
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "amoebanet-d": ("amoebanet-d", {"L": 18, "D": 208}),
    "transformer": ("transformer", {"L": 3}),
    "gpt": ("transformer", {"L": 12, "d": 768, "H": 3072, "heads": 12, "V": 50304}),
    "convnext": (f"{OTHERS}:convnext", {"image": 224, "variant": "convnext_tiny"}),
}
N_ON_GPU = 32
# M -> blocks of a round: the more micro-batches, the longer a step.
BLOCKS_AT = {1: 30, 4: 15, 32: 6}
SHARED_MS = [4, 32]


def experiment(scale: Scale = "laptop") -> Experiment:
    """Steps of known duration against arithmetic; on a GPU, steps against a plain loop's."""
    return Experiment(
        **ABOUT.of_experiment,
        needs="any machine; stages wait, so K=8 needs no 8 devices; one GPU at scale gpu",
        minutes={"smoke": 0.1, "laptop": 1.1, "gpu": 20},
        rounds=1,  # waits hardly differ from round to round
        groups=_on_one_gpu(scale) if scale == "gpu" else (_known(scale),),
    )


def _known(scale: Scale) -> Group:
    """K timed layers, one a stage."""
    common: dict[str, Any] = {"model": "timed", "fidelity": "emulated", "balance": "uniform"}
    common |= in_blocks(scale, 5)
    runs = []
    for F, K, M in [(0.002, 2, 4)] if scale == "smoke" else KNOWN:
        args = {"L": K, "forward_s": F, "backward_s": 2 * F, "elements": MESSAGE // 4}
        runs.append(RunSpec(K=K, M=M, N=M, model_args=args, **common))
    return Group(name="known-durations", runs=tuple(runs))


def _on_one_gpu(scale: Scale) -> tuple[Group, ...]:
    """One stage beside a plain loop, and two or four stages that share the GPU beside one.

    A group holds the runs of one model and number format, which are measured step against step.
    """
    groups = []
    for name, (model, args) in MODELS.items():
        half = {"model": f"{OTHERS}:bfloat16", "model_args": {"of": model, "given": args}}
        for kind, fields in (("float32", {"model": model, "model_args": args}), ("bfloat16", half)):
            groups.append(Group(name=f"{name}-{kind}", runs=_beside_a_loop(fields)))
    for name in ("amoebanet-d", "transformer"):
        model, args = MODELS[name]
        fields = {"model": model, "model_args": args, "N": N_ON_GPU, "balance": "parameters"}
        runs = sweep(K=[1, 2, 4], M=SHARED_MS, trace=False, **in_blocks(scale, 5), **fields)
        groups.append(Group(name=f"{name}-shared", runs=runs, shared=True))
    return tuple(groups)


def _beside_a_loop(fields: dict[str, Any]) -> tuple[RunSpec, ...]:
    common = {"K": 1, "N": N_ON_GPU, "trace": False, "warmup": 2, **fields}
    return tuple(
        run
        for M, blocks in BLOCKS_AT.items()
        for run in sweep(
            M=M, recompute=["always", "never"], library=["repro", "loop"], steps=blocks, **common
        )
    )
