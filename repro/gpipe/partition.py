"""Cut a chain of L layers into K stages so that the costliest stage is as cheap as possible.

The paper's partitioner minimises the variance of the stages' costs and calls that a heuristic (section 2.2); the
step time of a synchronous pipeline follows its slowest stage, so the smallest largest stage is what we minimise.
"""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise


def partition(cost: Callable[[int, int], float], layers: int, stages: int, *, monotone: bool = False) -> list[int]:
    """The exact optimum, by dynamic programming over prefixes of the chain.

    Args:
        cost: cost(a, b) of one stage made of layers a to b-1; any numbers.
        layers: L.
        stages: K.
        monotone: promise that growing an interval never makes it cheaper: O(K L log L) calls instead of O(K L^2).

    Returns:
        Layers in each stage; K positive numbers that sum to L.

    Raises:
        ValueError: if K > L, since every stage needs a layer.
    """
    if not 1 <= stages <= layers:
        raise ValueError(
            f"stages={stages}: the model has {layers} layers and every stage needs at least one; "
            f"choose K between 1 and {layers}"
        )
    best = [float("inf")] + [cost(0, b) for b in range(1, layers + 1)]
    choices: list[list[int]] = []
    for k in range(2, stages + 1):
        row, choice = [float("inf")] * (layers + 1), [0] * (layers + 1)
        for b in range(k, layers + 1):
            options = _crossing(best, cost, k - 1, b) if monotone else range(k - 1, b)
            row[b], choice[b] = min((max(best[a], cost(a, b)), a) for a in options)
        best = row
        choices.append(choice)
    ends = [layers]
    for choice in reversed(choices):
        ends.append(choice[ends[-1]])
    return [b - a for a, b in pairwise([0, *reversed(ends)])]


def _crossing(best: Sequence[float], cost: Callable[[int, int], float], low: int, b: int) -> list[int]:
    """`best` rises with a and cost(a, b) falls: the optimum is where they cross, or one before it."""
    cross = low + bisect_left(range(low, b), True, key=lambda a: best[a] >= cost(a, b))
    return [a for a in (cross - 1, cross) if low <= a < b]


def by_cost(costs: Sequence[float], stages: int) -> list[int]:
    """`partition` for costs that add up, one for each layer."""
    total = [0.0, *accumulate(costs)]
    return partition(lambda a, b: total[b] - total[a], len(costs), stages, monotone=True)


def imbalance(costs: Sequence[float], balance: Sequence[int]) -> float:
    """Largest stage over mean stage, minus 1; 0 is perfect."""
    ends = [0, *accumulate(balance)]
    stages = [sum(costs[a:b]) for a, b in pairwise(ends)]
    mean = sum(stages) / len(stages)
    return max(stages) / mean - 1.0 if mean else 0.0


def check_balance(balance: Sequence[int], layers: int, stages: int) -> list[int]:
    """An explicit list of layers per stage, checked.

    Raises:
        ValueError: if it does not have K entries, does not sum to L, or has an empty stage.
    """
    counts: list[int] = [*balance] if isinstance(balance, Sequence) else [balance]
    if not all(isinstance(n, int) for n in counts) or len(counts) != stages or sum(counts) != layers or min(counts) < 1:
        raise ValueError(
            f"balance={counts}: needs {stages} positive numbers that sum to the model's {layers} layers; "
            "try balance='time' or balance='parameters'"
        )
    return counts
