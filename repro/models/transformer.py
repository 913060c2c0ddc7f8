"""Transformer-L of Tables 1 to 3: a decoder-only language model as L + 2 layers.

The paper's text calls it a sequence-to-sequence model, but the parameter counts of Table 1 are
131,104,000 + 50,358,272 L to the digit. That is: a separate embedding and softmax (with bias), and
per layer four d x d attention matrices and two feed-forward matrices, all with biases, and two
layer norms. So there is no cross attention, no final layer norm and no learned position.

The counts do not determine the rest, which follows the authors' Lingvo: layer norm before each
branch, ReLU, and embeddings scaled by sqrt(d) with sinusoidal positions.
"""

import math
from functools import partial
from typing import Annotated, ClassVar

import torch
from annotated_types import Interval
from torch import Tensor, nn
from torch.nn import functional

from repro.data import text
from repro.models.arguments import Count, Layers, Probability
from repro.models.attention import TensorPlan, attend, linear
from repro.models.model import Model


class Embedding(nn.Module):
    """Tokens and sinusoidal positions: int64 [N, T] -> [N, T, d]."""

    def __init__(self, V: int, d: int, T: int, dropout: float) -> None:
        super().__init__()
        self.tokens = nn.Embedding(V, d)
        nn.init.normal_(self.tokens.weight, std=d**-0.5)
        self.register_buffer("positions", _sinusoids(T, d), persistent=False)
        self.dropout = nn.Dropout(dropout)

    def forward(self, tokens: Tensor) -> Tensor:
        embedded = self.tokens(tokens) * math.sqrt(self.tokens.embedding_dim)  # variance 1
        return self.dropout(embedded + self.get_buffer("positions")[: tokens.shape[1]])


class Block(nn.Module):
    """Causal self-attention and a feed-forward layer, each after a layer norm, on [N, T, d]."""

    tensor_plan: ClassVar[TensorPlan] = TensorPlan(
        inputs=("attention_norm", "feed_forward_norm"),
        columns=("query", "key", "value", "expand"),
        rows=("out", "contract"),
        counts=("heads",),
    )

    def __init__(self, d: int, H: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm = nn.LayerNorm(d)
        self.query, self.key, self.value, self.out = (linear(d, d) for _ in range(4))
        self.feed_forward_norm = nn.LayerNorm(d)
        self.expand, self.contract = linear(d, H), linear(H, d)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        # Dropout is on the outputs of the branches (Vaswani et al., section 5.4).
        x = x + self.dropout(self._attention(self.attention_norm(x)))
        hidden = functional.relu(self.expand(self.feed_forward_norm(x)))
        return x + self.dropout(self.contract(hidden))

    def _attention(self, x: Tensor) -> Tensor:
        q, k, v = (
            project(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for project in (self.query, self.key, self.value)
        )
        return self.out(attend(q, k, v).transpose(1, 2).flatten(2))


def loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Mean cross-entropy over all tokens; logits [N, T, V], targets int64 [N, T]."""
    return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def transformer(
    L: Layers = 48,
    d: Count = 2048,
    H: Count = 8192,
    heads: Count = 32,
    V: Annotated[int, Interval(ge=text.MIN_VOCABULARY)] = 32000,
    T: Count = 1024,
    dropout: Probability = 0.1,
) -> Model:
    """L blocks of width d, H in the feed-forward layer, for V words and sequences of T tokens.

    The default sizes are those of Table 1, the default L is that of Table 2. The paper states no
    dropout; 0.1 is the value of Vaswani et al. for their base model.
    """
    multiple = math.lcm(2, heads)  # even: sine and cosine halves of the positions
    if d % multiple:
        raise ValueError(
            f"d={d}: allowed is a multiple of {multiple} (even, shared by {heads} heads); try "
            f"d={max(round(d / multiple), 1) * multiple}"
        )
    block = partial(Block, d, H, heads, dropout)
    return Model(
        name="transformer",
        layers=(partial(Embedding, V, d, T, dropout), *[block] * L, partial(linear, d, V)),
        batch=lambda N, seed: text.batch(N, T, V, seed),
        loss=loss,
        unit="sequences/s",
        labels={"data": text.LABEL},
    )


def _sinusoids(T: int, d: int) -> Tensor:
    """Positions [T, d]: sines, then cosines, of wavelengths from 2 pi to 10000 * 2 pi."""
    rates = torch.exp(torch.arange(d // 2) * (-math.log(10000) / max(d // 2 - 1, 1)))
    angles = torch.arange(T).unsqueeze(1) * rates
    return torch.cat((angles.sin(), angles.cos()), dim=1)
