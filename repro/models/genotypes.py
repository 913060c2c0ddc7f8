"""The cells of AmoebaNet-B and AmoebaNet-D (Real et al., arXiv:1802.01548), as tables.

A cell has two input states: 0 is the output of the previous cell, and 1 is the output of the cell
before that. The states 2 to 6 are each the sum of two operations on earlier states.
"""

from typing import NamedTuple


class Pair(NamedTuple):
    """One new state: left(state) + right(state); operations are named as in `OPERATIONS`."""

    left: str
    left_state: int
    right: str
    right_state: int


class Cell(NamedTuple):
    """The pairs of states 2 to 6, and the states that are concatenated as the output."""

    pairs: tuple[Pair, ...]
    concat: tuple[int, ...]


# The concatenated states of the normal cells follow the authors' TensorFlow code, not the drawing
# in Real et al. (4, 5, 6). Table 1 decides: D (18, 208) then has 81.1M parameters, printed as 82M.
_NORMAL_CONCAT = (0, 3, 4, 6)

# (variant, whether it is the reduction cell) -> the cell.
CELLS = {
    ("d", False): Cell(
        pairs=(
            Pair("1x1", 1, "max3x3", 1),
            Pair("identity", 1, "1x7-7x1", 0),
            Pair("1x1", 0, "1x7-7x1", 0),
            Pair("max3x3", 2, "identity", 2),
            Pair("avg3x3", 1, "1x1", 5),
        ),
        concat=_NORMAL_CONCAT,
    ),
    ("d", True): Cell(
        pairs=(
            Pair("max2x2", 0, "max3x3", 0),
            Pair("identity", 2, "3x3", 1),
            Pair("1x7-7x1", 2, "max3x3", 2),
            Pair("identity", 3, "max2x2", 1),
            Pair("avg3x3", 2, "1x1", 3),
        ),
        concat=(4, 5, 6),
    ),
    ("b", False): Cell(
        pairs=(
            Pair("1x1", 1, "max3x3", 1),
            Pair("identity", 1, "sep3x3", 0),
            Pair("1x1", 1, "sep3x3", 0),
            Pair("1x1", 2, "identity", 2),
            Pair("avg3x3", 1, "1x1", 5),
        ),
        concat=_NORMAL_CONCAT,
    ),
    # State 4: the authors name it a dilated separable 5x5, but their code does not dilate.
    ("b", True): Cell(
        pairs=(
            Pair("max2x2", 0, "max3x3", 0),
            Pair("identity", 2, "3x3", 1),
            Pair("sep5x5", 2, "max3x3", 2),
            Pair("identity", 3, "sep3x3", 1),
            Pair("avg3x3", 4, "1x1", 3),
        ),
        concat=(5, 6),
    ),
}
