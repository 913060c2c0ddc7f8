import json

import pytest
import torch

from repro.data.languages import corpus
from repro.data.pairs import (
    evaluation_pairs,
    learn_vocabulary,
    open_languages,
    open_pairs,
    sampling,
)
from repro.data.tokens import BOS, EOS, PAD

SMALL = ("toy:golf", "toy:hotel", "toy:india")


@pytest.fixture(scope="module")
def vocabulary():
    return learn_vocabulary(SMALL, 600)


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory, monkeypatch):
    """`datasets` keeps what it read in a cache; give each test one of its own."""
    from datasets import config

    monkeypatch.setattr(config, "HF_DATASETS_CACHE", str(tmp_path_factory.mktemp("cache")))


def test_batches_have_the_shapes_and_ends_of_the_design(vocabulary):
    batches = open_pairs("toy:india", vocabulary, S=40, T=30, N=8, seed=0)
    (source, target_in), targets = batches.next()
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
    sentences = dict(corpus("india"))
    assert len(sentences) == 247
    for row, translation in zip(source, targets, strict=True):
        assert sentences[vocabulary.decode(row)] == vocabulary.decode(translation)


def test_order_after_restore_is_the_same(vocabulary):
    make = lambda: open_pairs(SMALL, vocabulary, 20, 16, 30, 0, temperature=5)  # noqa: E731
    batches = make()
    for _ in range(30):  # past an epoch of each language
        batches.next()
    state = json.loads(json.dumps(batches.state()))
    expected = [batches.next()[1] for _ in range(3)]
    resumed = make()
    resumed.restore(state)
    assert all(torch.equal(resumed.next()[1], targets) for targets in expected)


def test_a_temperature_evens_out_the_languages():
    assert sampling([900, 100], 1) == pytest.approx([0.9, 0.1])
    assert sampling([900, 100], 2) == pytest.approx([0.75, 0.25])
    assert sampling([900, 100], 1e9) == pytest.approx([0.5, 0.5])
    with pytest.raises(ValueError, match="temperature=0: must be positive"):
        sampling([1], 0)


def test_a_test_set_keeps_its_references_in_order(vocabulary):
    test = evaluation_pairs("toy:golf", vocabulary, 40, 30, N=64, count=150)
    assert [len(targets) for _, targets in test.batches] == [64, 64, 22]
    assert (
        list(zip(test.sources, test.references, strict=True))
        == corpus("golf", 200, split="test")[:150]
    )
    decoded = [vocabulary.decode(row) for _, targets in test.batches for row in targets]
    assert decoded == test.references


def rows_of_pairs(nested):
    from datasets import Dataset

    pairs = corpus("india", 20)
    if nested:
        return Dataset.from_dict({"translation": [{"de": s, "en": t} for s, t in pairs]})
    return Dataset.from_dict({"en": [t for _, t in pairs], "de": [s for s, _ in pairs]})


@pytest.mark.parametrize("form", ["parquet", "nested parquet", "csv"])
def test_pairs_in_a_folder(tmp_path, form):
    rows = rows_of_pairs(nested="nested" in form)
    if form == "csv":
        rows.to_csv(tmp_path / "pairs.csv")
    else:
        rows.to_parquet(tmp_path / "pairs.parquet")
    (train,), (test,) = (open_languages(f"folder:{tmp_path}", train) for train in (True, False))
    pairs = corpus("india", 20)
    assert [train.pair(k) for k in range(train.count)] == [
        pair for k, pair in enumerate(pairs) if k % 5 < 4
    ]
    assert [test.pair(k) for k in range(test.count)] == pairs[4::5]


def refused(match, names):
    with pytest.raises(ValueError, match=match) as error:
        open_languages(names)
    assert "\n" not in str(error.value)


def test_bad_names(tmp_path):
    refused("language='latin'", "toy:latin")
    refused("name the language too, such as opus100:de-en", "opus100")
    refused("are images, not sentences; try toy", "cifar10")
    refused("does not exist; .*--data toy", f"folder:{tmp_path / 'none'}")
    refused("no language is named", [])


def test_columns_that_are_no_pairs_and_an_empty_language(tmp_path):
    from datasets import Dataset

    Dataset.from_dict({"text": ["a"]}).to_parquet(tmp_path / "text.parquet")
    refused("it has the columns text", f"folder:{tmp_path}")
    Dataset.from_dict({"de": ["a"], "en": ["b"]}).to_parquet(tmp_path / "text.parquet")
    with pytest.raises(ValueError, match="it has no test pair; leave it out, or try toy"):
        open_languages(["toy:india", f"folder:{tmp_path}"], train=False)
