import hashlib

from repro.data.languages import LANGUAGES, corpus


def test_the_text_is_the_one_that_recorded_trainings_read():
    """In every process, whatever its hash seed."""
    digest = hashlib.sha256()
    for name in LANGUAGES:
        digest.update(repr((corpus(name), corpus(name, train=False))).encode())
    assert digest.hexdigest()[:16] == "ca75ceee4c334e4f"


def test_training_and_test_meanings_are_disjoint_in_all_languages():
    # English is the same exactly where the meaning is.
    training = {english for name in LANGUAGES for _, english in corpus(name)}
    tests = [{english for _, english in corpus(name, train=False)} for name in LANGUAGES]
    assert len(tests[0]) == 200
    assert all(test == tests[0] for test in tests)
    assert not training & tests[0]
