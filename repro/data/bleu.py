"""BLEU of translations, by sacrebleu."""

from collections.abc import Sequence


def score(hypotheses: Sequence[str], references: Sequence[str]) -> tuple[float, str]:
    """BLEU of a test set, from 0 to 100, and sacrebleu's signature, which must stand beside it."""
    from sacrebleu.metrics import BLEU  # pyright: ignore[reportMissingImports]

    assert len(hypotheses) == len(references) > 0
    metric = BLEU()
    bleu = metric.corpus_score(list(hypotheses), [list(references)])
    return bleu.score, str(metric.get_signature())
