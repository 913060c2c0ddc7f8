"""Table 5 (arXiv:1811.06965v5; not at NeurIPS): translation quality against batch size."""

from experiments.learned import groups_of
from experiments.translation import SIZES, TRANSFORMER_BIG, training_run
from repro.harness.about import read_about
from repro.harness.spec import ON_CPU, Experiment, Scale

NAME = "table5"
BATCH_SIZES = "batch-sizes"  # group
# Sentence pairs of a mini-batch. The paper's 260K, 1M and 4M tokens are 2048, 8192 and 32768
# sentences of 128 tokens.
NS: dict[Scale, tuple[int, ...]] = {
    "smoke": (4, 16, 64),
    "laptop": (16, 64, 256),
    "node": (2048, 8192, 32768),
    "paper": (2048, 8192, 32768),
}
# Sentence pairs that every training reads: the least number of updates times the largest N. At
# scale paper they are 300,000 updates of the smallest N, as many as the Transformer's authors made.
SENTENCES: dict[Scale, int] = {
    "smoke": 2 * 64,
    "laptop": 24 * 256,
    "node": 300_000 * 2048,
    "paper": 300_000 * 2048,
}
# An interval needs five. The paper states no repetition for this table.
SEEDS: dict[Scale, int] = {"smoke": 2, "laptop": 5, "node": 1, "paper": 1}
DECODED: dict[Scale, int] = {"smoke": 8, "laptop": 32, "node": 3003, "paper": 3003}
PAPER_M = 256  # so that a micro-batch of the largest N has 128 sentences
ABOUT = read_about(__file__)


def experiment(scale: Scale = "laptop") -> Experiment:
    """BLEU and loss for mini-batches of 1 : 4 : 16 at a fixed number of sentence pairs.

    Paper: section 5 of v5, Table 5. A standard Transformer Big, German to English, with the same
    optimizer settings as its other translation models: BLEU 30.92, 31.86, 32.71 and NLL 2.58, 2.51,
    2.46 for 260K, 1M and 4M tokens. Not stated: updates, tokens in all, learning rate, test set.
    """
    on_cpu = scale in ON_CPU
    runs = [
        training_run(
            scale,
            SIZES[0] if on_cpu else TRANSFORMER_BIG,
            ("toy:alfa",) if on_cpu else ("wmt14-de-en",),
            N=N,
            steps=SENTENCES[scale] // N,
            seed=seed,
            decode=DECODED[scale],
            K=2 if on_cpu else 4,
            M=2 if on_cpu else PAPER_M,
            warm_up=10,
        )
        for seed in range(SEEDS[scale])
        for N in NS[scale]
    ]
    return Experiment(
        name=NAME,
        **ABOUT.of_experiment,
        paper="Table 5",
        needs="any machine" if on_cpu else "4 GPUs, and WMT14 German to English",
        minutes={"smoke": 0.4, "laptop": 1.9},
        rounds=1,
        groups=groups_of(scale, BATCH_SIZES, runs),
    )
