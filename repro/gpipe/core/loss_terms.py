"""How many terms the mean of a loss of torch.nn has.

Those of labels divide by the class weights of the labels that are not ignored, of which
micro-batches may have unequal shares. The others divide by the elements or the examples, and
`reduction="sum"` by nothing.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

from torch import Tensor, nn
from torch.nn import functional

from repro.gpipe.tree import Tree


def terms_of(loss_fn: Any, parts: Sequence[Tree], counts: Sequence[int]) -> list[float] | None:
    """The divisor of each micro-batch's loss: none for a sum; None for a loss not of torch.nn.

    `parts` are the targets of the micro-batches, `counts` their numbers of examples.
    """
    options = _options(loss_fn)
    reduction, ignored = options.get("reduction"), options.get("ignore_index")
    if reduction == "sum":
        return []
    if reduction not in ("mean", "batchmean"):
        return None
    labels = [part for part in parts if isinstance(part, Tensor) and not part.is_floating_point()]
    if ignored is None or len(labels) < len(parts):
        return [*map(float, counts)]
    kept = [part[part != ignored] for part in labels]
    weight = options.get("weight")
    return [float(len(each) if weight is None else weight[each.long()].sum()) for each in kept]


def _options(loss_fn: Any) -> dict[str, Any]:
    """The options of a module or a function of torch.nn, or of a partial of it; else nothing."""
    if isinstance(loss_fn, nn.Module):
        is_torchs = type(loss_fn).__module__ == "torch.nn.modules.loss"
        hooks = loss_fn._forward_hooks or loss_fn._forward_pre_hooks
        return vars(loss_fn) | loss_fn._buffers if is_torchs and not hooks else {}
    given = loss_fn.keywords if isinstance(loss_fn, partial) and not loss_fn.args else {}
    function: Any = loss_fn.func if given else loss_fn
    is_torchs = getattr(function, "__module__", "") == "torch.nn.functional"
    if not is_torchs or "reduction" not in function.__code__.co_varnames:
        return {}
    if given.keys() & {"size_average", "reduce"}:  # which torch still puts before `reduction`
        return {}
    of_labels = function in (functional.cross_entropy, functional.nll_loss)
    return {"reduction": "mean"} | ({"ignore_index": -100} if of_labels else {}) | given
