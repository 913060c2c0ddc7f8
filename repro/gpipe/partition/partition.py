"""Cut a chain of L layers into K stages of consecutive layers.

The paper's partitioner minimises the variance of the stages' costs and calls that a heuristic
(section 2.2). The step time of a synchronous pipeline follows its slowest stage, so by default we
minimise the largest cost of a stage.

Every rule takes cost(a, b), the cost of a stage made of layers a to b-1, in any unit. Costs need
not add up, since a stage also sends messages. A rule returns the number of layers in each stage, K
positive numbers that sum to L. It raises a ValueError if K > L, or if a cost is no number from 0 to
1e30. The exact rules call `cost` once for each of the L (L+1) / 2 intervals and take
O(K L^2) steps on arrays.
"""

import math
from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise

import torch
from torch import Tensor

from repro.gpipe.errors import within
from repro.gpipe.partition.layer_costs import MOST
from repro.io.untrusted import short

Cost = Callable[[int, int], float]
# Costs that differ by less are equal, since sums of floats differ in their last digits.
_EQUAL = 1 + 1e-9


def smallest_largest(cost: Cost, layers: int, stages: int) -> list[int]:
    """The cut with the smallest largest stage; among equals the least sum of squares."""
    table = _table(cost, layers, stages)
    best = table[0]  # [L+1]: the largest stage of the best cut of layers 0 to b-1
    for _ in range(stages - 1):
        best = torch.maximum(best[:, None], table).amin(0)
    return _least_squares(table.masked_fill(table > best[-1] * _EQUAL, math.inf), stages)


def minimum_variance(cost: Cost, layers: int, stages: int) -> list[int]:
    """The paper's rule: the least variance of the K stage costs.

    It minimises their sum of squares, which is the same where costs add up. Otherwise the variance
    alone would favour cuts that make all stages equally expensive.
    """
    return _least_squares(_table(cost, layers, stages), stages)


def cumulative_share(cost: Cost, layers: int, stages: int) -> list[int]:
    """Lingvo's rule (`PartitionSequentialLayers`): layer i goes to stage floor(K x share).

    The share is that of layers 0 to i, with layer i, in the cost of all layers. Where a layer is
    expensive, Lingvo leaves stages empty; here such a stage takes the nearest layer.
    """
    check_stages(layers, stages)
    running = list(accumulate(_number(cost, i, i + 1) for i in range(layers)))
    if running[-1] == 0:  # there are no shares, so cut into equal counts
        return _least_squares(_table(lambda _a, _b: 0.0, layers, stages), stages)
    stage_of_layer = [int(stages * total / running[-1]) for total in running]
    ends = [0]
    for j in range(1, stages):
        wanted = sum(stage < j for stage in stage_of_layer)
        least, most = ends[-1] + 1, layers - (stages - j)  # no stage is empty
        ends.append(min(max(wanted, least), most))
    return _counts([*ends, layers])


SMALLEST_LARGEST = "smallest-largest"
PARTITIONERS: dict[str, Callable[[Cost, int, int], list[int]]] = {
    SMALLEST_LARGEST: smallest_largest,
    "minimum-variance": minimum_variance,
    "cumulative-share": cumulative_share,
}


def additive(costs: Sequence[float]) -> Cost:
    """The interval cost of layers whose costs add up."""
    total = [0, *accumulate(costs)]
    return lambda a, b: total[b] - total[a]


def check_stages(layers: int, stages: int) -> None:
    """Raise a ValueError unless K is a whole number between 1 and L."""
    if isinstance(stages, bool) or not isinstance(stages, int) or not 1 <= stages <= layers:
        raise ValueError(
            f"stages={stages!r}: the model has {layers} layers and every stage needs at least one; "
            f"choose K between 1 and {layers}"
        )


def _number(cost: Cost, a: int, b: int) -> float:
    value = cost(a, b)
    if not within(value, 0, MOST):  # sums and squares of costs stay finite
        raise ValueError(
            f"balance: the cost of a stage of layers {a} to {b - 1} is {short(value)}; it must be "
            f"a number from 0 to {MOST:g}"
        )
    return float(value)


def _table(cost: Cost, layers: int, stages: int) -> Tensor:
    """[L+1, L+1]: cost(a, b) at (a, b), infinite where no layer lies between."""
    check_stages(layers, stages)
    rows = [
        [math.inf] * (a + 1) + [_number(cost, a, b) for b in range(a + 1, layers + 1)]
        for a in range(layers + 1)
    ]
    return torch.tensor(rows, dtype=torch.float64, device="cpu")


def _least_squares(table: Tensor, stages: int) -> list[int]:
    """The cut with the least sum of squared costs, among those without an infinite stage.

    Among equals it is the one with the least sum of squared layer counts, so that layers without
    cost are spread evenly. Among equals of these, earlier stages take more layers.
    """
    layers = len(table) - 1
    position = torch.arange(layers + 1, dtype=torch.float64, device="cpu")
    counts = ((position - position[:, None]) ** 2).masked_fill(table.isinf(), math.inf)
    squares = table**2
    # [L+1] each: the least sums over the cuts of layers 0 to b-1 into the stages so far.
    best, evenest = squares[0], counts[0]
    choices: list[Tensor] = []
    for _ in range(stages - 1):
        sums = best[:, None] + squares
        best = sums.amin(0)
        ties = (evenest[:, None] + counts).masked_fill(sums > best * _EQUAL, math.inf)
        evenest = ties.amin(0)
        choices.append(layers - ties.flip(0).argmin(0))  # flipped, to choose the last of equals
    ends = [layers]
    for choice in reversed(choices):
        ends.append(int(choice[ends[-1]]))
    return _counts([0, *reversed(ends)])


def _counts(ends: Sequence[int]) -> list[int]:
    return [b - a for a, b in pairwise(ends)]
