import torch
from torch.nn import functional

from repro.data import glyphs
from repro.data.classification import ImageTask, evaluation_images, open_images


def test_no_letter_looks_like_a_digit_or_a_symbol_or_another_letter():
    letters, symbols = glyphs.CLASSES["glyphs"], glyphs.CLASSES["symbols"]
    names = letters + symbols + glyphs.LIKE_DIGITS
    assert (len(letters), len(symbols), len(names)) == (300, 20, len(set(names)))
    assert set("0123456789OoIil|SsZzBbgqDQG") <= set(glyphs.LIKE_DIGITS)
    drawn = glyphs.draw(names)
    assert (drawn.amax((2, 3))[:, :320] > 0).sum(0).min() >= 2, "faces that have it"
    flat = functional.normalize(drawn.flatten(2), dim=2)
    alike = torch.stack([face @ face[:300].T for face in flat]).amax(0)
    assert alike.fill_diagonal_(0).max() < 0.9


def test_shuffling_changes_training_labels_of_the_last_classes_alone():
    again, _ = glyphs.pictures.__wrapped__("symbols")
    assert torch.equal(again, glyphs.pictures("symbols")[0]), "every process draws the same"
    plain = ImageTask(name="symbols", size=16)
    task = plain.model_copy(update={"shuffled": 0.5})
    (inputs, before), (same, after) = (open_images(t, 1600, 0).next() for t in (plain, task))
    assert torch.equal(inputs, same)
    assert torch.equal(before.bincount(), after.bincount())
    assert torch.equal(before[before < 10], after[before < 10])
    assert (before != after)[before >= 10].float().mean() > 0.6
    assert torch.equal(*(evaluation_images(t, 400)[0][1] for t in (plain, task)))
    assert open_images(task, 8, 0).labels["share of the classes with shuffled training labels"]
