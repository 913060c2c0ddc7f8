import pytest

from repro.data.languages import corpus
from repro.data.subwords import learn
from repro.data.tokens import BOS, EOS, PAD, UNK


@pytest.fixture(scope="module")
def text():
    return [sentence for pair in corpus("bravo", 500) for sentence in pair]


@pytest.fixture(scope="module")
def vocabulary(text):
    return learn(text, 300)


def test_decoding_undoes_encoding(text, vocabulary):
    for sentence in text:
        ids = vocabulary.encode(sentence)
        assert min(ids) > max(PAD, UNK, BOS, EOS)
        assert max(ids) < len(vocabulary) == 300
        assert vocabulary.decode([BOS, *ids, EOS, PAD, PAD, 17]) == sentence


def test_a_vocabulary_that_cannot_be(text):
    with pytest.raises(ValueError, match=r"vocabulary=10: .* try vocabulary=1000") as error:
        learn(text, 10)
    assert "\n" not in str(error.value)
    with pytest.raises(ValueError, match="every sentence is empty"):
        learn(["", " "], 100)
