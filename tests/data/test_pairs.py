import pytest
import torch

from repro.data.languages import corpus
from repro.data.pairs import TranslationTask, evaluation_pairs, open_language, open_pairs
from repro.data.tokens import BOS, EOS, PAD, UNK

TASK = TranslationTask(
    names=("toy:golf", "toy:hotel", "toy:india"), vocabulary=600, S=40, T=30, temperature=5.0
)


def test_decoding_undoes_encoding():
    subwords = TASK.subwords
    for sentence in (sentence for pair in corpus("india") for sentence in pair):
        ids = subwords.encode(sentence)
        assert min(ids) > max(PAD, UNK, BOS, EOS)
        assert max(ids) < len(subwords) == 600
        assert subwords.decode([BOS, *ids, EOS, PAD, PAD, 17]) == sentence
    with pytest.raises(ValueError, match=r"vocabulary=10: .* try vocabulary=1000") as error:
        _ = TASK.model_copy(update={"vocabulary": 10}).subwords
    assert "\n" not in str(error.value)


def test_batches_have_the_shapes_and_ends_of_the_design():
    (source, target_in), targets = open_pairs(TASK, N=8, seed=0).next()
    assert source.shape == (8, 40)
    assert target_in.shape == targets.shape == (8, 30)
    assert {source.dtype, target_in.dtype, targets.dtype} == {torch.int64}
    assert (target_in[:, 0] == BOS).all()
    for row in [*source.tolist(), *targets.tolist()]:
        end = row.index(EOS)
        assert PAD not in row[:end]
        assert set(row[end + 1 :]) <= {PAD}
    # The decoder's input is its target, one position later.
    inside = targets[:, :-1] * (targets[:, :-1] != EOS)
    assert torch.equal(target_in[:, 1:], inside)
    sentences = {pair for name in ("golf", "hotel", "india") for pair in corpus(name)}
    for row, translation in zip(source, targets, strict=True):
        assert (TASK.subwords.decode(row), TASK.subwords.decode(translation)) in sentences


def test_a_test_set_keeps_its_references_in_order():
    batches, references = evaluation_pairs(TASK, "toy:golf", N=64, count=150)
    assert [len(targets) for _, targets in batches] == [64, 64, 22]
    assert references == [english for _, english in corpus("golf", train=False)[:150]]
    assert [TASK.subwords.decode(row) for _, targets in batches for row in targets] == references


@pytest.mark.parametrize("form", ["parquet", "nested parquet", "csv"])
def test_pairs_in_a_folder(tmp_path, form):
    from datasets import Dataset

    pairs = corpus("india")[:20]
    if form == "nested parquet":
        rows = Dataset.from_dict({"translation": [{"de": s, "en": t} for s, t in pairs]})
    else:
        rows = Dataset.from_dict({"en": [t for _, t in pairs], "de": [s for s, _ in pairs]})
    if form == "csv":
        rows.to_csv(tmp_path / "pairs.csv")
    else:
        rows.to_parquet(tmp_path / "pairs.parquet")
    train, test = (open_language(f"folder:{tmp_path}", train) for train in (True, False))
    assert [train.pair(k) for k in range(train.size)] == [
        pair for k, pair in enumerate(pairs) if k % 5 < 4
    ]
    assert [test.pair(k) for k in range(test.size)] == pairs[4::5]
