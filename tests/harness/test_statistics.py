import json
import math
import random
from collections.abc import Hashable, Sequence
from pathlib import Path
from statistics import fmean, median

import pytest

from repro.harness.statistics import MIN_BLOCKS, decided, interval_of_sets, ratio

Logs = list[float]  # of a ratio in the blocks of a round


def test_ratios_are_taken_inside_rounds_that_have_both():
    """The machine slows down threefold in round 2; inside each round the ratio is 2."""
    base: dict[Hashable, list[float]] = {1: [1.0], 2: [1 / 3], 3: [1.0], 4: [1.0], 5: [1.0]}
    twice: dict[Hashable, list[float]] = {n: [2 * each[0]] for n, each in base.items()}
    assert ratio(twice, base) == (2, 2, 2, 5)
    assert ratio(twice | {6: [9.0]}, base | {7: [9.0]}) == (2, 2, 2, 5)


def test_ratios_are_taken_inside_blocks_and_of_each_where_the_other_was_measured_in_turn():
    base: dict[Hashable, list[float]] = {1: [1.0, 5.0, 2.0], 2: [3.0, 1.0]}
    assert ratio({1: [2.0, 10.0, 4.0], 2: [6.0, 2.0]}, base) == (2, 2, 2, 5)
    assert ratio({1: [4.0], 2: [6.0, 2.0]}, base)[::3] == (2, 5)  # 4, 4/5, 2; 2, 2


def test_the_interval_holds_what_differs_from_set_to_set():
    """Sets are off by 5 %, blocks by 5 % more; one bootstrap of all blocks is too narrow."""
    rng, within, too_narrow = random.Random(0), 0, 0
    for _ in range(20):
        offsets = [rng.gauss(1, 0.05) for _ in range(8)]
        sets = [[rng.gauss(offset, 0.05) for _ in range(20)] for offset in offsets]
        _, low, high = interval_of_sets(sets)
        within += low <= 1 <= high
        _, low, high = interval_of_sets([[value for each in sets for value in each]])
        too_narrow += not low <= 1 <= high
    assert within >= 17
    assert too_narrow >= 5


@pytest.mark.parametrize("values", [[2.0], [2.0, 2.0], [1.0, 2.0, 3.0], [1.0, 2.0, 2.0, 3.0]])
def test_too_few_rounds_have_no_interval_and_none_no_median(values: list[float]):
    assert interval_of_sets([[value] for value in values])[0] == 2.0
    assert all(math.isnan(x) for x in interval_of_sets([[value] for value in values])[1:])
    assert all(math.isnan(x) for x in interval_of_sets([]))
    assert not decided(values)
    assert all(math.isnan(x) for x in over_one([[*map(math.log, values)]], stopped=True)[1:3])


def test_a_ratio_is_decided_when_it_is_clear_of_1():
    steady = [0.01, -0.01] * 10
    assert next(n for n in range(20) if decided([0.3 + each for each in steady[:n]])) == MIN_BLOCKS
    assert decided([each - 0.3 for each in steady])
    assert not decided(steady)
    assert not decided([0.04 + each for each in steady])  # clear of 1, and too near


def over_one(rounds: Sequence[Logs], *, stopped: bool) -> tuple[float, float, float, int]:
    values: dict[Hashable, Logs] = {n: [*map(math.exp, logs)] for n, logs in enumerate(rounds)}
    ones: dict[Hashable, Logs] = {n: [1.0] * len(logs) for n, logs in values.items()}
    return ratio(values, ones, stopped=stopped)


def test_a_confidence_sequence_holds_after_every_block():
    rng, sequences, missed = random.Random(0), 300, 0
    for _ in range(sequences):
        logs = [rng.gauss(0.2, 0.05) for _ in range(30)]
        looks = (5, 6, 7, 8, 10, 12, 15, 20, 25, 30)
        ends = [over_one([logs[:n]], stopped=True)[1:3] for n in looks]
        missed += any(not low <= math.exp(0.2) <= high for low, high in ends)
    assert missed <= at_most(0.01, sequences)


def at_most(share: float, n: int) -> float:
    """Of n: three standard errors above the share."""
    return n * share + 3 * math.sqrt(n * share * (1 - share))


def measured(rounds: Sequence[Logs]) -> tuple[float, float, float, int]:
    """The ratio as it is shown, if each round stops when it is decided."""
    lengths = [range(MIN_BLOCKS, len(logs)) for logs in rounds]
    taken = [
        logs[: next((n for n in several if decided(logs[:n])), len(logs))]
        for logs, several in zip(rounds, lengths, strict=True)
    ]
    return over_one(taken, stopped=[*map(len, taken)] != [*map(len, rounds)])


def side(estimate: tuple[float, float, float, int]) -> int:
    return (estimate[1] > 1) - (estimate[2] < 1)


@pytest.fixture(scope="module")
def ratios() -> list[list[Logs]]:
    """Of measured runs, each in three rounds of eight blocks or more, none of which stopped early.

    They were recorded on two machines (commit c8ec37e3dc).
    """
    return json.loads((Path(__file__).parent / "recorded_ratios.json").read_text("utf-8"))


def test_equal_runs_are_called_different_in_about_one_of_twenty(ratios):
    """Two rounds of fifteen blocks, with what recorded blocks and rounds are off by.

    Stretches of three blocks are drawn from what the blocks of a ratio differ by from the median of
    their round. Rounds differ too, by a third of what their medians do: the rest of that is chance,
    by the variance of blocks, which the drawn blocks have themselves.
    """
    rng, sequences = random.Random(0), 300
    different = 0
    for _ in range(sequences):
        sets = rng.choice(ratios)
        whole = median(value for each in sets for value in each)
        off = [value - median(each) for each in sets for value in each]
        rounds = []
        for _round in range(2):
            starts = [rng.randrange(len(off)) for _ in range(5)]
            drawn = [off[(start + n) % len(off)] for start in starts for n in range(3)]
            shift = math.sqrt(1.5) / 3 * (median(rng.choice(sets)) - whole)
            sign = rng.choice((1, -1))
            rounds.append([sign * (shift + value) for value in drawn])
        different += side(measured(rounds)) != 0
    assert different <= at_most(0.06, sequences)


def test_recorded_ratios_keep_their_side_with_fewer_blocks(ratios):
    """Their blocks as two rounds. The sides are those of the bootstrap over all blocks."""
    sides, blocks = [], []
    for sets in ratios:
        chain = [value for each in sets for value in each]
        half = len(chain) // 2
        found = measured([chain[:half], chain[half:]])
        sides.append((side(over_one(sets, stopped=False)), side(found)))
        blocks.append(found[3] / len(chain))
    decided_before = [(before, after) for before, after in sides if before]
    assert sum(before == after for before, after in decided_before) >= 0.95 * len(decided_before)
    assert (1, -1) not in sides
    assert (-1, 1) not in sides
    assert fmean(blocks) < 0.75
