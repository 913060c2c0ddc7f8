import pytest
import torch

from repro.data import text


@pytest.mark.parametrize("V", [16, 100, 6000])
def test_vocabulary_has_v_different_words(V):
    words = text.vocabulary(V)
    assert len(words) == V
    assert list(words.values()) == list(range(V))


def test_a_larger_vocabulary_only_adds_words():
    assert list(text.vocabulary(6000))[:100] == list(text.vocabulary(100))


@pytest.mark.parametrize(("N", "T", "V"), [(3, 10, 16), (2, 64, 1000), (1, 1, 50)])
def test_targets_are_the_next_tokens(N, T, V):
    inputs, targets = text.batch(N, T, V, seed=0)
    assert inputs.shape == targets.shape == (N, T)
    assert inputs.dtype == targets.dtype == torch.int64
    assert torch.equal(inputs[:, 1:], targets[:, :-1])
    assert min(inputs.min(), targets.min()) >= 0
    assert max(inputs.max(), targets.max()) < V


def test_same_seed_same_text_another_seed_another():
    a, b, c = (text.batch(4, 32, 100, seed)[0] for seed in (3, 3, 4))
    assert torch.equal(a, b)
    assert not torch.equal(a, c)


def test_sentences_are_of_the_grammar():
    sentences = text.sentences(20, 100, seed=0)
    assert len(sentences) == 20
    for sentence in sentences:
        words = sentence.split()
        assert words[0] in text._DETERMINERS
        assert words[-1] == "."
        assert len(words) >= text._SHORTEST


def test_words_follow_zipf():
    tokens, _ = text.batch(50, 400, 1000, seed=0)
    counts = tokens.flatten().bincount(minlength=1000)
    the, a, first_noun, tenth_noun = counts[1], counts[2], counts[9], counts[9 + 3 * 9]
    assert 1.5 < the / a < 2.5
    assert 6 < first_noun / tenth_noun < 16
