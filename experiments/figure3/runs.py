"""Figure 3 (arXiv:1811.06965v5): multilingual translation against bilingual baselines."""

from itertools import product
from typing import NamedTuple

from experiments import translation
from experiments.learned import groups_of
from experiments.translation import training_run
from repro.harness.about import read_about
from repro.harness.spec import ON_CPU, Experiment, Scale

NAME = "figure3"


class Sizes(NamedTuple):
    languages: tuple[str, ...]
    seeds: int
    N: int
    steps: int  # updates of the multilingual models
    own_steps: int  # and of each baseline
    decoded: int


SIZES_OF: dict[Scale, Sizes] = {
    "smoke": Sizes(translation.ONE_A_TIER, 1, 8, 3, 3, 4),
    "laptop": Sizes(translation.TOY, 3, 32, 150, 75, 16),
    "paper": Sizes(translation.OPUS, 1, 2048, 500_000, 100_000, 500),
}
SIZES_OF["node"] = SIZES_OF["paper"]
WIDE, DEEP = 1, 2  # places among the sizes of the two with as many parameters
MULTILINGUAL, BILINGUAL = "multilingual", "bilingual"  # groups
ABOUT = read_about(__file__)


def experiment(scale: Scale = "laptop") -> Experiment:
    """BLEU of five multilingual models over that of a baseline for each language.

    Paper: section 5 of v5, Figure 3. One model for all languages, five sizes T(L, H, A) cut into 2,
    4, 8 and 16 partitions; that of the smallest is not stated. Larger models translate all
    languages better, and those with little data gain most. At 1.3B parameters the deep model equals
    the wide one where there is much data, and is much better where there is little.
    """
    on_cpu, of = scale in ON_CPU, SIZES_OF[scale]
    common = {"N": of.N, "M": 2 if on_cpu else translation.PAPER_M, "decode": of.decoded}
    sizes = [(size, 2) for size in translation.SIZES] if on_cpu else translation.PAPER_CUTS
    own, own_K = (translation.SIZES[0], 2) if on_cpu else (translation.TRANSFORMER_BIG, 1)
    multilingual = [
        training_run(scale, size, of.languages, K=K, seed=seed, steps=of.steps, **common)
        for seed, (size, K) in product(range(of.seeds), sizes)
    ]
    bilingual = [
        training_run(scale, own, (language,), K=own_K, seed=seed, steps=of.own_steps, **common)
        for seed, language in product(range(of.seeds), of.languages)
    ]
    return Experiment(
        **ABOUT.of_experiment,
        paper="Figure 3",
        neurips="Figure 3",
        needs="any machine" if on_cpu else "16 GPUs, and OPUS-100",
        minutes={"smoke": 0.4, "laptop": 5},
        rounds=1,
        groups=(
            *groups_of(scale, MULTILINGUAL, multilingual),
            *groups_of(scale, BILINGUAL, bilingual),
        ),
    )
