"""Closed forms of an ideal pipeline: equal stages and free transfers (sections 2.3 and 3).

Two forms of the step, both for K stages and M micro-batches with costs F, R, B per stage and
micro-batch:

    plain   (M+K-1)(F+R+B)                       the paper's O((K-1)/(M+K-1)) bubble
    early   (M+K-1)F + M(R+B) + (K-1)B           a stage recomputes while it waits for the gradient

The paper prints the first and describes the second. With F:R:B = 1:1:2 only the second fits its
Table 2 (Transformer, M=32, within 1.3 %) and its breakdown (4.1 % bubble). Without
re-materialization R = 0, and both are the same.
"""

from typing import Literal

Form = Literal["plain", "early"]
UNIT_COSTS = {"F": 1.0, "R": 1.0, "B": 2.0, "I": 1.0, "W": 1.0}
"""The usual costs: a backward takes as long as two forwards, a recomputation as one forward.

A split backward takes half for the gradient of the input and half for that of the weights.
"""


def bubble_over_total(K: int, M: int) -> float:
    """Bubble fraction idle / total, (K-1)/(M+K-1): the paper's definition (section 2.3)."""
    return (K - 1) / (M + K - 1)


def step_time(K: int, M: int, form: Form, F: float = 1.0, R: float = 1.0, B: float = 2.0) -> float:
    """Time of one step in the unit of the costs; pass R=0 without re-materialization."""
    if form == "plain":
        return (M + K - 1) * (F + R + B)
    return (M + K - 1) * F + M * (R + B) + (K - 1) * B


def bubble(K: int, M: int, form: Form, F: float = 1.0, R: float = 1.0, B: float = 2.0) -> float:
    """Bubble fraction idle / total; "plain" gives (K-1)/(M+K-1) for any costs."""
    return 1 - M * (F + R + B) / step_time(K, M, form, F, R, B)


def speedup_over_k1(K: int, M: int, form: Form) -> float:
    """Speedup over one stage at the same N and M; at 1:1:2 KM/(M+K-1), early 4KM/(4M+3(K-1))."""
    return K * M * step_time(1, 1, form) / step_time(K, M, form)
