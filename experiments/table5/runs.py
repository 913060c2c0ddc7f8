"""Table 5 (arXiv:1811.06965v5; not at NeurIPS): translation quality against batch size."""

from typing import NamedTuple

from experiments.learned import groups_of
from experiments.translation import SIZES, TRANSFORMER_BIG, training_run
from repro.harness.about import read_about
from repro.harness.spec import ON_CPU, Experiment, Scale

NAME = "table5"
BATCH_SIZES = "batch-sizes"  # group


class Sizes(NamedTuple):
    Ns: tuple[int, ...]  # sentence pairs of a mini-batch
    sentences: int  # that every training reads: the least number of updates times the largest N
    seeds: int  # an interval needs five; the paper states no repetition for this table
    decoded: int


# The paper's 260K, 1M and 4M tokens are 2048, 8192 and 32768 sentences of 128 tokens. At scale
# paper the smallest N has 300,000 updates, as many as the Transformer's authors made.
SIZES_OF: dict[Scale, Sizes] = {
    "smoke": Sizes((4, 16, 64), 2 * 64, 2, 8),
    "laptop": Sizes((16, 64, 256), 24 * 256, 5, 32),
    "paper": Sizes((2048, 8192, 32768), 300_000 * 2048, 1, 3003),
}
SIZES_OF["node"] = SIZES_OF["paper"]
PAPER_M = 256  # so that a micro-batch of the largest N has 128 sentences
ABOUT = read_about(__file__)


def experiment(scale: Scale = "laptop") -> Experiment:
    """BLEU and loss for mini-batches of 1 : 4 : 16 at a fixed number of sentence pairs.

    Paper: section 5 of v5, Table 5. A standard Transformer Big, German to English, with the same
    optimizer settings as its other translation models: BLEU 30.92, 31.86, 32.71 and NLL 2.58, 2.51,
    2.46 for 260K, 1M and 4M tokens. Not stated: updates, tokens in all, learning rate, test set.
    """
    on_cpu, of = scale in ON_CPU, SIZES_OF[scale]
    runs = [
        training_run(
            scale,
            SIZES[0] if on_cpu else TRANSFORMER_BIG,
            ("toy:alfa",) if on_cpu else ("wmt14-de-en",),
            N=N,
            steps=of.sentences // N,
            seed=seed,
            decode=of.decoded,
            K=2 if on_cpu else 4,
            M=2 if on_cpu else PAPER_M,
            warm_up=10,
        )
        for seed in range(of.seeds)
        for N in of.Ns
    ]
    return Experiment(
        **ABOUT.of_experiment,
        paper="Table 5",
        needs="any machine" if on_cpu else "4 GPUs, and WMT14 German to English",
        minutes={"smoke": 0.4, "laptop": 1.9},
        rounds=1,
        groups=groups_of(scale, BATCH_SIZES, runs),
    )
