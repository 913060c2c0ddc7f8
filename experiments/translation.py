"""What the experiments with translation share: languages, sizes T(L, H, A), and how they train."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from experiments.learned import LEARN, VALIDATIONS, recompute, to_rest
from repro.data.languages import LANGUAGES
from repro.harness.spec import ON_CPU, RunSpec, Scale, Training
from repro.paper.numbers import translation_models
from repro.train.recipe import translation

TOY = tuple(f"toy:{name}" for name in LANGUAGES)
# OPUS-100, without the five languages that have no test set: an, dz, hy, mn, yo.
_OPUS = (
    "af am ar as az be bg bn br bs ca cs cy da de el eo es et eu fa fi fr fy ga gd gl gu ha he hi "
    "hr hu id ig is it ja ka kk km kn ko ku ky li lt lv mg mk ml mr ms mt my nb ne nl nn no oc or "
    "pa pl ps pt ro ru rw se sh si sk sl sq sr sv ta te tg th tk tr tt ug uk ur uz vi wa xh yi zh "
    "zu"
)
OPUS = tuple(f"opus100:{code}-en" for code in _OPUS.split())

# Sub-words and tokens of a sentence: nearly every word of a toy language is one token.
_ONE_LANGUAGE: dict[str, Any] = {"V": 1200, "S": 20, "T": 20}
_ALL_LANGUAGES: dict[str, Any] = {"V": 3000, "S": 32, "T": 24}
TEMPERATURE = 5.0  # the paper does not state it
# The paper states the vocabulary, and not the tokens of a sentence.
_PAPER: dict[str, Any] = {"V": 64000, "S": 128, "T": 128}
PAPER_M = 64  # so that a micro-batch of 2048 sentences has 32; the paper does not state it


class Size(NamedTuple):
    """T(L, H, A): L encoder and L decoder layers, feed-forward width H, A heads."""

    L: int
    H: int
    A: int

    def __str__(self) -> str:
        return f"T({self.L}, {self.H}, {self.A})"


# Small ones: the second, which is wide, and the third, which is deep, have as many parameters.
SIZES = (Size(1, 32, 1), Size(1, 128, 4), Size(2, 64, 2), Size(2, 256, 4))
# The paper's, of which the same holds.
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
    arm: str,
    N: int,
    steps: int,
    decode: int,
    data: Mapping[str, Any] | None = None,
    many: bool = False,
    dropout: float | None = None,
    stops: bool = False,
    K: int = 1,
    M: int = 1,
) -> RunSpec:
    """One translation model of some languages into English; `decode` test sentences of each.

    Args:
        data: further fields of `TranslationTask`, on a CPU.
        dropout: where it is not the model's own.
        stops: whether it keeps the weights of its lowest validation loss on GPUs too.
        many: on a CPU, whether it has the sub-words of all toy languages, and a rate that stays at
            its peak at first.
    """
    more: dict[str, Any] = {}
    if scale in ON_CPU:
        # The rate is the arm's.
        warmed_up = translation(lr=1.0, warm_up=min(100, steps // 10))
        recipe = to_rest(warmed_up, steps, stable=many)
        tokens = _ALL_LANGUAGES if many else _ONE_LANGUAGE
        width = {"d": 64, "head_dim": 16}
        more |= data or {}
        if many:
            more |= {"vocabulary_of": [*TOY], "vocabulary_pairs": 8000}
    else:
        recipe, tokens, width = translation(), _PAPER, {"d": 1024}
    model: dict[str, Any] = {**size._asdict(), **width, **tokens}
    if dropout is not None:
        model["dropout"] = dropout
    if len(languages) > 1:
        more["temperature"] = TEMPERATURE
    return RunSpec(
        **LEARN,
        model="translation",
        model_args=model,
        K=K,
        M=M,
        N=N,
        steps=steps,
        checkpoint=recompute(scale),
        training=Training(
            data=languages,
            data_args={"vocabulary": tokens["V"], "S": tokens["S"], "T": tokens["T"], **more},
            recipe=recipe.model_dump(),
            decode=decode,
            arm=arm,
            validations=min(VALIDATIONS, steps) if scale in ON_CPU or stops else 0,
        ),
    )
