"""Figure 3 (arXiv:1811.06965v5): multilingual translation against bilingual baselines."""

from experiments.translation import (
    ONE_A_TIER,
    OPUS,
    PAPER_M,
    SIZES,
    TOY,
    TRANSFORMER_BIG,
    groups_of,
    sizes,
    training_run,
)
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
DEVIATIONS = (
    "Laptop: nine made-up languages with 20,000 to 247 training pairs, into English. The paper has "
    "102 languages with 10^9 to 10^4 pairs, which are private, and both directions.",
    "Laptop: five sizes from T(1, 256, 4) to T(4, 512, 8) with d=64, of 0.35 to 1.2 million "
    "parameters. The paper's are T(6, 8192, 16) to T(64, 16384, 32) with d=1024, of 0.4 to 6 "
    "billion. In both the second (wide) and the third (deep) have as many parameters.",
    "The baseline of each language is a model of its own, of the smallest size. The paper's is a "
    "Transformer Big of 350M parameters, a little smaller than its smallest multilingual model.",
    "Laptop: 150 updates of a multilingual model and 75 of each baseline, with 32 sentence pairs "
    "each, chosen by the time they take. So a multilingual model sees fewer pairs of a language "
    "than the baseline does. The paper states no number of updates.",
    "Laptop: BLEU is of the first 16 test sentences of each language, which say the same in all.",
    "Languages are sampled with a temperature of 5. The paper samples by temperature too and does "
    "not state it. On a laptop all models share one vocabulary of up to 1,200 sub-words. At scale "
    "paper each model has the 64k of its own languages; the paper does not say whether its "
    "baselines have the same.",
    "Activations are kept instead of recomputed at laptop scale, which changes no bit of the "
    "weights and takes less time.",
    "Decision rules, fixed before the first run. Size: BLEU of the largest size minus that of the "
    "smallest, over all languages. Transfer: the gain over the baselines in the low tier minus "
    "that in the high tier, with the largest size, paired by place in the tier. Depth: BLEU of the "
    "deep size minus that of the wide one, in the low tier. Each shows as a trend if the 95 % "
    "interval of the mean difference, over languages and seeds, lies above 0.",
    "Scale paper: OPUS-100 stands for the paper's corpus: its 94 languages with a test set, into "
    "English. Mini-batch, updates and M are ours; the paper prints none of them.",
)


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
    M = 2 if on_cpu else PAPER_M
    # The paper does not state the partitions of its smallest model.
    partitions = [2] * len(SIZES) if on_cpu else [m.partitions or 1 for m in translation_models()]
    multilingual = [
        training_run(
            scale,
            size,
            languages,
            N=N[scale],
            steps=multilingual_steps,
            seed=seed,
            decode=DECODED[scale],
            K=K,
            M=M,
        )
        for seed in range(SEEDS[scale])
        for size, K in zip(sizes(scale), partitions, strict=True)
    ]
    bilingual = [
        training_run(
            scale,
            SIZES[0] if on_cpu else TRANSFORMER_BIG,
            (language,),
            N=N[scale],
            steps=bilingual_steps,
            seed=seed,
            decode=DECODED[scale],
            K=2 if on_cpu else 1,
            M=M,
        )
        for seed in range(SEEDS[scale])
        for language in languages
    ]
    return Experiment(
        name=NAME,
        title="Multilingual translation over bilingual baselines",
        question=(
            "Do larger multilingual models translate better, which languages gain over a model of "
            "their own, and is deep better than wide?"
        ),
        paper="Figure 3",
        neurips="Figure 3",
        needs="any machine" if on_cpu else "16 GPUs, and OPUS-100",
        deviations=DEVIATIONS,
        minutes={"smoke": 0.4, "laptop": 5},
        rounds=1,
        groups=(
            *groups_of(scale, MULTILINGUAL, multilingual),
            *groups_of(scale, BILINGUAL, bilingual),
        ),
    )
