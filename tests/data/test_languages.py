import hashlib

from repro.data.languages import LANGUAGES, corpus


def test_the_text_is_the_one_that_recorded_trainings_read():
    """In every process, whatever its hash seed."""
    digest = hashlib.sha256()
    for name in LANGUAGES:
        digest.update(repr((corpus(name), corpus(name, "test"))).encode())
    assert digest.hexdigest()[:16] == "c3959543fbede1fb"


def test_meanings_of_the_parts_are_disjoint_in_all_languages():
    # English is the same exactly where the meaning is.
    english = {
        part: [{english for _, english in corpus(name, part)} for name in LANGUAGES]
        for part in ("train", "validation", "test")
    }
    training = set().union(*english["train"])
    for part, count in (("validation", 250), ("test", 500)):
        first, *others = english[part]
        assert len(first) == count
        assert all(other == first for other in others)
        assert not training & first
    assert not english["validation"][0] & english["test"][0]
    assert not any("  " in sentence for sentence in training), "no word is missing"
