"""What the experiments with translation share: languages, sizes T(L, H, A), and how they train."""

from typing import Any, NamedTuple

from experiments.learned import LEARN, recompute
from repro.data.languages import LANGUAGES
from repro.harness.spec import ON_CPU, TINY, RunSpec, Scale, Training
from repro.paper.numbers import translation_models
from repro.train.recipe import translation

TOY = tuple(f"toy:{name}" for name in LANGUAGES)
ONE_A_TIER = ("toy:alfa", "toy:delta", "toy:india")
# OPUS-100, without the five languages that have no test set: an, dz, hy, mn, yo.
_OPUS = (
    "af am ar as az be bg bn br bs ca cs cy da de el eo es et eu fa fi fr fy ga gd gl gu ha he hi "
    "hr hu id ig is it ja ka kk km kn ko ku ky li lt lv mg mk ml mr ms mt my nb ne nl nn no oc or "
    "pa pl ps pt ro ru rw se sh si sk sl sq sr sv ta te tg th tk tr tt ug uk ur uz vi wa xh yi zh "
    "zu"
)
OPUS = tuple(f"opus100:{code}-en" for code in _OPUS.split())

# Small models, on one core a few ms a sentence: nearly every word of a toy language is one token.
_SMALL_V, _SMALL_T = 1200, 20
_SMALL: dict[str, Any] = {"d": 64, "head_dim": 16, "V": _SMALL_V, "S": _SMALL_T, "T": _SMALL_T}
TEMPERATURE = 5.0  # the paper does not state it
PAPER_T = 128  # tokens of a sentence; the paper does not state it
PAPER_M = 64  # so that a micro-batch of 2048 sentences has 32; the paper does not state it


class Size(NamedTuple):
    """T(L, H, A): L encoder and L decoder layers, feed-forward width H, A heads."""

    L: int
    H: int
    A: int

    def __str__(self) -> str:
        return f"T({self.L}, {self.H}, {self.A})"


# The paper's five sizes, and five with the same steps from one to the next: the second and third
# have equally many parameters, and the first of these is wide and the other one deep.
SIZES = (Size(1, 256, 4), Size(1, 512, 8), Size(2, 256, 4), Size(2, 512, 8), Size(4, 512, 8))
PAPER_SIZES = (
    Size(6, 8192, 16),
    Size(12, 16384, 32),
    Size(24, 8192, 16),
    Size(32, 16384, 32),
    Size(64, 16384, 32),
)
# With the partitions of each; the paper does not state those of its smallest model.
PAPER_CUTS = [
    (size, printed.partitions or 1)
    for size, printed in zip(PAPER_SIZES, translation_models(), strict=True)
]
TRANSFORMER_BIG = Size(6, 4096, 16)  # of the Transformer's authors; the paper names it


def size_of(spec: RunSpec) -> Size:
    return Size(*(spec.model_args[name] for name in Size._fields))


def training_run(
    scale: Scale,
    size: Size,
    languages: tuple[str, ...],
    *,
    N: int,
    steps: int,
    seed: int,
    decode: int,
    K: int = 2,
    M: int = 2,
    warm_up: int = 20,
) -> RunSpec:
    """One translation model of some languages into English; `decode` test sentences of each.

    `warm_up` is of the learning rate, on a CPU alone.
    """
    if scale in ON_CPU:
        recipe = translation(lr=0.006, warm_up=warm_up)
        text: dict[str, Any] = {"vocabulary": _SMALL_V, "S": _SMALL_T, "T": _SMALL_T, "test": 64}
        # All models share one vocabulary, which is learnt once in a process.
        text["vocabulary_of"] = list(ONE_A_TIER if scale in TINY else TOY)
        model = _SMALL
    else:
        recipe = translation()
        text = {"vocabulary": 64000, "S": PAPER_T, "T": PAPER_T}
        model = {"d": 1024, "V": 64000, "S": PAPER_T, "T": PAPER_T}
    return RunSpec(
        **LEARN,
        model="translation",
        model_args={**size._asdict(), **model},
        K=K,
        M=M,
        N=N,
        steps=steps,
        seed=seed,
        checkpoint=recompute(scale),
        training=Training(
            data=languages,
            data_args={**text, "temperature": TEMPERATURE},
            recipe=recipe.model_dump(),
            decode=decode,
        ),
    )
