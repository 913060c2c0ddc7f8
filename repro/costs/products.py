"""Extents of the matrix product inside an operator, and what padding them to tiles costs.

A matrix unit multiplies tiles of fixed extents, 128 x 128 on a TPU. A product whose rows, columns
or summed dimension are no multiples of the tile takes as long as one that is padded up to them.
"""

from collections.abc import Sequence
from math import ceil, prod
from typing import Any

Extents = tuple[int, int, int]  # rows, summed dimension, columns


def extents(name: str, args: Sequence[Any], result: Any) -> Extents | None:
    """Extents of the matrix products of an operator; None if it multiplies no matrices.

    The products of a backward pass have the same three extents as that of the forward pass, in
    another order. A convolution multiplies matrices once for each position of its kernel: rows are
    the pixels of all images, the other two extents are the channels of one group.

    Args:
        name: of the operator, such as "mm" or "convolution_backward".
        args: its positional arguments.
        result: what it returned.
    """
    base = name.split(".")[0].strip("_")
    if base in ("mm", "bmm"):
        return _of_product(args[0], args[1])
    if base in ("addmm", "baddbmm"):
        return _of_product(args[1], args[2])
    if base == "convolution":
        return _of_convolution(result, args[1])
    if base == "convolution_backward":
        return _of_convolution(args[0], args[2])
    if "attention" in base:
        # Q times the keys, and the weights times the values; a backward gets the gradient first.
        query, key = args[1:3] if "backward" in base else args[:2]
        return query.shape[-2], query.shape[-1], key.shape[-2]
    return None


def padding(product: Extents, tile: float) -> float:
    """How many times as long a product takes because its extents are padded to tiles; at least 1.

    Args:
        product: its extents.
        tile: rows and columns of a tile of the matrix unit; 1: nothing is padded.
    """
    return prod(ceil(extent / tile) * tile / extent for extent in product)


def _of_product(left: Any, right: Any) -> Extents:
    return left.shape[-2], left.shape[-1], right.shape[-1]


def _of_convolution(output: Any, weight: Any) -> Extents | None:
    """None for a depthwise convolution, which multiplies no matrices.

    Args:
        output: of the convolution, or its gradient, [N, channels, height, width].
        weight: [channels out, channels in of a group, height, width].
    """
    rows = prod(output.shape) // output.shape[1]
    channels_in = weight.shape[1]
    # The number of groups is no argument of every form; without groups all channels are in one.
    return None if channels_in == 1 else (rows, channels_in, weight.shape[0])
