"""The number of layers of each stage: the rules that may choose it, and a given one checked."""

from collections.abc import Sequence

BALANCES = ("parameters", "time", "uniform")


def check_balance(balance: Sequence[int], layers: int, stages: int) -> list[int]:
    """The given number of layers of each stage, checked."""
    counts: list[int] = [*balance] if isinstance(balance, Sequence) else [balance]
    are_integers = all(isinstance(n, int) and not isinstance(n, bool) for n in counts)
    if not are_integers or len(counts) != stages or sum(counts) != layers or min(counts) < 1:
        raise ValueError(
            f"balance={' '.join(str(counts).split())}: needs {stages} positive numbers that sum to "
            f"the model's {layers} layers, or a cost(a, b), or a name: {', '.join(BALANCES)}"
        )
    return counts
