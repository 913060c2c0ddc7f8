"""Extents of the matrix product inside an operator, and what padding them to tiles costs.

A matrix unit multiplies tiles of fixed extents, 128 x 128 on a TPU. A product whose rows, columns
or summed dimension are no multiples of the tile takes as long as one that is padded up to them.

How a compiler lays a convolution out is not published. Here each position of the kernel is a
product of its own. Folded into the summed dimension, they would pad less where channels are few.
"""

from collections.abc import Sequence
from math import ceil, prod
from typing import Any, NamedTuple


class Extents(NamedTuple):
    """Extents of the products of an operator."""

    rows: int  # of the left matrix
    inner: int  # the dimension that is summed over
    columns: int  # of the right matrix


def extents(name: str, args: Sequence[Any], result: Any) -> Extents | None:
    """Extents of the matrix products of an operator; None if it multiplies no matrices.

    The products of a backward pass have the same three extents as that of the forward pass, in
    another order. A convolution multiplies matrices once for each position of its kernel: rows are
    the pixels of all images, the other two extents are the channels of one group.
    """
    base = name.split(".")[0].strip("_")
    if base in ("mm", "bmm"):
        return _of_product(args[0], args[1])
    if base in ("addmm", "baddbmm"):
        return _of_product(args[1], args[2])
    if base == "convolution":
        return _of_convolution(result, args[1], groups=args[8])
    if base == "convolution_backward":
        return _of_convolution(args[0], args[2], groups=args[9])
    if "attention" in base:
        # Q times the keys, and the weights times the values; a backward gets the gradient first.
        query, key = args[1:3] if "backward" in base else args[:2]
        return Extents(query.shape[-2], query.shape[-1], key.shape[-2])
    return None


def padding(product: Extents, tile: float) -> float:
    """How many times as long a product takes with extents that are padded to tiles; at least 1."""
    padded = (product.rows, product.inner, product.columns)
    return prod(ceil(extent / tile) * tile / extent for extent in padded)


def _of_product(left: Any, right: Any) -> Extents:
    return Extents(left.shape[-2], left.shape[-1], right.shape[-1])


def _of_convolution(output: Any, weight: Any, groups: int) -> Extents | None:
    """None for a depthwise convolution, which multiplies no matrices.

    The output, or its gradient, is [N, channels, height, width]; the weight is [channels out,
    channels in of a group, height, width].
    """
    rows = prod(output.shape) // output.shape[1]
    channels_out, channels_in = weight.shape[:2]
    if channels_in == 1:
        return None
    return Extents(rows, channels_in, channels_out // groups)
