"""What needs forwards alone: means of losses and metrics over some batches, and translation."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from repro.data.tokens import BOS, EOS, PAD
from repro.gpipe import Pipeline, Weighted
from repro.gpipe.core.loss import Loss
from repro.gpipe.core.microbatch import batch_size, map_leaves


def evaluate(
    pipe: Pipeline, batches: Sequence[tuple[Any, Any]], metrics: Mapping[str, Loss]
) -> dict[str, float]:
    """The mean of each metric over the batches of all replicas; call it on every rank.

    The last batch of inputs and targets may be smaller than M. A metric is a mean over a batch's
    examples, from (outputs, targets); a `Weighted` one says how much a batch weighs.

    Raises:
        ValueError: on every rank, if they have different numbers of batches, or none. One line.
    """
    everyone = pipe.engine.everyone
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
        outputs = pipe.predict(padded)
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


def greedy(pipe: Pipeline, sources: Tensor | None, T: int) -> Tensor:
    """The most likely translations with the weights of now; call it on every rank.

    Nothing is cached: each token takes a forward of the whole target, so shapes never change. The
    tokens are the same for every K.

    The model's inputs are (source [n, S], target so far [n, T]) and its outputs logits [n, T, V].
    Sources int64 [n, S], n at least M, are read on the first stage; others may pass None. All ranks
    of a replica get its translations, int64 [n, T] on the CPU, without BOS, PAD behind EOS.
    """
    target = None
    if pipe.is_first and sources is not None:
        target = torch.full((len(sources), T), PAD, device=sources.device)
        target[:, 0] = BOS

    columns: list[Tensor] = []
    ended = torch.zeros(1, dtype=torch.bool)  # after the first token [n]: has the sentence an EOS?
    for t in range(T):
        inputs = (sources, target) if target is not None else None
        logits = pipe.predict(inputs)
        # The last stage knows the token, and the first one needs it.
        likeliest = None if logits is None else logits[:, t].argmax(1).cpu()
        token: Tensor = pipe.engine.wire.all_gather(likeliest)[-1]
        columns.append(token.masked_fill(ended, PAD))
        ended = ended | (token == EOS)
        # Replicas evaluate together, so one of them cannot stop before the others.
        if pipe.replicas == 1 and ended.all():
            break
        if target is not None and t + 1 < T:
            target[:, t + 1] = columns[-1].to(target.device)

    translations = torch.full((len(columns[0]), T), PAD)
    translations[:, : len(columns)] = torch.stack(columns, 1)
    return translations


def _padded(inputs: Any, least: int) -> Any:
    """A batch with at least so many examples; the last one is repeated."""
    examples = batch_size(inputs)
    if examples >= least:
        return inputs
    rows = torch.arange(least).clamp(max=examples - 1)
    return map_leaves(Tensor, lambda tensor: tensor[rows.to(tensor.device)], inputs)
