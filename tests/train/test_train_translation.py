"""The trainer on sentences: inputs are pairs of tensors, and losses weigh by tokens."""

from dataclasses import replace

import pytest
import torch

from repro.data.pairs import evaluation_pairs, learn_vocabulary, open_pairs
from repro.gpipe import Pipeline
from repro.models import build
from repro.train.losses import token_nll, translation
from repro.train.recipe import translation as recipe
from repro.train.trainer import Trainer, count_tokens

S = T = 16
N, M = 16, 4
LANGUAGES = ["toy:alfa", "toy:bravo"]


def trainer(folder, steps_a_checkpoint=0):
    torch.set_num_threads(1)
    vocabulary = learn_vocabulary(LANGUAGES, 200)
    sizes = {"L": 1, "d": 32, "H": 64, "A": 2, "head_dim": 16, "V": len(vocabulary), "S": S, "T": T}
    pipe = Pipeline(build("translation", **sizes).layers, 1, M, device="cpu")
    test = evaluation_pairs(LANGUAGES[0], vocabulary, S, T, N, count=18)
    assert [len(targets) for _, targets in test.batches] == [16, 2]  # the last is smaller than M
    return Trainer(
        pipe,
        translation(0.1),
        replace(recipe(lr=3e-3, warm_up=10), ema=0.99),
        open_pairs(LANGUAGES, vocabulary, S, T, N, seed=0, temperature=5.0),
        folder=folder,
        save_every=steps_a_checkpoint,
        evaluation=test.batches,
        evaluate_every=15,
        metrics={"nll": token_nll},
        count=count_tokens,
    )


@pytest.mark.slow
def test_translation_learns_and_resumes_bit_for_bit(tmp_path):
    whole = trainer(None)
    history = whole.run(30)
    first, last = history.evaluations
    assert last.values["nll"] < first.values["nll"]
    assert all(0 < step.count <= N * T for step in history.steps)

    trainer(tmp_path).run(15)
    resumed = trainer(tmp_path)
    assert resumed.resume() == 15
    again = resumed.run(30)
    assert again.evaluations == history.evaluations
    assert [step.loss for step in again.steps] == [step.loss for step in history.steps]
    assert [step.count for step in again.steps] == [step.count for step in history.steps]
    torch.testing.assert_close(
        resumed.pipe.module.state_dict(), whole.pipe.module.state_dict(), rtol=0, atol=0
    )
