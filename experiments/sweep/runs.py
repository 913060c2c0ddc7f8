"""Any grid of K and M on any model, with our pipeline or with other methods.

repro run sweep --model amoebanet-d --K 2 3 4 --M 1 12 64 --N 128
repro run sweep --method single gpipe 1f1b data --K 2 --M 4
"""

from typing import Any

from repro.harness.sizes import BLOCKS, DEFAULT_N, small
from repro.harness.spec import (
    PLAIN,
    BalanceRule,
    Experiment,
    Group,
    Optimizer,
    Partitioner,
    Recompute,
    RunSpec,
    Scale,
    ScheduleName,
    slug,
    sweep,
)
from repro.methods.named import fields_of


def experiment(
    scale: Scale = "laptop",
    model: str = "transformer",
    K: tuple[int, ...] = (1, 2),
    M: tuple[int, ...] = (1, 4),
    N: int = DEFAULT_N,
    D: int = 1,
    method: tuple[str, ...] = (),
    model_args: dict[str, Any] | None = None,
    recompute: Recompute = "always",
    schedule: ScheduleName = "gpipe",
    stages_per_rank: int | None = None,
    balance: BalanceRule | tuple[int, ...] = "time",
    partitioner: Partitioner | None = None,
    optimizer: Optimizer = "sgd",
    lr: float = 0.01,
    seed: int = 0,
    warmup: int = 1,
    steps: int = BLOCKS,
) -> Experiment:
    """Every K with every M on one model, all at the same mini-batch.

    Plain training (K=1, M=1, nothing recomputed) is measured with them, since speedups are over it.
    Those over K=1 at the same M need K=1 in the sweep. A K or M added later is measured in fresh
    rounds together with its baselines.

    Args:
        scale: chooses the devices, CPU cores (smoke, laptop) or GPUs (node, paper), and the model's
            default size.
        model: a name that repro.models knows, timm:NAME, or import:package.module:function, which
            is code and is run.
        K: numbers of stages; with --method, numbers of devices.
        M: numbers of micro-batches.
        N: mini-batch, the same for every run.
        D: replicas of the pipeline, which share the mini-batch.
        method: names of methods that use the devices, each with its own schedule: single, naive,
            gpipe, 1f1b, interleaved, zb, pipedream, data, fully-sharded, tensor.
            See repro.methods.named.
        model_args: arguments of the model, such as L=3 D=16 image=64. Without any, AmoebaNet, the
            Transformer and timm's models are small at scale smoke and laptop, and of their
            builders' own (the paper's) size at node and paper.
        recompute: which micro-batches are recomputed in the backward pass.
        schedule: order of forwards and backwards.
        stages_per_rank: of an interleaved schedule, at least 2; K counts the devices.
        balance: what stages are cut by, or one layer count per stage.
        partitioner: rule of the cut: the paper's or Lingvo's; by default the smallest largest
            stage.
        optimizer: applied once per mini-batch.
        lr: its step size.
        seed: of weights, data and everything random.
        warmup: steps that are not counted.
        steps: blocks of a round at most; a block is one timed step of each run, in random order.
    """
    pipeline = {"D": D, "schedule": schedule, "stages_per_rank": stages_per_rank}
    ways = [fields_of(name, devices) for name in method for devices in K]
    if not method:
        ways = [{"K": k, **pipeline} for k in K]
    elif given := [f"{n} = {value!r}" for n, value in pipeline.items() if value != PLAIN[n]]:
        both = f"{', '.join(given)} with method = {', '.join(method)}"
        raise ValueError(f"{both}: each method has its own; leave out one of them")
    common: dict[str, Any] = {
        "model": model,
        "model_args": small(model, scale) if model_args is None else model_args,
        "N": N,
        "recompute": recompute,
        "balance": balance,
        "partitioner": partitioner,
        "optimizer": optimizer,
        "lr": lr,
        "seed": seed,
        "warmup": warmup,
        "steps": steps,
        "fidelity": "emulated" if model == "timed" else "measured",
    }
    cut = balance if isinstance(balance, str) else "time"  # a list of counts fits one K alone
    ours = {way["K"] for way in ways if "library" not in way}
    runs = [RunSpec(**{**common, **PLAIN, "balance": cut})]
    for way in ways:
        # Only our own runtime records spans.
        changed = way | {"trace": "library" not in way}
        if balance == "time" and way["K"] not in {1, *ours}:
            changed["balance"] = "flops"  # another library has the cut of our run, if there is one
        for run in sweep(M=[*M], **common | changed):
            if run not in runs:  # "single" uses one device of however many, and may be plain
                runs.append(run)
    return Experiment(
        name="sweep",
        title="K x M sweep",
        question="How do step time, idle time and memory change with K and M on your model?",
        version=2,
        needs="max(K) CPU cores or GPUs",
        groups=(Group(name=slug(model), runs=tuple(runs)),),
    )
