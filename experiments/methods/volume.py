"""Bytes that a device sends in a step, counted from a Transformer's arguments.

Of float32 numbers and the device that sends most. A collective is counted as its ring: an
all-reduce of b bytes over P devices sends 2 (P-1)/P b from each of them.
"""

from typing import Any

_BYTES = 4  # of a float32 number


def sent_by_pipeline(args: dict[str, Any], N: int, T: int, devices: int) -> float:
    """GPipe: activations to the next stage and gradients to the one before (section 2.3).

    The first and the last stage send one of them, those between send both.
    """
    directions = 1 if devices == 2 else 2
    return directions * _BYTES * N * T * args["d"]


def sent_by_tensor_parallel(args: dict[str, Any], N: int, T: int, devices: int) -> float:
    """Two all-reduces in F and two in B of each block (arXiv:1909.08053, section 3)."""
    return 4 * args["L"] * _ring(_BYTES * N * T * args["d"], devices)


def sent_by_replicas(args: dict[str, Any], V: int, devices: int) -> float:
    """One all-reduce of all gradients."""
    return _ring(_BYTES * parameters(args, V), devices)


def parameters(args: dict[str, Any], V: int) -> int:
    """Of the Transformer with these L, d and H, and V words; a test counts them on the model."""
    L, d, H = args["L"], args["d"], args["H"]
    attention = 4 * (d * d + d)
    feed_forward = 2 * d * H + H + d
    norms = 4 * d
    embedding_and_softmax = 2 * V * d + V
    return L * (attention + feed_forward + norms) + embedding_and_softmax


def _ring(size: float, devices: int) -> float:
    return 2 * (devices - 1) / devices * size
