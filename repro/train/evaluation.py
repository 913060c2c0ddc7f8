"""Evaluation and translation with a pipeline: forwards only."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from repro.data.tokens import BOS, EOS, PAD
from repro.gpipe import Pipeline, Weighted
from repro.gpipe.core.loss import Loss
from repro.gpipe.tree import batch_size, map_leaves


def evaluate(
    pipe: Pipeline, batches: Sequence[tuple[Any, Any]], metrics: Mapping[str, Loss]
) -> dict[str, float]:
    """The mean of each metric over the batches of all replicas; call it on every rank.

    The last batch may be smaller than M. A metric maps (outputs, targets) to a mean over the
    batch's examples; a `Weighted` metric also gives the weight of the batch.
    """
    sums = dict.fromkeys(metrics, 0.0)
    weights = dict.fromkeys(metrics, 0.0)
    for n in range(len(batches)):
        # Reading may be slow, so only the first and the last stage read.
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
    of_ranks = pipe.engine.all_ranks.all_gather((sums, weights))  # zero except on last stages
    return {
        name: sum(sums[name] for sums, _ in of_ranks)
        / sum(weights[name] for _, weights in of_ranks)
        for name in metrics
    }


def greedy(pipe: Pipeline, sources: Tensor | None, T: int) -> Tensor:
    """Translations by the most likely token at each position; call it on every rank.

    Nothing is cached: each token takes a forward of the whole target, so shapes never change. The
    tokens are the same for every K.

    The model's inputs are (source [n, S], target so far [n, T]), and its outputs are logits
    [n, T, V]. The first stage reads sources, int64 [n, S] with n at least M; other stages may pass
    None. All ranks of a replica get its translations, int64 [n, T] on the CPU, without BOS, and
    with PAD after EOS.
    """
    target = None
    if pipe.is_first and sources is not None:
        target = torch.full((len(sources), T), PAD, device=sources.device)
        target[:, 0] = BOS

    columns: list[Tensor] = []
    ended = torch.zeros(
        1, dtype=torch.bool
    )  # after the first token [n]: whether the sentence has an EOS
    for t in range(T):
        inputs = (sources, target) if target is not None else None
        logits = pipe.predict(inputs)
        # The last stage has the token, and the first stage needs it.
        likeliest = None if logits is None else logits[:, t].argmax(1).cpu()
        token: Tensor = pipe.engine.channel.all_gather(likeliest)[-1]
        columns.append(token.masked_fill(ended, PAD))
        ended = ended | (token == EOS)
        # Replicas run every forward together, so none can stop before the others.
        if pipe.replicas == 1 and ended.all():
            break
        if target is not None and t + 1 < T:
            target[:, t + 1] = columns[-1].to(target.device)

    translations = torch.full((len(columns[0]), T), PAD)
    translations[:, : len(columns)] = torch.stack(columns, 1)
    return translations


def _padded(inputs: Any, least: int) -> Any:
    """The batch, with the last example repeated until there are `least` examples."""
    examples = batch_size(inputs)
    if examples >= least:
        return inputs
    rows = torch.arange(least).clamp(max=examples - 1)
    return map_leaves(Tensor, lambda tensor: tensor[rows.to(tensor.device)], inputs)
