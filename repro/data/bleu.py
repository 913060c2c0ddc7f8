"""BLEU of translations by sacrebleu; a result must also state the signature."""


def score(hypotheses: list[str], references: list[str]) -> tuple[float, str]:
    """BLEU of a test set, from 0 to 100 or NaN if no reference has four words; its signature."""
    from sacrebleu.metrics import BLEU  # pyright: ignore[reportMissingImports]

    assert len(hypotheses) == len(references) > 0
    metric = BLEU()
    bleu = metric.corpus_score(hypotheses, [references])
    perfect = metric.corpus_score(references, [references])  # 0 without four words in a row
    return bleu.score if perfect.score else float("nan"), str(metric.get_signature())
