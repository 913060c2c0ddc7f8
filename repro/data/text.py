"""Text: made-up sentences from a seeded grammar, with Zipf's word frequencies and any vocabulary.

The paper trains on data that was never published. Speed, memory and exactness of a pipeline do not
depend on the meaning of the words. A model can still learn which kind of word follows another, and
which words are frequent.
"""

from collections.abc import Callable, Iterator
from functools import cache
from itertools import islice, product

import numpy as np
import torch
from torch import Tensor

LABEL = "made-up sentences"
MIN_VOCABULARY = 16

_STOP = "."
_DETERMINERS = ("the", "a", "this", "that")
_PREPOSITIONS = ("of", "with", "near", "under")
_SHORTEST = 6  # tokens of a sentence: determiner noun verb determiner noun stop
_OPTIONAL = 0.3  # probability of each adjective and of the prepositional phrase


@cache
def vocabulary(V: int) -> dict[str, int]:
    """V words and their tokens: the stop, determiners, prepositions, then invented words."""
    fixed = [_STOP, *_DETERMINERS, *_PREPOSITIONS]
    words = [*fixed, *islice(_invented(), max(V - len(fixed), 0))]
    return {word: token for token, word in enumerate(words)}


def sentences(count: int, V: int, seed: int) -> list[str]:
    rng = np.random.default_rng(seed)
    invented = list(vocabulary(V))[1 + len(_DETERMINERS) + len(_PREPOSITIONS) :]
    noun, verb, adjective = (_zipf(invented[kind::3], rng) for kind in range(3))
    determiner, preposition = _zipf(_DETERMINERS, rng), _zipf(_PREPOSITIONS, rng)

    # The order of the draws determines the text, so it must not change.
    def noun_phrase() -> list[str]:
        phrase = [determiner()]
        if rng.random() < _OPTIONAL:
            phrase.append(adjective())
        return [*phrase, noun()]

    def sentence() -> str:
        prepositional_phrase: list[str] = []
        if rng.random() < _OPTIONAL:
            prepositional_phrase = [preposition(), *noun_phrase()]
        return " ".join([*noun_phrase(), verb(), *noun_phrase(), *prepositional_phrase, _STOP])

    return [sentence() for _ in range(count)]


def batch(N: int, T: int, V: int, seed: int) -> tuple[Tensor, Tensor]:
    """N sequences of T tokens of a stream of sentences, and the next tokens: both int64 [N, T]."""
    needed = N * (T + 1)
    rows = sentences(-(-needed // _SHORTEST), V, seed)
    tokens = vocabulary(V)
    stream = [tokens[word] for row in rows for word in row.split()]
    sequences = torch.tensor(stream[:needed]).view(N, T + 1)
    return sequences[:, :-1].contiguous(), sequences[:, 1:].contiguous()


def _zipf(words: "list[str] | tuple[str, ...]", rng: np.random.Generator) -> Callable[[], str]:
    """A function that draws a word; the probability of the r-th word is proportional to 1 / r."""
    cumulative = np.cumsum(1 / np.arange(1, len(words) + 1))
    cumulative /= cumulative[-1]
    return lambda: words[int(np.searchsorted(cumulative, rng.random(), side="right"))]


def _invented() -> Iterator[str]:
    """Pronounceable words without end, short ones first; none of them is in the lists above."""
    syllables = ["".join(pair) for pair in product("bdfgklmnprstvz", "aeiou")]
    length = 2
    while True:
        yield from ("".join(parts) for parts in product(syllables, repeat=length))
        length += 1
