import hashlib

from repro.data.languages import LANGUAGES, corpus
from repro.data.sources import Part


def test_the_text_is_the_one_that_recorded_trainings_read():
    """In every process, whatever its hash seed.

    In this text no meaning is in two parts, and validation and test are alike in all languages.
    """
    parts: list[Part] = ["train", "validation", "test"]
    text = repr([corpus(name, part) for name in LANGUAGES for part in parts])
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == "961f2b3098d87bfe"
