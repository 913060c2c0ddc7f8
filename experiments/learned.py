"""What the experiments that train models to a quality share: arms, learning rates, models.

An arm is a way to train. It has the learning rate, out of those it tries, with the lowest mean
validation loss over the tuning seeds; where the edge of the grid wins, the grid is extended. A
control has the rate of the arm that it is compared with. Test data decides nothing. A run keeps the
weights of the lowest of its `VALIDATIONS` validation losses; in Table 4 the error stands for the
loss. How arms are compared is in `repro.experiments.compared`.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from repro.data.languages import LANGUAGES
from repro.data.registry import DATA
from repro.harness.spec import ON_CPU, Group, RunSpec, Scale, Training
from repro.paper.numbers import translation_models
from repro.train.recipe import Recipe, imagenet, translation

LEARN: dict[str, Any] = {"task": "learn", "balance": "parameters", "trace": False}
# Scales whose trainings show that training runs, and nothing else: they make a few updates. Those
# of minutes would not converge either, so no claim could rest on them.
BRIEF: tuple[Scale, ...] = ("smoke", "laptop")
# Seeds at scale overnight, of the runs that a table shows and of those that choose a learning rate.
SEEDS, TUNING_SEEDS = (0, 1, 2, 3, 4), (100, 101)
VALIDATIONS = 20
ORDER, HALF = "another order", "half of the updates"  # controls of translation models


def recompute(scale: Scale) -> Literal["always", "never"]:
    """Small models keep their activations: the same bits of the weights, in less time."""
    return "never" if scale in ON_CPU else "always"


def to_rest(recipe: Recipe, steps: int, *, stable: bool = True) -> Recipe:
    """The recipe with a rate that falls at every hundredth of the updates, so that it converges.

    It stays at its peak for half of them and then falls by 20 %, or it falls by 6 % from the start.
    """
    falling = {"schedule": "exponential", "decay_steps": max(1, steps // 100)}
    how = {"stable": steps // 2, "decay": 0.8} if stable else {"decay": 0.94}
    return recipe.model_copy(update=falling | how)


def beside(chosen: float) -> list[float]:
    """The chosen rate and its neighbours in a grid in which each is twice the last."""
    return [chosen / 2, chosen, 2 * chosen]


class Arm(NamedTuple):
    """A way to train, which its run shows with one seed."""

    run: RunSpec
    rate: float | None = None  # the chosen one; None: that of the run
    tried: Sequence[float] = ()
    others: Sequence[RunSpec] = ()  # with another dropout, which tuning tried too

    def trainings(self, seeds: Iterable[int]) -> list[RunSpec]:
        return [_with(self.run, seed, self.rate) for seed in seeds]

    def tuning(self) -> list[RunSpec]:
        runs = [(self.run, rate) for rate in self.tried]
        runs += [(other, self.rate) for other in self.others]
        return [
            _with(run, seed, rate, tuning=True, decode=0)
            for run, rate in runs
            for seed in TUNING_SEEDS
        ]


def _with(run: RunSpec, seed: int, rate: float | None, **changed: Any) -> RunSpec:
    training = run.training
    assert training is not None
    if rate is not None:
        changed["recipe"] = training.recipe | {"lr": rate}
    training = training.model_copy(update=changed)
    return run.model_copy(update={"seed": seed, "training": training})


def groups_of(scale: Scale, arms: Sequence[Arm]) -> tuple[Group, ...]:
    """The runs of the arms; at scale overnight after those that choose the rates."""
    if scale in BRIEF:
        arms = arms[:2]  # one for each core of a small machine
    seeds = SEEDS if scale == "overnight" else SEEDS[:1]
    # Two seeds of an arm side by side take as long, and what each begins with is made once.
    pairs = [seeds[start : start + 2] for start in range(0, len(seeds), 2)]
    trainings = [run for pair in pairs for arm in arms for run in arm.trainings(pair)]
    runs = {"trainings": trainings}
    if scale == "overnight":
        runs = {"tuning": [run for arm in arms for run in arm.tuning()]} | runs
    return tuple(Group(name=name, runs=tuple(of)) for name, of in runs.items())


# ---- Images: AmoebaNet-B(L, D), on a CPU with few and small images ----

SMALL: dict[str, Any] = {"L": 3, "image": 16, "bn_momentum": 0.1}
# Filters D -> the learning rate of Figure 1, chosen by its tuning runs at scale overnight.
RATES = {8: 0.005, 12: 0.01, 16: 0.005, 24: 0.01}


def small_training(data: str, data_args: dict[str, Any], steps: int, rate: float = 1.0) -> Training:
    """Of an AmoebaNet-B on a CPU; a rate of 1 is replaced by that of the arm."""
    recipe = to_rest(Recipe(lr=rate, optimizer="adam"), steps).model_dump()
    validations = min(VALIDATIONS, steps)
    return Training(data=(data,), data_args=data_args, recipe=recipe, validations=validations)


def large_training(data: str, augment: str, N: int) -> Training:
    """Of an AmoebaNet-B as the paper has it, with the authors' recipe for ImageNet."""
    recipe = imagenet(N, DATA[data].examples[0]).model_dump()
    return Training(data=(data,), data_args={"augment": augment}, recipe=recipe)


# ---- Translation: languages, and models T(L, H, A) of them into English ----

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
_PAPER: dict[str, Any] = {"V": 64000, "S": 128, "T": 128}  # which states V alone
TEMPERATURE = 5.0  # the paper does not state it
DECODED: dict[Scale, int] = {**dict.fromkeys(BRIEF, 8), "overnight": 500}  # sentences, of Table 5


class Size(NamedTuple):
    """T(L, H, A): L encoder and L decoder layers, feed-forward width H, A heads."""

    L: int
    H: int
    A: int

    def __str__(self) -> str:
        return f"T({self.L}, {self.H}, {self.A})"


# Small ones: the second, which is wide, and the third, which is deep, have as many parameters.
SIZES = (Size(1, 32, 1), Size(1, 128, 4), Size(2, 64, 2), Size(2, 256, 4))
# The paper's, of which the same holds, with the number of partitions; that of the first is ours.
PAPER_CUTS = [(Size(row.L, row.H, row.A), row.partitions or 1) for row in translation_models()]
TRANSFORMER_BIG = Size(6, 4096, 16)  # of the Transformer's authors; the paper names it


def training_run(
    scale: Scale,
    size: Size,
    languages: tuple[str, ...],
    *,
    arm: str,
    N: int,
    steps: int,
    decode: int,
    data: Mapping[str, Any],
    many: bool = False,
    dropout: float | None = None,
    K: int = 1,
    M: int = 1,
) -> RunSpec:
    """One translation model of some languages into English; `decode` test sentences of each.

    Args:
        data: further fields of `TranslationTask`, on a CPU alone.
        dropout: where it is not the model's own.
        many: on a CPU, whether it has the sub-words of all toy languages, and a rate that stays at
            its peak at first.
    """
    recipe, tokens, width, more = translation(), _PAPER, {"d": 1024}, {}
    if scale in ON_CPU:
        # The rate is the arm's.
        warmed_up = translation(lr=1.0, warm_up=min(100, steps // 10))
        recipe = to_rest(warmed_up, steps, stable=many)
        tokens = _ALL_LANGUAGES if many else _ONE_LANGUAGE
        width = {"d": 64, "head_dim": 16}
        more = {**data, "vocabulary_of": [*TOY], "vocabulary_pairs": 8000} if many else {**data}
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
        recompute=recompute(scale),
        training=Training(
            data=languages,
            data_args={"vocabulary": tokens["V"], "S": tokens["S"], "T": tokens["T"], **more},
            recipe=recipe.model_dump(),
            decode=decode,
            arm=arm,
            validations=min(VALIDATIONS, steps),
        ),
    )


def one_language(scale: Scale, arm: str, N: int, steps: int, **data: Any) -> RunSpec:
    """A model of Table 5: of German to English, or of a made-up language on a CPU."""
    on_cpu = scale in ON_CPU
    return training_run(
        scale,
        Size(1, 128, 4) if on_cpu else TRANSFORMER_BIG,
        ("toy:alfa",) if on_cpu else ("wmt14-de-en",),
        arm=arm,
        N=N,
        steps=steps,
        decode=DECODED.get(scale, 3003),
        K=1 if on_cpu else 4,
        M=1 if on_cpu else 256,  # so that a micro-batch of the largest N has 128 sentences
        data={"pairs": 60_000, "misaligned": 0.2, **data},
    )
