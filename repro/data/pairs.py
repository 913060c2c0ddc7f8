"""Translation into English: batches of sentence pairs, of one language or of several mixed.

The paper mixes 102 languages by temperature sampling, "as in multilingual BERT" (section 5): a
language is drawn with a probability proportional to its number of pairs to the power of 1 / t. The
paper does not state t. There is no token for the language, as all translate into English.

Pairs are read in any order. So a set on the Hub is downloaded whole before the first batch: of
wmt14-de-en that is 4.5 million pairs.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from repro.data.batches import Batches, Evaluation
from repro.data.languages import ENGLISH, LANGUAGES, corpus
from repro.data.registry import DataSet, find
from repro.data.sources import TEST_EVERY, open_rows
from repro.data.subwords import Subwords, learn
from repro.data.tokens import BOS, EOS, PAD

_KEPT = 200_000  # encoded pairs of a language that are kept in memory
_READ = 200_000  # pairs of a language that sub-words are learnt from
_TEXT = ("string", "large_string")

Pair = tuple[str, str]
Inputs = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Language:
    """The sentence pairs of one language, training or test set.

    `pair` gives the sentence of a number, and its translation.
    """

    name: str
    title: str
    count: int
    pair: Callable[[int], Pair]


def open_languages(names: str | Sequence[str], train: bool = True) -> list[Language]:
    """The languages of one or several names.

    Args:
        names: "toy" for all nine toy languages, toy:alfa and the like for one of them, wmt14-de-en,
            opus100:de-en and the like, folder:PATH with parquet or csv files of a column
            "translation" or of two columns of text.
        train: the training sets, else the test sets.

    Raises:
        ValueError: a name is unknown, the data is not there, or a language is empty. One line.
    """
    asked = [names] if isinstance(names, str) else list(names)
    languages = []
    for name in asked:
        entry = find(name)
        if entry.local:
            entry = replace(entry, kind="pairs")
        if entry.kind != "pairs":
            raise ValueError(f"data={name!r}: {entry.title} are images, not sentences; try toy")
        languages += _open(entry, train)
    for language in languages:
        if language.count < 1:
            raise ValueError(
                f"data={language.name!r}: the language is empty: it has no "
                f"{'training' if train else 'test'} pair; leave it out, or try toy"
            )
    if not languages:
        raise ValueError("data=[]: no language is named; try toy")
    return languages


def learn_vocabulary(names: str | Sequence[str], size: int) -> Subwords:
    """Sub-words of the training text of languages and of its translations, of about `size` ids.

    Names are as for `open_languages`; at most 200,000 pairs of each language are read.
    """
    return _learn_vocabulary((names,) if isinstance(names, str) else tuple(names), size)


def open_pairs(
    names: str | Sequence[str],
    vocabulary: Subwords,
    S: int,
    T: int,
    N: int,
    seed: int,
    temperature: float = 1.0,
    replica: int = 0,
    replicas: int = 1,
) -> Batches:
    """Training batches without end.

    Args:
        names: as for `open_languages`.
        vocabulary: of both languages.
        S, T: tokens of a source and of a target. Each ends with EOS; longer ones are cut, shorter
            ones padded.
        N: pairs of a mini-batch over all replicas.
        seed: fixes the order.
        temperature: 1 draws languages as often as they have pairs; a higher one draws small
            languages more often.
        replica, replicas: number of this replica, and D.

    Returns:
        Batches of inputs (source int64 [N / D, S], target_in int64 [N / D, T] beginning with BOS)
        and targets int64 [N / D, T].
    """
    languages = open_languages(names)
    encoders = [_Encoder(language, vocabulary, S, T) for language in languages]

    def read(
        tables: np.ndarray, examples: np.ndarray, _epochs: np.ndarray
    ) -> tuple[Inputs, Tensor]:
        chosen = zip(tables.tolist(), examples.tolist(), strict=True)
        return _collate([encoders[language](example) for language, example in chosen], S, T)

    counts = [language.count for language in languages]
    probabilities = sampling(counts, temperature)
    facts = {
        "data": ", ".join(dict.fromkeys(language.title for language in languages)),
        "pairs": str(sum(counts)),
    }
    if len(languages) > 1:
        facts["languages"] = str(len(languages))
        facts["temperature"] = f"{temperature:g}"
    return Batches(counts, read, N, seed, facts, replica, replicas, probabilities)


def sampling(counts: Sequence[int], temperature: float) -> list[float]:
    """The probability of each language: proportional to count ** (1 / temperature)."""
    if temperature <= 0:
        raise ValueError(f"temperature={temperature}: must be positive; 1 keeps the data's shares")
    weights = [count ** (1 / temperature) for count in counts]
    return [weight / sum(weights) for weight in weights]


@dataclass(frozen=True)
class TestSet:
    """The test pairs of one language.

    Attributes:
        batches: of N pairs, the last may be smaller; shapes as those of `open_pairs`.
        sources: sentences, in the order of the batches.
        references: their translations into English.
    """

    batches: Sequence[tuple[Inputs, Tensor]]
    sources: list[str]
    references: list[str]

    __test__ = False  # no test of pytest


def evaluation_pairs(
    name: str, vocabulary: Subwords, S: int, T: int, N: int, count: int | None = None
) -> TestSet:
    """The first `count` test pairs of one language, by default all of them."""
    languages = open_languages(name, train=False)
    if len(languages) > 1:
        raise ValueError(
            f"data={name!r}: these are {len(languages)} languages, and a test set is of one; try "
            f"{languages[0].name}"
        )
    language = languages[0]
    number = language.count if count is None else min(count, language.count)
    encode = _Encoder(language, vocabulary, S, T)
    pairs = [language.pair(example) for example in range(number)]

    def read(examples: np.ndarray) -> tuple[Inputs, Tensor]:
        return _collate([encode(example) for example in examples.tolist()], S, T)

    batches = Evaluation(number, read, N)
    return TestSet(batches, [source for source, _ in pairs], [target for _, target in pairs])


@cache
def _learn_vocabulary(names: tuple[str, ...], size: int) -> Subwords:
    sentences = [
        sentence
        for language in open_languages(names)
        for example in range(min(language.count, _READ))
        for sentence in language.pair(example)
    ]
    return learn(sentences, size)


@dataclass
class _Encoder:
    """Token ids of the pairs of a language, kept after their first use."""

    language: Language
    vocabulary: Subwords
    S: int
    T: int
    _kept: dict[int, np.ndarray] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("S", "T"):
            if getattr(self, name) < 2:
                raise ValueError(f"{name}={getattr(self, name)}: must be at least 2 tokens")

    def __call__(self, example: int) -> np.ndarray:
        """Source, target_in and target of one pair, one after the other, int64 [S + 2 T]."""
        row = self._kept.get(example)
        if row is None:
            source, target = map(self.vocabulary.encode, self.language.pair(example))
            target = target[: self.T - 1]
            row = np.full(self.S + 2 * self.T, PAD)
            source = [*source[: self.S - 1], EOS]
            row[: len(source)] = source
            row[self.S : self.S + 1 + len(target)] = [BOS, *target]
            row[self.S + self.T : self.S + self.T + len(target) + 1] = [*target, EOS]
            if len(self._kept) < _KEPT:
                self._kept[example] = row
        return row


def _collate(rows: list[np.ndarray], S: int, T: int) -> tuple[Inputs, Tensor]:
    source, target_in, target = torch.from_numpy(np.stack(rows)).split([S, T, T], dim=1)
    return (source.contiguous(), target_in.contiguous()), target.contiguous()


def _open(entry: DataSet, train: bool) -> list[Language]:
    if not entry.hub and not entry.local:
        languages = []
        for name in [entry.path] if entry.path else list(LANGUAGES):
            pairs = _toy_pairs(name, train)
            languages.append(Language(f"toy:{name}", entry.title, len(pairs), pairs.__getitem__))
        return languages
    if entry.hub and not entry.config:
        raise ValueError(
            f"data={entry.name!r}: name the language too, such as {entry.name}:de-en; or try toy"
        )
    rows, whole = open_rows(entry, train)
    source, target, nested = _columns(entry, rows)
    numbers: Sequence[int] = range(len(rows))
    if whole:
        numbers = [n for n in numbers if (n % TEST_EVERY == TEST_EVERY - 1) != train]

    def pair(place: int) -> Pair:
        row = rows[numbers[place]]
        if nested:
            row = row["translation"]
        return row[source] or "", row[target] or ""  # the Hub has rows without a sentence

    return [Language(entry.name, entry.title, len(numbers), pair)]


@cache
def _toy_pairs(name: str, train: bool) -> list[Pair]:
    return corpus(name, split="train" if train else "test")


def _columns(entry: DataSet, rows: Any) -> tuple[str, str, bool]:
    """Names of source and target, and whether they stand inside the column "translation"."""
    if entry.hub:
        return entry.columns[1], ENGLISH, True
    from datasets import Translation

    nested = rows.features.get("translation")
    if isinstance(nested, Translation):
        texts = list(nested.languages)
    else:
        kinds = nested if isinstance(nested, dict) else rows.features
        texts = [name for name, kind in kinds.items() if getattr(kind, "dtype", "") in _TEXT]
    if len(texts) != 2:
        raise ValueError(
            f"data={entry.name!r}: it has the columns {', '.join(rows.features)}; there must be a "
            'column "translation" of two languages, or two columns of text'
        )
    targets = [name for name in (ENGLISH, "target") if name in texts]
    target = targets[0] if targets else texts[1]
    source = texts[1 - texts.index(target)]
    return source, target, nested is not None
