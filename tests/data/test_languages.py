import subprocess
import sys
from collections import Counter

import pytest

from repro.data import languages
from repro.data.languages import LANGUAGES, corpus


@pytest.mark.parametrize("name", LANGUAGES)
def test_sentences_have_5_to_10_words_and_no_meaning_comes_twice(name):
    pairs = corpus(name, 300)
    assert len({english for _, english in pairs}) == 300
    assert {len(text.split()) for pair in pairs for text in pair} <= set(range(5, 11))


def test_sentences_do_not_depend_on_the_process():
    program = "from repro.data.languages import corpus; print(corpus('golf', 20))"
    printed = {
        subprocess.run(
            [sys.executable, "-c", program],
            capture_output=True,
            text=True,
            check=True,
            env={"PYTHONHASHSEED": seed, "PYTHONIOENCODING": "utf-8", "PYTHONPATH": "."},
        ).stdout.strip()
        for seed in ("1", "2")
    }
    assert printed == {str(corpus("golf", 20))}


def test_training_and_test_meanings_are_disjoint_in_all_languages_and_seeds():
    # English is the same exactly where the meaning is.
    training = {
        english for name in LANGUAGES for seed in (0, 1) for _, english in corpus(name, 800, seed)
    }
    test = {english for _, english in corpus("alfa", 400, split="test")}
    assert not training & test


def test_test_sets_of_all_languages_have_the_same_meanings():
    sets = [[english for _, english in corpus(name, 60, split="test")] for name in LANGUAGES]
    assert all(each == sets[0] for each in sets)


def test_sizes_follow_zipf_in_three_tiers():
    sizes = [language.size for language in LANGUAGES.values()]
    assert len(sizes) == 9
    assert [round(sizes[0] / size) for size in sizes] == [r * r for r in range(1, 10)]
    tiers = Counter(language.tier for language in LANGUAGES.values())
    assert tiers == {"high": 3, "middle": 3, "low": 3}
    assert len(corpus("india")) == LANGUAGES["india"].size == 247


def test_only_families_share_words():
    lexicons = {name: set(languages._lexicon(name).roots.values()) for name in LANGUAGES}
    for a in LANGUAGES.values():
        for b in LANGUAGES.values():
            shared = len(lexicons[a.name] & lexicons[b.name]) / len(lexicons[a.name])
            if a.name != b.name and a.family and a.family == b.family:
                assert 0.3 < shared < 0.8
            elif a.name != b.name:
                assert shared == 0


def test_grammars_differ_where_they_say_so():
    phrase = languages.Phrase("dog", plural=False, definite=True, adjective="big")
    other = languages.Phrase("cat", plural=True, definite=True, adjective=None)
    meaning = languages.Meaning(phrase, "help", True, other, None, None)
    assert languages.say("en", meaning) == "the big dog helped the cats"

    def said(name):
        lexicon = languages._lexicon(name)
        back = {root: concept for concept, root in lexicon.roots.items()}
        back |= {lexicon.the: "the"}
        back[lexicon.roots["help"] + lexicon.past] = "helped"
        back[lexicon.past + lexicon.roots["help"]] = "helped"
        back[lexicon.roots["cat"] + lexicon.plural] = "cats"
        back[lexicon.plural + lexicon.roots["cat"]] = "cats"
        back[lexicon.roots["cat"] + lexicon.plural + lexicon.patient] = "cats-patient"
        return " ".join(back[word] for word in languages.say(name, meaning).split())

    assert said("alfa") == "the dog big helped the cats"  # SVO, the adjective last
    assert said("bravo") == "the big dog the cats-patient helped"  # SOV with case
    assert said("charlie") == "helped the big dog the cats"  # VSO
    assert said("foxtrot") == "helped cats the big dog the"  # VOS, the article last


def test_a_language_that_does_not_exist_or_is_empty():
    with pytest.raises(ValueError, match=r"language='latin': .* alfa, bravo"):
        corpus("latin")
    with pytest.raises(ValueError, match=r"count=0: .* try count=20000"):
        corpus("alfa", 0)
