"""Means of losses and metrics over a finite set of batches, in one forward pass for all of them."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from repro.gpipe import Pipeline, Weighted
from repro.gpipe.comm.control_channel import ControlChannel
from repro.gpipe.core.loss import Loss
from repro.gpipe.core.microbatch import batch_size, flatten, map_leaves


def evaluate(
    pipe: Pipeline,
    everyone: ControlChannel,
    batches: Sequence[tuple[Any, Any]],
    metrics: Mapping[str, Loss],
) -> dict[str, float]:
    """The mean of each metric over the batches of all replicas; call it on every rank.

    The last batch of inputs and targets may be smaller than M. A metric is a mean over a batch's
    examples, from (outputs, targets); a `Weighted` one says how much a batch weighs.

    Raises:
        ValueError: on every rank, if they have different numbers of batches, or none. One line.
    """
    lengths = everyone.all_gather(len(batches))
    if len(set(lengths)) > 1 or lengths[0] == 0:
        raise ValueError(
            f"evaluation: {lengths} batches on the ranks; give each the same number, at least 1"
        )
    sums = dict.fromkeys(metrics, 0.0)
    weights = dict.fromkeys(metrics, 0.0)
    for n in range(len(batches)):
        # Reading may be slow, so only the two ends do it.
        inputs, targets = batches[n] if pipe.is_first or pipe.is_last else (None, None)
        padded = _padded(inputs, pipe.micro_batches) if pipe.is_first else None
        outputs = pipe.evaluate(padded, None, no_loss).outputs
        if not pipe.is_last:
            continue
        examples = batch_size(targets)
        outputs = map_leaves(Tensor, lambda tensor, n=examples: tensor[:n], outputs)
        targets = map_leaves(Tensor, lambda tensor: tensor.to(pipe.device), targets)
        for name, metric in metrics.items():
            weight = float(metric.weight(targets)) if isinstance(metric, Weighted) else examples
            if weight:
                sums[name] += float(metric(outputs, targets)) * weight
                weights[name] += weight
    of_ranks = everyone.all_gather((sums, weights))  # only last stages have added something
    return {
        name: sum(sums[name] for sums, _ in of_ranks)
        / sum(weights[name] for _, weights in of_ranks)
        for name in metrics
    }


def no_loss(outputs: Any, _targets: Any) -> Tensor:
    """For `Pipeline.evaluate`, of which only the outputs are needed."""
    return torch.zeros((), device=flatten(outputs)[0][0].device)


def _padded(inputs: Any, least: int) -> Any:
    """A batch with at least so many examples; the last one is repeated."""
    examples = batch_size(inputs)
    if examples >= least:
        return inputs
    rows = torch.arange(least).clamp(max=examples - 1)
    return map_leaves(Tensor, lambda tensor: tensor[rows.to(tensor.device)], inputs)
