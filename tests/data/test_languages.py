import subprocess
import sys

from repro.data import languages
from repro.data.languages import LANGUAGES, corpus


def test_sentences_do_not_depend_on_the_process():
    program = "from repro.data.languages import corpus; print(corpus('golf')[:20])"
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
    assert printed == {str(corpus("golf")[:20])}


def test_training_and_test_meanings_are_disjoint_in_all_languages():
    # English is the same exactly where the meaning is.
    training = {english for name in LANGUAGES for _, english in corpus(name)}
    tests = [{english for _, english in corpus(name, "test")} for name in LANGUAGES]
    assert len(tests[0]) == 200
    assert all(test == tests[0] for test in tests)
    assert not training & tests[0]


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
