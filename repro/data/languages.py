"""Toy languages: six made-up languages and English share meanings, and translate into each other.

The paper trains on 25 billion sentence pairs of 102 languages that are not public (section 5). Here
a meaning is a small tree. Each language has its own words, word order, morphology and script; the
two members of a family share a script, a part of their words and one rule: next to some kinds of
nouns a verb has another meaning, and so has an adjective. So translating word by word is not
enough, and small models have something left to learn. The sizes of the training sets fall by a
constant factor, from 20,000 pairs to 250; in the paper they range from 10^9 to 10^4.
"""

import tomllib
import zlib
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import accumulate
from pathlib import Path
from random import Random
from typing import NamedTuple

from repro.data.sources import Part

ENGLISH = "en"

_LARGEST, _SMALLEST = 20_000, 250  # training pairs
_SHARED = 0.7  # of the roots of a language are its family's
# One tenth of the meanings are test meanings, and one tenth are validation meanings.
_TENTHS: dict[int, Part] = {0: "test", 1: "validation"}
_HELD_OUT = {"test": 500, "validation": 250}  # pairs
_ADJECTIVE, _PLURAL, _DEFINITE, _PLACE, _PAST = 0.5, 0.4, 0.5, 0.5, 0.5  # probabilities

# The r-th concept of a list is drawn with probability ~ 1 / r.
_CONCEPTS = tomllib.loads(Path(__file__).with_name("concepts.toml").read_text(encoding="utf-8"))
_NOUNS, _VERBS, _ADJECTIVES, _PREPOSITIONS = (words.split() for words in _CONCEPTS.values())
_KINDS = 10  # of nouns: those of a kind have the same neighbours
_ALL = (*_NOUNS, *_VERBS, *_ADJECTIVES, *_PREPOSITIONS)
_PLACES = {concept: place for place, concept in enumerate(_ALL)}
# Articles and affixes; "present" is the affix of a single agent. A lexicon has a word for each of
# these and for each concept.
_GRAMMATICAL = ("the", "a", "several", "plural", "past", "present", "patient")


class Phrase(NamedTuple):
    """A noun with number, definiteness and perhaps an adjective; words are concepts."""

    noun: str
    plural: bool
    definite: bool
    adjective: str | None


class Meaning(NamedTuple):
    """Who does what to whom, when, and perhaps near whom."""

    agent: Phrase
    action: str
    past: bool
    patient: Phrase
    preposition: str | None
    companion: Phrase | None


class Grammar(NamedTuple):
    """The rules by which a language makes a sentence."""

    order: str  # of S, V and O
    adjective_last: bool = False  # whether the adjective follows its noun
    article_last: bool = False  # whether the article ends the phrase
    prefixes: bool = False  # plural, tense and case precede the root; else they follow it
    case: bool = False  # whether the patient's noun is marked


class Language(NamedTuple):
    """A language: its rank by the size of its training set, its grammar, script and family."""

    rank: int  # 0 for the largest training set
    grammar: Grammar
    script: str  # the script of its family

    @property
    def size(self) -> int:
        return round(_LARGEST * (_SMALLEST / _LARGEST) ** (self.rank / (len(LANGUAGES) - 1)))


# Consonants and vowels.
_SCRIPTS = {
    "greek": ("βγδζκλμνπρστφχ", "αειου"),
    "cyrillic": ("бвгджзклмнпрст", "аеиоу"),
    "georgian": ("ბგდვზთკლმნპრსტ", "აეიოუ"),
}
LANGUAGES = {
    "alfa": Language(0, Grammar("SVO", adjective_last=True), "greek"),
    "bravo": Language(1, Grammar("SOV", case=True), "cyrillic"),
    "charlie": Language(2, Grammar("VSO", prefixes=True), "georgian"),
    "delta": Language(3, Grammar("SOV", adjective_last=True, case=True), "greek"),
    "echo": Language(4, Grammar("OVS", case=True), "cyrillic"),
    "foxtrot": Language(5, Grammar("VOS", article_last=True), "georgian"),
}


@cache
def corpus(language: str, part: Part = "train", pairs: int | None = None) -> list[tuple[str, str]]:
    """Sentences of 5 to 10 words and their English translations.

    No meaning comes twice or is in two parts. All languages have the same validation and test
    meanings.

    Args:
        pairs: of the training set, instead of the language's own number.
    """
    if language not in LANGUAGES:
        raise ValueError(
            f"data='toy:{language}': no toy language has this name; allowed are "
            f"{', '.join(LANGUAGES)}"
        )
    count = _HELD_OUT.get(part) or pairs or LANGUAGES[language].size
    source = f"train 0 {language}" if part == "train" else f"{part} 0"
    found: dict[Meaning, tuple[str, str]] = {}
    for meaning in _meanings(source):
        # A meaning belongs to the same part in every language.
        tenth = zlib.crc32(repr(meaning).encode()) % 10
        if _TENTHS.get(tenth, "train") == part and meaning not in found:
            found[meaning] = (_translated(language, meaning), _translated(ENGLISH, meaning))
            if len(found) == count:
                break
    return list(found.values())


def _translated(language: str, meaning: Meaning) -> str:
    if language == ENGLISH:
        grammar, lexicon, family = Grammar("SVO"), _ENGLISH, ""
    else:
        grammar, lexicon = LANGUAGES[language].grammar, _lexicon(language)
        family = LANGUAGES[language].script

    def inflected(concept: str, affixes: list[str]) -> str:
        root = lexicon[concept]
        return "".join([*affixes, root] if grammar.prefixes else [root, *affixes])

    def phrase(part: Phrase, patient: bool = False) -> list[str]:
        affixes = [lexicon["plural"]] * part.plural
        affixes += [lexicon["patient"]] * (patient and grammar.case)
        noun = [inflected(part.noun, affixes)]
        if part.adjective:
            adjective = [lexicon[_meant(family, part.adjective, part.noun)]]
            noun = noun + adjective if grammar.adjective_last else adjective + noun
        article = lexicon["several" if part.plural else "a"]
        if part.definite:
            article = lexicon["the"]
        return [*noun, article] if grammar.article_last else [article, *noun]

    tense = lexicon["past"]
    if not meaning.past:
        tense = "" if meaning.agent.plural else lexicon["present"]
    parts = {
        "S": phrase(meaning.agent),
        "V": [inflected(_meant(family, meaning.action, meaning.patient.noun), [tense])],
        "O": phrase(meaning.patient, patient=True),
    }
    sentence = [word for role in grammar.order for word in parts[role]]
    if meaning.preposition and meaning.companion:
        preposition = [lexicon[meaning.preposition]]
        sentence += preposition + phrase(meaning.companion)
    return " ".join(sentence)


def _meant(family: str, concept: str, noun: str) -> str:
    """The concept whose word a family uses next to a noun: for half of the kinds its neighbour."""
    if not family:  # English
        return concept
    place = _PLACES[concept]
    pair, kind = place // 2, _PLACES[noun] % _KINDS
    swapped = zlib.crc32(f"{family} {pair} {kind}".encode()) % 2
    return _ALL[place ^ swapped]


def _meanings(source: str) -> Iterator[Meaning]:
    """Meanings without end, seeded by `source`. The order of the draws determines the text."""
    rng = Random(source)
    weights = list(accumulate(1 / rank for rank in range(1, len(_NOUNS) + 1)))

    def concept(concepts: Sequence[str]) -> str:
        return rng.choices(concepts, cum_weights=weights[: len(concepts)])[0]

    def phrase() -> Phrase:
        noun = concept(_NOUNS)
        plural, definite = rng.random() < _PLURAL, rng.random() < _DEFINITE
        adjective = concept(_ADJECTIVES) if rng.random() < _ADJECTIVE else None
        return Phrase(noun, plural, definite, adjective)

    while True:
        agent, action, past, patient = phrase(), concept(_VERBS), rng.random() < _PAST, phrase()
        preposition, companion = None, None
        if rng.random() < _PLACE:
            # Without an adjective, so that no sentence has more than ten words.
            preposition, companion = concept(_PREPOSITIONS), phrase()._replace(adjective=None)
        yield Meaning(agent, action, past, patient, preposition, companion)


_ENGLISH = {
    **{concept: concept for concept in _ALL},
    **dict(zip(_GRAMMATICAL, ("the", "a", "some", "s", "ed", "s", ""), strict=True)),
}


@cache
def _lexicon(name: str) -> dict[str, str]:
    """Roots of two or three syllables, some of them the family's; affixes of one syllable."""
    language = LANGUAGES[name]
    consonants, vowels = _SCRIPTS[language.script]
    inherited = Random(f"family {language.script}")
    invented = Random(f"language {name}")
    taken: set[str] = set()

    def word(rng: Random, syllables: int) -> str:
        return "".join(rng.choice(consonants) + rng.choice(vowels) for _ in range(syllables))

    def new_word(syllables: int) -> str:
        while (made := word(invented, syllables)) in taken:
            pass
        taken.add(made)
        return made

    roots = {}
    for concept in _ALL:
        # Drawn for every concept, so that the members of a family share the same words.
        root = word(inherited, inherited.choice((2, 2, 3)))
        if invented.random() >= _SHARED or root in taken:
            root = new_word(invented.choice((2, 2, 3)))
        taken.add(root)
        roots[concept] = root
    return roots | {name: new_word(1) for name in _GRAMMATICAL}
