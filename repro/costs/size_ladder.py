"""The model sizes that a search tries: along what the paper varied, or along a chosen argument."""

from collections.abc import Mapping, Sequence
from typing import Any

Sizes = Sequence[Mapping[str, Any]]  # arguments of ever larger models
AMOEBANET_L = (18, 36, 72)  # of Table 1
AMOEBANET_D = 16  # step between the numbers of filters that are tried
MOST = 2**16  # the greatest value that is tried


def refuse_single_size(model: str) -> None:
    """Raise a one-line ValueError for a model of which no largest size can be searched."""
    if model != "transformer" and not model.startswith("amoebanet"):
        raise ValueError(
            f"model = '{model}': a largest size is searched of transformer, amoebanet-b and "
            f"amoebanet-d; `repro predict {model} --K 4 --device v100` shows whether one size fits"
        )


def size_ladders(model: str, args: Mapping[str, Any]) -> list[Sizes]:
    """Ladders of sizes, each from small to large; a single size where nothing is left to vary.

    L of the Transformer varies, and D of AmoebaNet at each L of 18, 36 and 72, as in Table 1 of
    arXiv:1811.06965v5. Any other model has a single size.
    """
    if model == "transformer" and "L" not in args:
        return [_ladder(args, "L", range(1, MOST + 1))]
    if model.startswith("amoebanet") and "D" not in args:
        filters = range(AMOEBANET_D, MOST + 1, AMOEBANET_D)
        depths = [args["L"]] if "L" in args else AMOEBANET_L
        return [_ladder({**args, "L": L}, "D", filters) for L in depths]
    if model.startswith("amoebanet") and "L" not in args:
        return [_ladder(args, "L", range(3, MOST + 1, 3))]
    return [[dict(args)]]


def _ladder(args: Mapping[str, Any], name: str, values: range) -> Sizes:
    return [{**args, name: value} for value in values]
