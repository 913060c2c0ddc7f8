"""Toy languages: nine made-up languages and English share meanings, and translate into each other.

The paper trains on 25 billion sentence pairs of 102 languages that are not public (section 5). Here
a meaning is a small tree. Each language says it with words, word order, morphology and script of
its own; the members of a family share a script and a part of their words. The sizes of the training
sets follow Zipf's law: from 20,000 pairs down to 247, where the paper has 10^9 down to 10^4.
"""

import zlib
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import accumulate
from random import Random
from typing import NamedTuple

ENGLISH = "en"

_LARGEST = 20_000  # training pairs of the language of rank 1
_EXPONENT = 2  # of Zipf's law: rank r has _LARGEST / r ** _EXPONENT pairs
_SHARED = 0.7  # of the roots of a language are its family's
_TEST = 10  # one meaning in so many is a test meaning
_TEST_PAIRS = 200
_ADJECTIVE, _PLURAL, _DEFINITE, _PLACE, _PAST = 0.5, 0.4, 0.5, 0.5, 0.5  # probabilities

# Concepts, the frequent ones first: the r-th of a list is drawn with probability ~ 1 / r.
# English adds "s" and "ed" to all of these without any other change, and no noun needs "an".
_CONCEPTS = (
    "dog cat girl boy teacher doctor farmer king singer driver painter hunter sailor "
    "neighbor bird horse cow lion bear goat duck cub tiger frog rabbit robot giant pirate "
    "baker dancer student writer monster guard queen soldier stranger beggar judge clown",  # nouns
    "help call follow visit greet paint pull lift want need clean warn answer remember "
    "train reward respect doubt film defend attack correct reject trust",  # verbs
    "big small young happy clever brave quiet strong hungry tired gentle rich poor proud "
    "shy famous",  # adjectives
    "near behind with without",  # prepositions
)
_NOUNS, _VERBS, _ADJECTIVES, _PREPOSITIONS = (kind.split() for kind in _CONCEPTS)
_ALL = (*_NOUNS, *_VERBS, *_ADJECTIVES, *_PREPOSITIONS)
# Articles, and affixes, of which "present" is that of one agent. A lexicon has a word for each of
# these and for each concept.
_GRAMMATICAL = ("the", "a", "several", "plural", "past", "present", "patient")


class Phrase(NamedTuple):
    """Somebody: a noun with number, definiteness and perhaps an adjective; all are concepts."""

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
    """How a language puts a sentence together."""

    order: str  # S, V and O as they follow one another
    adjective_last: bool = False  # the adjective stands after its noun
    article_last: bool = False  # the article ends the phrase
    prefixes: bool = False  # plural, tense and case stand before the root instead of after it
    case: bool = False  # the patient's noun is marked
    preposition_last: bool = False  # the preposition stands after its phrase


class Language(NamedTuple):
    """A language: its place by the size of its training set, its grammar and its script."""

    rank: int  # 1 for the largest training set
    grammar: Grammar
    script: str

    @property
    def size(self) -> int:
        return round(_LARGEST / self.rank**_EXPONENT)


# Consonants and vowels.
_SCRIPTS = {
    "greek": ("βγδζκλμνπρστφχ", "αειου"),
    "cyrillic": ("бвгджзклмнпрст", "аеиоу"),
    "georgian": ("ბგდვზთკლმნპრსტ", "აეიოუ"),
    "katakana": ("カサタナハマヤラワキシチ", "アイウエオ"),
    "armenian": ("բգդզթլկմնպրստվ", "աեիօէ"),
}
_FAMILIES = ("greek", "cyrillic")  # scripts that more than one language has
LANGUAGES = {
    "alfa": Language(1, Grammar("SVO", adjective_last=True), "greek"),
    "bravo": Language(2, Grammar("SOV", case=True), "cyrillic"),
    "charlie": Language(3, Grammar("VSO", prefixes=True), "georgian"),
    "delta": Language(4, Grammar("SOV", adjective_last=True, case=True), "greek"),
    "echo": Language(5, Grammar("OVS", case=True), "cyrillic"),
    "foxtrot": Language(6, Grammar("VOS", article_last=True), "katakana"),
    "golf": Language(7, Grammar("VSO", adjective_last=True, prefixes=True), "greek"),
    "hotel": Language(8, Grammar("SVO", preposition_last=True), "cyrillic"),
    "india": Language(9, Grammar("OSV", True, True, preposition_last=True), "armenian"),
}


@cache
def corpus(language: str, train: bool = True) -> list[tuple[str, str]]:
    """Sentences of 5 to 10 words and their English translations: a training set, or 200 to test.

    No meaning comes twice or is in both splits. All languages have the same test meanings.
    """
    if language not in LANGUAGES:
        raise ValueError(
            f"data='toy:{language}': no toy language has this name; allowed are "
            f"{', '.join(LANGUAGES)}"
        )
    count = LANGUAGES[language].size if train else _TEST_PAIRS
    source = f"train 0 {language}" if train else "test 0"
    pairs: dict[Meaning, tuple[str, str]] = {}
    for meaning in _meanings(source):
        # Whatever the language, a meaning is either one to train on or one to test.
        to_train = zlib.crc32(repr(meaning).encode()) % _TEST > 0
        if to_train == train and meaning not in pairs:
            pairs[meaning] = (say(language, meaning), say(ENGLISH, meaning))
            if len(pairs) == count:
                break
    return list(pairs.values())


def say(language: str, meaning: Meaning) -> str:
    if language == ENGLISH:
        grammar, lexicon = Grammar("SVO"), _ENGLISH
    else:
        grammar, lexicon = LANGUAGES[language].grammar, _lexicon(language)

    def inflected(concept: str, affixes: list[str]) -> str:
        root = lexicon[concept]
        return "".join([*affixes, root] if grammar.prefixes else [root, *affixes])

    def phrase(part: Phrase, patient: bool = False) -> list[str]:
        affixes = [lexicon["plural"]] * part.plural
        affixes += [lexicon["patient"]] * (patient and grammar.case)
        noun = [inflected(part.noun, affixes)]
        if part.adjective:
            adjective = [lexicon[part.adjective]]
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
        "V": [inflected(meaning.action, [tense])],
        "O": phrase(meaning.patient, patient=True),
    }
    sentence = [word for role in grammar.order for word in parts[role]]
    if meaning.preposition and meaning.companion:
        preposition = [lexicon[meaning.preposition]]
        companion = phrase(meaning.companion)
        last = grammar.preposition_last
        sentence += companion + preposition if last else preposition + companion
    return " ".join(sentence)


def _meanings(source: str) -> Iterator[Meaning]:
    """Meanings without end; `source` seeds them. The order of the draws fixes the text."""
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
        # Drawn for every concept, so that the members of a family agree on what they share.
        root = word(inherited, inherited.choice((2, 2, 3)))
        if language.script not in _FAMILIES or invented.random() >= _SHARED or root in taken:
            root = new_word(invented.choice((2, 2, 3)))
        taken.add(root)
        roots[concept] = root
    return roots | {name: new_word(1) for name in _GRAMMATICAL}
