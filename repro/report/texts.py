"""The report's fixed texts: fidelities, verdicts, metrics, scales, deviations from the paper."""

FIDELITIES = {
    "quoted": "printed in the paper, or published by another project",
    "measured": "real devices computed, messages crossed, a clock and a memory meter were read",
    "emulated": (
        "real processes, messages and schedule; each stage's compute is a timed wait of the "
        "modelled length"
    ),
    "simulated": "no processes: the same schedule object and a cost model on a virtual clock",
    "counted": "parameters, FLOPs and peak bytes read off the real model run on fake tensors",
}

VERDICTS = {
    "reproduced": (
        "measured or counted at the paper's own size, K and M, and within the tolerance"
    ),
    "consistent": "simulated or emulated at that size, and within the tolerance",
    "trend": "smaller models go the way that the claim says, with the whole 95 % interval",
    "fitted": "within the tolerance, but a setting was inferred from the claim's own number",
    "not identified": (
        "within it under some settings that the paper does not print, outside under others"
    ),
    "not reproduced": "outside; of smaller models, the direction is reversed or not shown",
    "not tested here": "no result, or one that could not tell",
}

AS_TABLE2 = "throughput over K=2, M=1"  # a metric that only the paper's experiments need
METRICS = {
    "step": (
        "Seconds of one optimizer step over a mini-batch of N, from a barrier until the slowest "
        "stage has finished: the median of a round's timed steps, then the median over rounds. "
        "Warm-up steps do not count."
    ),
    "throughput": "N divided by the step, in each round; then the median over rounds.",
    "speedup over K=1": (
        "Throughput over that of one stage with everything else equal: M, N, re-materialization, "
        "device. Taken inside a round, median over rounds, bootstrap 95 % interval. The "
        "controlled view."
    ),
    AS_TABLE2: "Table 2's normalisation. The paper's batch changed between cells; ours does not.",
    "ideal": (
        "Simulated: the same schedule at one mini-batch with equal stages, F:R:B = 1:1:2 and free "
        "messages. In it GPipe recomputes early, while a stage waits for its gradient: its step is "
        "(M+K-1)F + M(R+B) + (K-1)B. In the plain ideal, the paper's K M/(M+K-1) over one stage, "
        "recomputation waits for the gradient too: (M+K-1)(F+R+B)."
    ),
    "idle/total": (
        "The part of K x step in which a stage is neither in F, R, B nor in the update: what the "
        "paper calls bubble, in theory (K-1)/(M+K-1). Measured idle time also holds imbalance, "
        "transfers, set-up and the runtime itself."
    ),
    "idle/work": "The same idle time over the busy time; in theory (K-1)/M. Others print this one.",
    "peak memory": (
        "Of each stage, read in a step of its own that is not timed: the allocator's peak on a "
        "GPU, live tensor bytes on a CPU. Of simulated runs it is counted."
    ),
    "breakdown": (
        "computation (F, B), recompute (R), update, set-up; the rest is waiting: bubble (that of "
        "equal stages with free messages), imbalance (what unequal stages add) and transfer "
        "(messages, runtime, jitter)."
    ),
}

SCALES = {
    "smoke": (
        "Scale smoke checks that everything runs. Its numbers say nothing about the paper, so "
        "none of the paper's stand beside them. For a comparison run scale laptop: ./run_all.sh "
        "--scale laptop."
    ),
    "laptop": (
        "Scale laptop measures models that two CPU cores can train, which shows trends; no GPU is "
        "used. The paper's own sizes are counted, simulated or emulated."
    ),
    "gpu-dry": (
        "Scale gpu-dry rehearses scale gpu on the CPU, with small models and memories. Its numbers "
        "say nothing about the paper."
    ),
    "gpu": (
        "Scale gpu measures on one GPU that all stages share: memory and correctness at the "
        "paper's sizes, and steps of K=1, but no speedup over K, since stages take turns."
    ),
    "node": "Scale node measures on the GPUs of one machine, most models at the paper's sizes.",
    "paper": "Scale paper measures the paper's sizes on as many devices as its tables have.",
}
"""What each scale is for; the banner of the page shows it."""

DEVIATIONS = [
    "Pipelines of PyTorch processes instead of Lingvo on TPUs; one process a stage.",
    "Scaled-down runs can show a trend, not a reproduction.",
]
"""Of every experiment of the paper; further ones stand in its runs.py."""
