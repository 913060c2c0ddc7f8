"""T(L, H, A): the paper's translation models, an encoder-decoder Transformer as 2L + 3 layers.

Section 5 of arXiv:1811.06965v5 gives L encoder and L decoder layers, a feed-forward dimension H, A
heads and a model dimension of 1024. With heads of 64 channels the weight matrices of these layers
have 276.8M parameters for T(6, 8192, 16), 1107M for T(12, 16384, 32) and T(24, 8192, 16), 2953M for
T(32, 16384, 32) and 5905M for T(64, 16384, 32). The paper prints 400M, 1.3B, 1.3B, 3B and 6B, which
include embeddings. So with A = 32 attention has 2048 channels, twice the model dimension.

The choices that the paper does not state are ours:

- Three tables of V x d: source embedding, target embedding, softmax. T(6, 8192, 16) then has
  473.7M parameters; two tables would give 408M. A shared table would have to be on several stages.
- Layer norm before each branch and at the end of encoder and decoder; ReLU, sinusoidal positions
  and biases as in Transformer-L.
- Which feed-forward weights are scaled down: the second matrix of each layer is divided by 2L, so
  that a feed-forward branch begins 2L times smaller. The paper counts 128 layers for L = 64.

The value between two layers of the encoder is (x, hidden, target tokens), and of the decoder (y,
memory, hidden). Here x and y are the states [N, S, d] and [N, T, d], memory is the encoder's
output, and hidden [N, S] is True where the source is padding.
"""

from functools import partial
from typing import Annotated, NamedTuple

import torch
from annotated_types import Interval, MultipleOf
from torch import Tensor, nn
from torch.nn import functional

from repro.data import text
from repro.data.tokens import BOS, EOS, PAD, SPECIAL
from repro.gpipe import Weighted
from repro.models.arguments import Count, Layers, Probability
from repro.models.attention import attend, linear
from repro.models.model import Model
from repro.models.transformer import Embedding

LABEL = "made-up sentences, each translated into its own words in reverse order"
Boundary = tuple[Tensor, Tensor, Tensor]


class Sizes(NamedTuple):
    d: int
    H: int
    heads: int
    head_dim: int  # channels of a head; the channels of all heads may differ from d
    dropout: float
    shrink: float  # divides the initial output of a feed-forward layer


class MultiHead(nn.Module):
    """Attention of x [N, T, d] to memory [N, S, d] -> [N, T, d]."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.heads = sizes.heads
        d, channels = sizes.d, sizes.heads * sizes.head_dim
        self.query, self.key, self.value = (linear(d, channels) for _ in range(3))
        self.out = linear(channels, d)

    def forward(self, x: Tensor, memory: Tensor, hidden: Tensor | None) -> Tensor:
        """Attend; `hidden` is a bool [N, S], or None to hide the future."""
        q, k, v = (
            project(states).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for project, states in ((self.query, x), (self.key, memory), (self.value, memory))
        )
        if hidden is not None:
            hidden = hidden[:, None, None, :]
        return self.out(attend(q, k, v, hidden).transpose(1, 2).flatten(2))


class FeedForward(nn.Module):
    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.expand, self.contract = linear(sizes.d, sizes.H), linear(sizes.H, sizes.d)
        with torch.no_grad():
            self.contract.weight.div_(sizes.shrink)

    def forward(self, x: Tensor) -> Tensor:
        return self.contract(functional.relu(self.expand(x)))


class SourceEmbedding(nn.Module):
    """(source [N, S], target tokens [N, T]) -> (x, hidden, target tokens)."""

    def __init__(self, V: int, d: int, S: int, dropout: float) -> None:
        super().__init__()
        self.embedding = Embedding(V, d, S, dropout)

    def forward(self, tokens: tuple[Tensor, Tensor]) -> Boundary:
        source, target = tokens
        hidden = source == PAD
        # The first position is never hidden: a softmax over nothing would be NaN.
        hidden[:, 0] = False
        return self.embedding(source), hidden, target


class EncoderBlock(nn.Module):
    """Self-attention to the whole source, and a feed-forward layer, each after a layer norm."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(sizes.d)
        self.attention = MultiHead(sizes)
        self.feed_forward_norm = nn.LayerNorm(sizes.d)
        self.feed_forward = FeedForward(sizes)
        self.dropout = nn.Dropout(sizes.dropout)

    def forward(self, value: Boundary) -> Boundary:
        x, hidden, target = value
        normed = self.attention_norm(x)
        x = x + self.dropout(self.attention(normed, normed, hidden))
        x = x + self.dropout(self.feed_forward(self.feed_forward_norm(x)))
        return x, hidden, target


class TargetEmbedding(nn.Module):
    """The encoder's end and the decoder's start: (x, hidden, tokens) -> (y, memory, hidden)."""

    def __init__(self, V: int, d: int, T: int, dropout: float) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(d)
        self.embedding = Embedding(V, d, T, dropout)

    def forward(self, value: Boundary) -> Boundary:
        x, hidden, target = value
        return self.embedding(target), self.norm(x), hidden


class DecoderBlock(nn.Module):
    """Causal self-attention, attention to the memory, and a feed-forward layer, after layer norms.

    Padding of the target needs no mask: it is at the end, and no position attends to a later one.
    """

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(sizes.d)
        self.attention = MultiHead(sizes)
        self.memory_norm = nn.LayerNorm(sizes.d)
        self.memory_attention = MultiHead(sizes)
        self.feed_forward_norm = nn.LayerNorm(sizes.d)
        self.feed_forward = FeedForward(sizes)
        self.dropout = nn.Dropout(sizes.dropout)

    def forward(self, value: Boundary) -> Boundary:
        y, memory, hidden = value
        normed = self.attention_norm(y)
        y = y + self.dropout(self.attention(normed, normed, None))
        y = y + self.dropout(self.memory_attention(self.memory_norm(y), memory, hidden))
        y = y + self.dropout(self.feed_forward(self.feed_forward_norm(y)))
        return y, memory, hidden


class Softmax(nn.Module):
    """(y, memory, hidden) -> logits [N, T, V]."""

    def __init__(self, d: int, V: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(d)
        self.linear = linear(d, V)

    def forward(self, value: Boundary) -> Tensor:
        return self.linear(self.norm(value[0]))


def cross_entropy(logits: Tensor, targets: Tensor, label_smoothing: float = 0.0) -> Tensor:
    """Mean cross-entropy over the tokens that are not PAD; logits [N, T, V], targets [N, T]."""
    return functional.cross_entropy(
        logits.flatten(0, 1), targets.flatten(), ignore_index=PAD, label_smoothing=label_smoothing
    )


def target_tokens(targets: Tensor) -> Tensor:
    """The number of tokens that are not PAD: the weight of a micro-batch's mean loss."""
    return (targets != PAD).sum()


def batch(N: int, S: int, T: int, V: int, seed: int) -> tuple[tuple[Tensor, Tensor], Tensor]:
    """N made-up sentences; the translation of a sentence is its words in reverse order.

    The result is ((source [N, S], decoder's input [N, T]), targets [N, T]), all int64. The T tokens
    include EOS; longer sentences are cut, and shorter ones padded. V includes the special tokens.
    """
    word_tokens = text.vocabulary(V - SPECIAL)
    rows = [
        [SPECIAL + word_tokens[word] for word in sentence.split()[:S]]
        for sentence in text.sentences(N, V - SPECIAL, seed)
    ]
    reversed_rows = [row[::-1][: T - 1] for row in rows]
    decoder_input = _padded([[BOS, *row] for row in reversed_rows], T)
    return (_padded(rows, S), decoder_input), _padded([[*row, EOS] for row in reversed_rows], T)


def _padded(rows: list[list[int]], length: int) -> Tensor:
    return torch.tensor([row + [PAD] * (length - len(row)) for row in rows])


def translation(
    L: Layers = 6,
    d: Annotated[Count, MultipleOf(2)] = 1024,
    H: Count = 8192,
    A: Count = 16,
    V: Annotated[int, Interval(ge=text.MIN_VOCABULARY + SPECIAL)] = 64000,
    S: Count = 128,
    T: Count = 128,
    head_dim: Count = 64,
    dropout: Probability = 0.1,
) -> Model:
    """T(L, H, A): L encoder and L decoder layers, feed-forward width H, A heads, width d.

    The default is T(6, 8192, 16), the smallest model of the paper. The paper states neither S and
    T, the tokens of a source and of a target sentence, nor dropout, nor the 64 channels of a head,
    but its sizes fit these. V is the number of words that source and target share. Logits are not
    clipped: the paper clips them, but does not state at which magnitude.
    """
    sizes = Sizes(d, H, A, head_dim, dropout, shrink=2.0 * L)
    return Model(
        name="translation",
        layers=(
            partial(SourceEmbedding, V, d, S, dropout),
            *[partial(EncoderBlock, sizes)] * L,
            partial(TargetEmbedding, V, d, T, dropout),
            *[partial(DecoderBlock, sizes)] * L,
            partial(Softmax, d, V),
        ),
        batch=lambda N, seed: batch(N, S, T, V, seed),
        loss=Weighted(cross_entropy, target_tokens),
        unit="sequences/s",
        labels={"data": LABEL},
    )
