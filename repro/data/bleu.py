"""BLEU of translations, by sacrebleu."""

from collections.abc import Sequence


def score(hypotheses: Sequence[str], references: Sequence[str]) -> tuple[float, str]:
    """BLEU of a test set, from 0 to 100, and sacrebleu's signature, which must stand beside it."""
    from sacrebleu.metrics import BLEU  # pyright: ignore[reportMissingImports]

    if not references or len(hypotheses) != len(references):
        raise ValueError(
            f"{len(hypotheses)} translations for {len(references)} references: there must be one "
            "for each reference, and at least one"
        )
    metric = BLEU()
    bleu = metric.corpus_score(list(hypotheses), [list(references)])
    return bleu.score, str(metric.get_signature())
