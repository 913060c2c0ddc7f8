"""What the experiments that train models to a quality share: arms, learning rates, comparisons.

An arm is a way to train. These rules hold for all of them; `docs/notes/trainings.md` names those
that are younger than some of the results:

- Each arm has the learning rate, out of those it tries, with the lowest mean validation loss over
  the tuning seeds; where the edge of the grid wins, the grid is extended. An arm with another rate,
  or one at an edge, counts for nothing. Controls have the rate of the arm that they are held
  against. Test data decides nothing.
- A run keeps the weights of the lowest of its `VALIDATIONS` validation losses.
- In Table 4 the validation error stands for that loss: with few images the loss from scratch is
  lowest at first, while the error still falls. A fall by one image in the mean over seeds is none.
- The rate falls exponentially to less than a hundredth, so that trainings come to rest. In Table 5
  it does so from the start; in the others, which were tuned later, after half of the updates.
- An arm has converged if the lowest validation loss falls by less than `STILL` over the last fifth
  of the updates, in the mean over seeds. Under a falling rate that says that it is at rest, and not
  that longer trainings end alike. It has not if most seeds keep the weights of their first
  validation, since an earlier one might have been lower.
- An arm of which any language is above `SATURATED` BLEU has nothing left to gain.
- A comparison is paired by seed, with Student's t interval of 95 %. Quality and loss must agree.
- A claim counts only if all five seeds have its arms, every rate of the plan was tried, its arms
  have converged, and the controls of the experiment show what they must.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeVar

from repro.harness.spec import ON_CPU, SIZES_AT, Group, RunSpec, Scale
from repro.train.recipe import Recipe

LEARN: dict[str, Any] = {"task": "learn", "balance": "parameters", "trace": False}
# Seeds of the runs that a table shows, and of those that choose a learning rate.
SEEDS: dict[Scale, Sequence[int]] = {"smoke": [0], "laptop": [0], "overnight": [*range(5)]}
TUNING_SEEDS = (100, 101)
VALIDATIONS = 20
STILL = 0.02
ONE_IMAGE = 0.003  # what it adds to a validation error, of 357 digits or 400 symbols, rounded up
SATURATED = 95.0
Sizes = TypeVar("Sizes")  # of a scale


def recompute(scale: Scale) -> Literal["always", "never"]:
    """Small models keep their activations: the same bits of the weights, in less time."""
    return "never" if scale in ON_CPU else "always"


def at(scale: Scale, sizes: Mapping[Scale, Sizes]) -> Sizes:
    """The sizes of a scale, or of the one whose sizes it takes."""
    return sizes[scale if scale in sizes else SIZES_AT[scale]]


def to_rest(recipe: Recipe, steps: int, *, stable: bool = True) -> Recipe:
    """The recipe with a rate that falls at every hundredth of the updates.

    It stays at its peak for half of them and then falls by 20 %, or it falls by 6 % from the start.
    """
    falling = {"schedule": "exponential", "decay_steps": max(1, steps // 100)}
    how = {"stable": steps // 2, "decay": 0.8} if stable else {"decay": 0.94}
    return recipe.model_copy(update=falling | how)


def beside(chosen: float) -> list[float]:
    """The chosen rate and those beside it in a grid of which each is twice the last."""
    return [chosen / 2, chosen, 2 * chosen]


class Arm(NamedTuple):
    """A way to train, which its run shows with one seed."""

    run: RunSpec
    rate: float | None = None  # the chosen one; None: that of the run
    tried: Sequence[float] = ()
    others: Sequence[RunSpec] = ()  # with another dropout, which tuning tried too

    @property
    def name(self) -> str:
        assert self.run.training is not None
        return self.run.training.arm

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
    """The runs of the arms; at scale overnight those that choose the rates stand before them."""
    seeds = SEEDS.get(scale, [0])
    # Two seeds of an arm side by side take as long, and what each begins with is made once.
    pairs = [seeds[start : start + 2] for start in range(0, len(seeds), 2)]
    trainings = [run for pair in pairs for arm in arms for run in arm.trainings(pair)]
    runs = {"trainings": trainings}
    if scale == "overnight":
        runs = {"tuning": [run for arm in arms for run in arm.tuning()]} | runs
    return tuple(Group(name=name, runs=tuple(of)) for name, of in runs.items())
