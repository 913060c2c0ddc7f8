"""Figure 3 (arXiv:1811.06965v5): multilingual translation against bilingual baselines."""

from itertools import product

from experiments.learned import groups_of
from experiments.translation import (
    ONE_A_TIER,
    OPUS,
    PAPER_M,
    PAPER_SIZES,
    SIZES,
    TOY,
    TRANSFORMER_BIG,
    training_run,
)
from repro.harness.about import read_about
from repro.harness.spec import ON_CPU, Experiment, Scale
from repro.paper import translation_models

NAME = "figure3"
LANGUAGES: dict[Scale, tuple[str, ...]] = {
    "smoke": ONE_A_TIER,
    "laptop": TOY,
    "node": OPUS,
    "paper": OPUS,
}
SEEDS: dict[Scale, int] = {"smoke": 1, "laptop": 3, "node": 1, "paper": 1}
N: dict[Scale, int] = {"smoke": 8, "laptop": 32, "node": 2048, "paper": 2048}
# Updates of the multilingual models, and of each baseline.
STEPS: dict[Scale, tuple[int, int]] = {
    "smoke": (3, 3),
    "laptop": (150, 75),
    "node": (500_000, 100_000),
    "paper": (500_000, 100_000),
}
DECODED: dict[Scale, int] = {"smoke": 4, "laptop": 16, "node": 500, "paper": 500}
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
    on_cpu = scale in ON_CPU
    languages = LANGUAGES[scale]
    multilingual_steps, bilingual_steps = STEPS[scale]
    common = {"N": N[scale], "M": 2 if on_cpu else PAPER_M, "decode": DECODED[scale]}
    # The paper does not state the partitions of its smallest model.
    partitions = [2] * len(SIZES) if on_cpu else [m.partitions or 1 for m in translation_models()]
    sizes = zip(SIZES if on_cpu else PAPER_SIZES, partitions, strict=True)
    own, own_K = (SIZES[0], 2) if on_cpu else (TRANSFORMER_BIG, 1)
    seeds = range(SEEDS[scale])
    multilingual = [
        training_run(scale, size, languages, K=K, seed=seed, steps=multilingual_steps, **common)
        for seed, (size, K) in product(seeds, sizes)
    ]
    bilingual = [
        training_run(scale, own, (language,), K=own_K, seed=seed, steps=bilingual_steps, **common)
        for seed, language in product(seeds, languages)
    ]
    return Experiment(
        name=NAME,
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
