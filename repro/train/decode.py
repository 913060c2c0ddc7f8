"""Translation by a running pipeline: the most likely next token, again and again."""

import torch
from torch import Tensor

from repro.data.tokens import BOS, EOS, PAD
from repro.gpipe import Pipeline
from repro.train.evaluation import no_loss


def greedy(pipe: Pipeline, sources: Tensor | None, T: int) -> Tensor:
    """Translate sentences with the weights of now; call it on every rank.

    Nothing is cached: each token takes a forward of the whole target, so shapes never change. The
    tokens are the same for every K.

    The model's inputs are (source [n, S], target so far [n, T]) and its outputs logits [n, T, V].
    Sources int64 [n, S], n at least M, are read on the first stage; others may pass None. Each
    replica has its own.

    Returns:
        On every rank of a replica, int64 [n, T] on the CPU: the translations of this replica's
        sources, without BOS, PAD behind EOS.
    """
    target = None
    if pipe.is_first and sources is not None:
        target = torch.full((len(sources), T), PAD, device=sources.device)
        target[:, 0] = BOS

    columns: list[Tensor] = []
    ended = torch.zeros(1, dtype=torch.bool)  # after the first token [n]: has the sentence an EOS?
    for t in range(T):
        inputs = (sources, target) if target is not None else None
        logits = pipe.evaluate(inputs, None, no_loss).outputs
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
