from math import nan

import pytest
import torch

from repro.data.bleu import score
from repro.data.languages import corpus
from repro.data.pairs import TranslationTask, evaluation_pairs, open_language, open_pairs
from repro.data.sources import Part
from repro.data.tokens import BOS, EOS, PAD

TASK = TranslationTask(
    names=("toy:delta", "toy:echo", "toy:foxtrot"), vocabulary=1200, S=40, T=30, temperature=5.0
)


@pytest.mark.parametrize(
    ("translation", "reference", "expected"),
    [("a b c d", "a b c d", 100.0), ("a b c", "a b c d", 0.0), ("", "a b c d", 0.0)]
    + [(translation, "a b c", nan) for translation in ("a b c", "a b c d", "")],
)
def test_bleu_is_defined_if_a_reference_has_four_words(translation, reference, expected):
    value, _ = score([translation, ""], [reference, ""])
    assert value == pytest.approx(expected, nan_ok=True)


def test_a_vocabulary_that_is_too_small_is_one_line():
    with pytest.raises(ValueError, match=r"vocabulary=10: .* try vocabulary=1000") as error:
        _ = TASK.model_copy(update={"vocabulary": 10}).subwords
    assert "\n" not in str(error.value)


def test_batches_have_the_shapes_and_ends_of_the_design():
    (source, target_in), targets = open_pairs(TASK, N=8, seed=0).next()
    assert (source.shape, target_in.shape, targets.shape) == ((8, 40), (8, 30), (8, 30))
    assert (target_in[:, 0] == BOS).all()
    for row in [*source.tolist(), *targets.tolist()]:
        assert set(row[row.index(EOS) + 1 :]) <= {PAD}
    # The decoder's input is its target, one position later.
    inside = targets[:, :-1] * (targets[:, :-1] != EOS)
    assert torch.equal(target_in[:, 1:], inside)
    sentences = {pair for name in ("delta", "echo", "foxtrot") for pair in corpus(name)}
    for row, translation in zip(source, targets, strict=True):
        assert (TASK.subwords.decode(row), TASK.subwords.decode(translation)) in sentences


def test_a_test_set_keeps_its_references_in_order():
    batches, references = evaluation_pairs(TASK, "toy:delta", N=64, count=150)
    assert [len(targets) for _, targets in batches] == [64, 64, 22]
    assert references == [english for _, english in corpus("delta", "test")[:150]]
    assert [TASK.subwords.decode(row) for _, targets in batches for row in targets] == references


@pytest.mark.parametrize(
    ("name", "config", "source"), [("opus100:gl-en", "en-gl", "gl"), ("wmt14-de-en", "de-en", "de")]
)
def test_pairs_of_the_hub_are_read_by_split(name, config, source, hub):
    from datasets import Dataset

    pairs = corpus("foxtrot")[:20]
    rows = Dataset.from_dict({"translation": [{"en": t, source: s} for s, t in pairs]})
    hub(name.partition(":")[0], config, train=rows, test=rows.select(range(3)))

    def read(part: Part, *, validation: bool = False) -> list[tuple[str, str]]:
        language = open_language(name, part, validation=validation)
        return [language.pair(place) for place in range(language.size)]

    assert read("train") == pairs
    assert read("test") == pairs[:3]
    assert read("validation", validation=True) == pairs[3::5]
    assert read("train", validation=True) == [pair for k, pair in enumerate(pairs) if k % 5 != 3]


def test_misaligned_pairs_have_the_translation_of_another_and_orders_differ():
    def first(N: int, **more: object) -> list[list[int]]:
        task = TASK.model_copy(update={"names": ["toy:foxtrot"], **more})
        (source, _), targets = open_pairs(task, N, seed=0).next()
        return torch.cat([source, targets], 1).tolist()

    usual, mixed = first(250), first(250, misaligned=0.2)
    assert sum(row not in usual for row in mixed) == pytest.approx(50, abs=2)
    assert sorted(row[40:] for row in mixed) == sorted(row[40:] for row in usual)
    # They do not come first with the seed 0, whose generator is that of (0, 0), seed and epoch.
    assert sum(row not in usual for row in first(50, misaligned=0.2)) < 25
    other = first(250, order=1)
    assert other != usual
    assert sorted(other) == sorted(usual)
