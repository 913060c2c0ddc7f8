import pytest

from repro.data.bleu import score


def test_bleu_is_sacrebleus_and_says_how():
    import sacrebleu

    hypotheses = ["the dog helped the big cat", "a king follows some boys"]
    references = ["the dog helped a big cat", "the king follows some boys"]
    bleu, signature = score(hypotheses, references)
    assert bleu == sacrebleu.corpus_bleu(hypotheses, [references]).score
    assert 0 < bleu < 100
    assert signature.startswith("nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:")
    assert score(references, references)[0] == pytest.approx(100)
