"""Text: made-up sentences from a seeded grammar, with Zipf's word frequencies and a vocabulary of any size.

The paper trains on data that was never published; the speed, the memory and the exactness of a
pipeline do not depend on what the words mean. There is still something to learn: which kind of word
follows which, and which are frequent.
"""

from collections.abc import Callable, Iterator
from functools import cache
from itertools import chain, product
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

if TYPE_CHECKING:
    from datasets import Dataset

LABEL = "made-up sentences"
MIN_VOCABULARY = 16

_STOP = "."
_DETERMINERS = ("the", "a", "this", "that")
_PREPOSITIONS = ("of", "with", "near", "under")
_SHORTEST = 6  # tokens: determiner noun verb determiner noun stop
_OPTIONAL = 0.3  # probability of each adjective and of the prepositional phrase


@cache
def vocabulary(V: int) -> dict[str, int]:
    """V words and their tokens: the stop, determiners, prepositions, then invented words."""
    given = (_STOP, *_DETERMINERS, *_PREPOSITIONS)
    invented = _invented()
    words = chain(given, (next(invented) for _ in range(V - len(given))))
    return {word: token for token, word in enumerate(words)}


def sentences(count: int, V: int, seed: int) -> "Dataset":
    """`count` sentences in memory, using words of `vocabulary(V)`; rows are {"text": str}."""
    from datasets import Dataset

    rng = np.random.default_rng(seed)
    invented = list(vocabulary(V))[1 + len(_DETERMINERS) + len(_PREPOSITIONS) :]
    noun, verb, adjective = (_zipf(invented[kind::3], rng) for kind in range(3))
    determiner, preposition = _zipf(_DETERMINERS, rng), _zipf(_PREPOSITIONS, rng)

    def noun_phrase() -> list[str]:
        return [determiner(), *([adjective()] if rng.random() < _OPTIONAL else []), noun()]

    def sentence() -> str:
        place = [preposition(), *noun_phrase()] if rng.random() < _OPTIONAL else []
        return " ".join([*noun_phrase(), verb(), *noun_phrase(), *place, _STOP])

    return Dataset.from_dict({"text": [sentence() for _ in range(count)]})


def batch(N: int, T: int, V: int, seed: int) -> tuple[Tensor, Tensor]:
    """N sequences of T tokens from one stream of sentences, and the token that follows each.

    Args:
        N: sequences.
        T: tokens in each.
        V: vocabulary.
        seed: the same seed gives the same text.

    Returns:
        Inputs and targets, both int64 [N, T]; the targets are the inputs moved on by one.
    """
    needed = N * (T + 1)
    rows = sentences(-(-needed // _SHORTEST), V, seed)[:]["text"]
    tokens = vocabulary(V)
    stream = [tokens[word] for row in rows for word in row.split()]
    sequences = torch.tensor(stream[:needed]).view(N, T + 1)
    return sequences[:, :-1].contiguous(), sequences[:, 1:].contiguous()


def _zipf(words: "list[str] | tuple[str, ...]", rng: np.random.Generator) -> Callable[[], str]:
    """Draws a word; the r-th is drawn in proportion to 1 / r."""
    cumulative = np.cumsum(1 / np.arange(1, len(words) + 1))
    cumulative /= cumulative[-1]
    return lambda: words[int(np.searchsorted(cumulative, rng.random(), side="right"))]


def _invented() -> Iterator[str]:
    """Pronounceable words without end, the short ones first, none of them in the lists above."""
    syllables = ["".join(pair) for pair in product("bdfgklmnprstvz", "aeiou")]
    length = 2
    while True:
        yield from ("".join(parts) for parts in product(syllables, repeat=length))
        length += 1
