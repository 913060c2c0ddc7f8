"""Multi-head attention of the Transformers, and their linear layers."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class TensorPlan:
    """How a module's matrices are divided over T devices, as in Megatron-LM (arXiv:1909.08053).

    It is the attribute `tensor_plan` of a module that can be divided. Each device gets a part of
    the hidden channels and of the heads. Activations between modules are whole on every device.
    """

    inputs: tuple[str, ...]  # modules whose whole output the divided layers read
    columns: tuple[str, ...]  # linear layers whose output channels are divided
    rows: tuple[str, ...]  # linear layers of divided input channels; their outputs are summed
    counts: tuple[str, ...] = ()  # attributes that are divided by T, such as the number of heads


def attend(q: Tensor, k: Tensor, v: Tensor, hidden: Tensor | None = None) -> Tensor:
    """Attention as matrix products and a softmax, which keep weights [N, heads, T, S].

    Queries are [N, heads, T, channels of a head]; keys and values have S instead of T. `hidden`,
    broadcast to [N, heads, T, S], is True where a query may not look; each query must see a key.
    None hides the future, and then S is T.
    """
    scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
    if hidden is None:
        hidden = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
    return scores.masked_fill(hidden, -math.inf).softmax(-1) @ v


def linear(inputs: int, outputs: int) -> nn.Linear:
    """A linear layer with Xavier weights and zero bias."""
    layer = nn.Linear(inputs, outputs)
    nn.init.xavier_uniform_(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer
