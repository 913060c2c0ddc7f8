"""The inverse problem of Table 2: which unknowns would reproduce its nine cells of a model?

The paper prints neither the mini-batch N of a cell, nor what a micro-batch costs besides its
examples, nor what a step takes before its first action. Here all three are free. If a set of them
reproduces every cell, the table does not identify the cause of a gap.

A step is that of a pipeline of uneven stages that recomputes early. The first micro-batch passes
every stage, the others follow at the pace of the slowest one:

    s + sum F + sum B + (M-1) (max F + max B) + M max R
    F = R = share n + c,  B = 2 share n + c,  n = N / M

in units of one example's forward through the whole model on one device. The shares of the stages
are the simulated ones. c is a cost of each action, whatever the stage.

There are eleven unknowns for eight numbers, so a table of this kind is easily reproduced. As a
control, the same is asked of the table with its cells in reverse order.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from math import nan

import numpy as np

from experiments.table2.predictions import CONTROLLED, Prediction
from experiments.table2.recorded import HEADLINES, titled
from experiments.table2.runs import LARGEST, NAME
from repro.report.grid import Cell, Column, amount, declared, plain
from repro.report.style import model_name
from repro.report.table import EMPTY, Table

WITHIN = 0.15  # of each printed ratio
# c and s: zero, and powers of two, in the unit.
_UNKNOWNS = (0.0, *(2.0**power for power in range(-6, 13)))
_MOST_EXAMPLES = 2048  # in a micro-batch
Place = tuple[int, int]  # K, M


@dataclass(frozen=True)
class Solution:
    """Values of the unknowns, and how far the worst cell is from the printed one.

    Attributes:
        c: cost of each action besides its examples.
        s: cost of each step before its first action.
        N: mini-batch of each cell.
        worst: the largest |ratio over quoted - 1|.
    """

    c: float
    s: float
    N: dict[Place, int]
    worst: float


@dataclass(frozen=True)
class Inverse:
    """The answer for one model under one limit of its mini-batches.

    Attributes:
        best: the unknowns with the smallest worst cell; None where a cell has no mini-batch at all.
        solved: the (c, s) that reproduce all cells.
        tried: how many (c, s) there are.
    """

    model: str
    limit: str
    best: Solution | None
    solved: list[tuple[float, float]]
    tried: int

    @property
    def verdict(self) -> str:
        if self.best is None:
            return "a cell fits no device"
        return "not identified" if self.solved else "not reproduced by any"


def step(shares: Sequence[float], M: int, n: np.ndarray, c: float, s: float) -> np.ndarray:
    """Time of a step for each number n of examples in a micro-batch; see the module.

    Args:
        shares: of each of K stages in the work of the model; they sum to 1.
    """
    K, largest = len(shares), max(shares)
    first = n + K * c + 2 * n + K * c
    slowest_forward, slowest_backward = largest * n + c, 2 * largest * n + c
    following = (M - 1) * (slowest_forward + slowest_backward)
    return s + first + following + M * slowest_forward


def solve(
    quoted: dict[Place, float],
    examples: dict[Place, np.ndarray],
    shares: dict[int, tuple[float, ...]],
    *,
    same_N: bool = False,
) -> tuple[Solution | None, list[tuple[float, float]]]:
    """The best unknowns, and all (c, s) that reproduce every cell within the tolerance.

    Args:
        quoted: the printed ratio of each cell; that of K=2, M=1 is 1.
        examples: numbers of examples in a micro-batch that each cell may have.
        shares: of each stage in the work of the model, for each K.
        same_N: whether all cells must have one mini-batch.
    """
    if any(not len(choices) for choices in examples.values()):
        return None, []
    choose = _same if same_N else _free
    solutions = []
    for c, s in product(_UNKNOWNS, _UNKNOWNS):
        rates = {(K, M): M * n / step(shares[K], M, n, c, s) for (K, M), n in examples.items()}
        N, worst = choose(quoted, examples, rates)
        solutions.append(Solution(c, s, N, worst))
    best = min(solutions, key=lambda solution: solution.worst)
    return best, [(each.c, each.s) for each in solutions if each.worst <= WITHIN]


def _free(
    quoted: dict[Place, float],
    examples: dict[Place, np.ndarray],
    rates: dict[Place, np.ndarray],
) -> tuple[dict[Place, int], float]:
    """The mini-batch of each cell for itself, for the best mini-batch of the base; worst gap."""
    base = rates[2, 1]
    worst = np.zeros(len(base))
    chosen: dict[Place, np.ndarray] = {}
    for place, ratio in quoted.items():
        if place == (2, 1):
            chosen[place] = np.arange(len(base))
            continue
        gaps = np.abs(rates[place][None, :] / base[:, None] / ratio - 1)
        chosen[place] = gaps.argmin(axis=1)
        worst = np.maximum(worst, gaps.min(axis=1))
    at = int(worst.argmin())
    N: dict[Place, int] = {}
    for (K, M), index in chosen.items():
        N[K, M] = M * int(examples[K, M][index[at]])
    return N, float(worst[at])


def _same(
    quoted: dict[Place, float],
    examples: dict[Place, np.ndarray],
    rates: dict[Place, np.ndarray],
) -> tuple[dict[Place, int], float]:
    """The best mini-batch if all cells have the same; and the worst gap."""
    sizes = {
        place: {
            int(place[1] * n): rate for n, rate in zip(examples[place], rates[place], strict=True)
        }
        for place in quoted
    }
    common = set.intersection(*(set(by_N) for by_N in sizes.values()))
    worst = {
        N: max(abs(sizes[place][N] / sizes[2, 1][N] / ratio - 1) for place, ratio in quoted.items())
        for N in common
    }
    best: int = min(worst, key=lambda N: worst[N])
    return dict.fromkeys(quoted, best), float(worst[best])


def answers(cells: list[Prediction]) -> list[Inverse]:
    """Of each model: any mini-batch, those that are counted to fit, and one for all cells."""
    made = []
    for model in dict.fromkeys(cell.model for cell in cells):
        mine = {(cell.K, cell.M): cell for cell in cells if cell.model == model}
        quoted = {place: cell.quoted for place, cell in mine.items()}
        stages = {K: _stages(cell) for (K, M), cell in mine.items() if M == 1}
        if not all(stages.values()):
            continue
        shares = {K: tuple(part / sum(work) for part in work) for K, work in stages.items()}
        reversed_cells = dict(zip(quoted, [1.0, *reversed([*quoted.values()][1:])], strict=True))
        any_N = {place: _examples(place[1], LARGEST["paper"]) for place in quoted}
        fitting = {place: _examples(place[1], _most(mine[place])) for place in quoted}
        for limit, table, examples, same_N in (
            ("any N up to 4096", quoted, any_N, False),
            (f"N that fits ({HEADLINES[model]})", quoted, fitting, False),
            ("one N for all cells", quoted, any_N, True),
            ("control: cells reversed, N that fits", reversed_cells, fitting, False),
        ):
            best, solved = solve(table, examples, shares, same_N=same_N)
            made.append(Inverse(model, limit, best, solved, len(_UNKNOWNS) ** 2))
    return made


def _stages(cell: Prediction) -> list[float]:
    """Seconds of each stage for a micro-batch, by the controlled protocol; empty if not known."""
    controlled = cell.protocols.get(CONTROLLED)
    modelled = controlled.modelled(cell.K, cell.M) if controlled else None
    if modelled is None:
        return []
    stages = modelled.stages
    actions = zip(stages.forward, stages.recompute, stages.backward, strict=True)
    return [sum(parts) for parts in actions]


def _most(cell: Prediction) -> int:
    """The largest mini-batch that the headline counts to fit; 0 where none does."""
    return (cell.headline.N(cell.K, cell.M) or 0) if cell.headline else 0


def _examples(M: int, most: int) -> np.ndarray:
    """1, 2, 3, 4, 6, 8, ... examples in a micro-batch, with at most so many in a mini-batch."""
    sizes = {2**power for power in range(12)} | {3 * 2**power for power in range(11)}
    allowed = [n for n in sorted(sizes) if n * M <= most and n <= _MOST_EXAMPLES]
    return np.array(allowed, dtype=float)


def tables(cells: list[Prediction]) -> list[Table]:
    lines = answers(cells)
    if not lines:
        return []
    units = {model: _unit_ms(cells, model) for model in {line.model for line in lines}}
    columns: list[Column[Inverse]] = [
        Column("model", lambda line: Cell(line.model, model_name(line.model))),
        Column("mini-batches", lambda line: plain(line.limit)),
        Column("sets (c, s) that do", lambda line: plain(f"{len(line.solved)} of {line.tried}")),
        Column("best: worst cell off by", _worst),
        Column("c (ms)", lambda line: _unknown(line, "c", units[line.model])),
        Column("s (ms)", lambda line: _unknown(line, "s", units[line.model])),
        Column("N at K=2, 4, 8 for M=1; 4; 32", _batches),
        Column("verdict", lambda line: plain(line.verdict)),
    ]
    note = (
        f"All nine cells within {WITHIN:.0%}, with the mini-batch of each cell, a cost c of each "
        "action and a cost s of each step free: eleven unknowns for eight numbers. Not identified: "
        "such a set exists, so the table does not say what causes its gaps."
    )
    shown = [found for cell in cells for found in cell.protocols.values()]
    title = titled("Which unknowns would reproduce Table 2? By arithmetic", shown)
    return [declared("table2_inverse", title, note, lines, columns, NAME)]


def _worst(line: Inverse) -> Cell:
    return Cell(line.best.worst, f"{line.best.worst:.0%}") if line.best else Cell()


def _unit_ms(cells: list[Prediction], model: str) -> float:
    """Milliseconds of the unit: one example's forward through the model on one device, simulated.

    It is that of the controlled protocol at K=2, M=1; NaN where it was not simulated.
    """
    cell = next(cell for cell in cells if cell.model == model and cell.baseline)
    modelled = cell.protocols[CONTROLLED].modelled(cell.K, cell.M)
    return 1e3 * sum(modelled.stages.forward) / modelled.batch if modelled else nan


def _unknown(line: Inverse, name: str, unit_ms: float) -> Cell:
    if line.best is None:
        return Cell()
    return amount(unit_ms * getattr(line.best, name), 1)


def _batches(line: Inverse) -> Cell:
    if line.best is None:
        return plain(EMPTY)
    rows = {M: [N for (_, m), N in sorted(line.best.N.items()) if m == M] for M in (1, 4, 32)}
    return plain("; ".join(", ".join(map(str, row)) for row in rows.values()))
