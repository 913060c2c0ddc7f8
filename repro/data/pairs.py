"""Translation into English: batches of sentence pairs, of one language or of several mixed.

The paper mixes 102 languages by temperature sampling, "as in multilingual BERT" (section 5): a
language is drawn with a probability proportional to its number of pairs to the power of 1 / t. The
paper does not state t. There is no token for the language, as all translate into English.

Pairs are read in random order. So a set on the Hub is downloaded completely before the first batch;
wmt14-de-en has 4.5 million pairs.
"""

from collections.abc import Callable, Sequence
from functools import cache, lru_cache
from typing import Annotated, NamedTuple

import numpy as np
import torch
from annotated_types import Interval
from pydantic import ConfigDict
from torch import Tensor

from repro.data.batches import Batches, Evaluation
from repro.data.languages import ENGLISH, corpus
from repro.data.registry import DataSet, find
from repro.data.sources import Part, is_in, open_rows
from repro.data.subwords import Subwords, learn
from repro.data.tokens import BOS, EOS, PAD
from repro.io.explain import Frozen

_KEPT = 200_000  # encoded pairs of a language that are kept in memory
_ORDER_OF_0 = 2**62  # replaces the seed 0
_READ = 200_000  # pairs of a language that sub-words are learnt from

Pair = tuple[str, str]
Inputs = tuple[Tensor, Tensor]


class TranslationTask(Frozen):
    """Which sentences are translated into English, and how they become tokens.

    A language is toy:alfa, wmt14-de-en, opus100:de-en and the like.
    """

    model_config = ConfigDict(strict=True)

    names: Sequence[str]  # of languages
    vocabulary: Annotated[int, Interval(ge=1)]  # about so many sub-words of both languages
    # Tokens of a source and of a target. Each ends with EOS; longer ones are cut, others padded.
    S: Annotated[int, Interval(ge=2)]
    T: Annotated[int, Interval(ge=2)]
    vocabulary_of: Sequence[str] = ()  # languages that sub-words are learnt from, else `names`
    # With 1 a language is drawn in proportion to its pairs; higher values favour small languages.
    temperature: Annotated[float, Interval(gt=0)] = 1.0
    # Pairs of each toy language that sub-words are learnt from, in place of monolingual text.
    vocabulary_pairs: Annotated[int, Interval(ge=1)] | None = None
    validation: bool = False  # whether training leaves out a part, to validate with
    misaligned: Annotated[float, Interval(ge=0, le=1)] = 0.0  # share of training pairs
    order: Annotated[int, Interval(ge=0)] = 0  # another value gives the same seed another order
    pairs: Annotated[int, Interval(ge=1)] | None = None  # to train on, of each toy language

    @property
    def subwords(self) -> Subwords:
        """The vocabulary, learnt once in a process."""
        names = tuple(self.vocabulary_of or self.names)
        return _learn_vocabulary(names, self.vocabulary, self.vocabulary_pairs)


class Language(NamedTuple):
    """The sentence pairs of one part of a language."""

    title: str
    size: int
    pair: Callable[[int], Pair]  # gives sentence number n and its translation


def open_language(
    name: str, part: Part = "train", *, validation: bool = False, pairs: int | None = None
) -> Language:
    """A part of a language; a one-line ValueError if there is none.

    The last two arguments are as in `TranslationTask`.
    """
    entry = find(name)
    if entry.kind != "pairs" or not entry.config:
        raise ValueError(f"data={name!r}: no language; try toy:alfa or opus100:de-en")
    if entry.hub:
        return _open_rows(entry, part, validation)
    sentences = corpus(str(entry.config), part, pairs)
    return Language(entry.title, len(sentences), sentences.__getitem__)


def _misaligned(language: Language, share: float) -> Language:
    """The language, where a share of the sentences have the translation of another sentence."""
    rng = np.random.default_rng(0)
    chosen = rng.permutation(language.size)[: round(share * language.size)]
    other = dict(zip(chosen.tolist(), np.roll(chosen, 1).tolist(), strict=True))

    def pair(place: int) -> Pair:
        return language.pair(place)[0], language.pair(other.get(place, place))[1]

    return language._replace(pair=pair)


@cache
def _learn_vocabulary(names: tuple[str, ...], size: int, pairs: int | None) -> Subwords:
    """About `size` sub-words of the training text of languages and of its translations."""
    sentences = [
        sentence
        for language in (open_language(name, pairs=pairs) for name in names)
        for example in range(min(language.size, _READ))
        for sentence in language.pair(example)
    ]
    return learn(sentences, size)


def open_pairs(
    task: TranslationTask, N: int, seed: int, replica: int = 0, replicas: int = 1
) -> Batches:
    """Training batches without end, in an order that the seed fixes.

    Returns:
        Batches of inputs (source int64 [N / D, S], target_in int64 [N / D, T] beginning with BOS)
        and targets int64 [N / D, T], where N is the mini-batch over all replicas.
    """
    languages = [
        open_language(name, validation=task.validation, pairs=task.pairs) for name in task.names
    ]
    languages = [_misaligned(language, task.misaligned) for language in languages]
    encoders = [_encoder(language, task) for language in languages]

    def read(
        tables: np.ndarray, examples: np.ndarray, _epochs: np.ndarray
    ) -> tuple[Inputs, Tensor]:
        chosen = zip(tables.tolist(), examples.tolist(), strict=True)
        return _collate([encoders[language](example) for language, example in chosen], task)

    counts = [language.size for language in languages]
    facts = {
        "data": ", ".join(dict.fromkeys(language.title for language in languages)),
        "pairs": str(sum(counts)),
    }
    if len(languages) > 1:
        facts["languages"] = str(len(languages))
        facts["temperature"] = f"{task.temperature:g}"
    if task.misaligned:
        facts["misaligned"] = f"{task.misaligned:.0%}"
    weights = [count ** (1 / task.temperature) for count in counts]
    shares = [weight / sum(weights) for weight in weights]
    # Seeds are small, so no other seed gives the same order. The order is never that of seed 0,
    # which chooses the misaligned pairs: all of them would come first.
    seed = (seed + (task.order << 32)) or _ORDER_OF_0
    return Batches(counts, read, N, seed, facts, replica, replicas, shares)


def evaluation_pairs(
    task: TranslationTask, name: str, N: int, count: int | None = None, part: Part = "test"
) -> tuple[Evaluation, list[str]]:
    """The first `count` pairs of a part, by default all: batches of N, and the translations."""
    language = open_language(name, part, validation=task.validation)
    number = language.size if count is None else min(count, language.size)
    encode = _encoder(language, task)

    def read(examples: np.ndarray) -> tuple[Inputs, Tensor]:
        return _collate([encode(example) for example in examples.tolist()], task)

    references = [language.pair(example)[1] for example in range(number)]
    return Evaluation(number, read, N), references


def _encoder(language: Language, task: TranslationTask) -> Callable[[int], np.ndarray]:
    """A function that gives source, target_in and target of a pair, joined: int64 [S + 2 T]."""
    S, T, subwords = task.S, task.T, task.subwords

    @lru_cache(_KEPT)
    def encode(example: int) -> np.ndarray:
        source, target = map(subwords.encode, language.pair(example))
        source, target = [*source[: S - 1], EOS], target[: T - 1]
        row = np.full(S + 2 * T, PAD)
        row[: len(source)] = source
        row[S : S + 1 + len(target)] = [BOS, *target]
        row[S + T : S + T + len(target) + 1] = [*target, EOS]
        return row

    return encode


def _collate(rows: list[np.ndarray], task: TranslationTask) -> tuple[Inputs, Tensor]:
    parts = torch.from_numpy(np.stack(rows)).split([task.S, task.T, task.T], dim=1)
    source, target_in, target = (part.contiguous() for part in parts)
    return (source, target_in), target


def _open_rows(entry: DataSet, part: Part, validation: bool) -> Language:
    rows = open_rows(entry, part != "test")
    source, target = str(entry.config).split("-")
    if source == ENGLISH:
        source, target = target, source
    numbers = np.flatnonzero(is_in(part, len(rows), False, validation))

    def pair(place: int) -> Pair:
        row = rows[int(numbers[place])]["translation"]
        return row[source] or "", row[target] or ""  # the Hub has rows without a sentence

    return Language(entry.title, len(numbers), pair)
