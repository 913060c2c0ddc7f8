"""The training loop: exact resume, evaluation, checkpoints that survive accidents, translation."""

import errno
import os
from copy import deepcopy
from pathlib import Path

import pytest
import torch
from torch import nn
from training import (
    CLASSES,
    LOSS,
    RECIPE,
    TRANSLATION,
    WIDTH,
    M,
    Numbers,
    T,
    interrupted,
    make,
    on_two_processes,
    started,
    state,
    translated,
    without_seconds,
)

from repro.data.tokens import BOS, EOS, PAD
from repro.gpipe import Pipeline, Weighted, launch, whole_state_dict
from repro.models import build
from repro.train import checkpoints
from repro.train.history import History
from repro.train.losses import accuracy
from repro.train.recipe import Recipe
from repro.train.trainer import Trainer


def assert_same(one, other):
    torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True)


def test_a_resumed_run_is_the_same_bit_for_bit(tmp_path):
    (whole, history), (resumed, again) = interrupted(tmp_path, 5, 1, K=1)
    assert_same(whole, resumed)
    assert history == again
    assert len(history.steps) == 5
    assert History.from_json(history.as_json()) == history


@pytest.fixture(scope="module")
def on_two(tmp_path_factory):
    """What both processes gave."""
    return launch(on_two_processes, tmp_path_factory.mktemp("two"), stages=2)


@pytest.mark.slow
@pytest.mark.parametrize("case", ["K=2", "D=2"])
def test_a_resumed_run_of_two_processes_is_the_same_bit_for_bit(on_two, case):
    for ran in on_two:
        (whole, history), (resumed, again) = ran[case]
        assert_same(whole, resumed)
        assert [step.loss for step in history.steps] == [step.loss for step in again.steps]
        assert history.evaluations == again.evaluations


def test_the_trainer_does_what_a_plain_loop_does():
    """Same optimizer, schedule and average on the unsplit model, with plain PyTorch."""
    from timm.optim.rmsprop_tf import RMSpropTF

    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(WIDTH, 8), nn.Tanh(), nn.Linear(8, CLASSES))
    pipe = Pipeline(deepcopy(plain), 1, 1)
    trainer = Trainer(pipe, LOSS, RECIPE, Numbers())
    history = trainer.run(6)

    weights = [p for p in plain.parameters() if p.dim() > 1]
    biases = [p for p in plain.parameters() if p.dim() == 1]
    optimizer = RMSpropTF(
        [{"params": weights, "weight_decay": 1e-3}, {"params": biases}],
        alpha=0.9,
        eps=1.0,
        momentum=0.9,
    )
    average = {key: value.clone() for key, value in plain.state_dict().items()}
    data, losses = Numbers(), []
    for step in range(6):
        for group in optimizer.param_groups:
            group["lr"] = RECIPE.learning_rate(step)
        optimizer.zero_grad()
        inputs, targets = data.next()
        loss = LOSS(plain(inputs), targets)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        decay = min(0.9, (2 + step) / (11 + step))
        for key, value in plain.state_dict().items():
            average[key] = decay * average[key] + (1 - decay) * value
    torch.testing.assert_close([step.loss for step in history.steps], losses)
    torch.testing.assert_close(pipe.module.state_dict(), plain.state_dict())
    assert trainer.average is not None
    with trainer.average.in_place_of_weights():
        torch.testing.assert_close(dict(pipe.module.state_dict()), average)
    torch.testing.assert_close(pipe.module.state_dict(), plain.state_dict())


@pytest.mark.parametrize(("precision", "clip"), [("bfloat16", None), ("float16", 1.0)])
def test_lower_precision_trains_and_resumes(tmp_path, precision, clip):
    recipe = Recipe(lr=0.1, precision=precision, clip=clip)
    trainer = make(tmp_path, 1, recipe)
    trainer.run(30)
    losses = [step.loss for step in trainer.history.steps]
    assert sum(losses[-5:]) < sum(losses[:5])
    assert all(p.dtype == torch.float32 for p in trainer.pipe.parameters())
    resumed = make(tmp_path, 1, recipe)
    resumed.resume()
    resumed.run(32)
    trainer.run(32)
    assert_same(state(resumed), state(trainer))


def test_evaluation_is_of_the_average_and_over_all_examples():
    """Also where the last batch is smaller than M."""
    inputs, targets = Numbers().next()
    batches = [(inputs[:10], targets[:10]), (inputs[10:], targets[10:])]
    assert len(inputs[10:]) < M

    first = Weighted(LOSS, lambda targets: int(len(targets) > 2))
    trainer = make(None, 1, evaluation=batches, metrics={"accuracy": accuracy, "first": first})
    trainer.run(4)
    ((step, values),) = trainer.history.evaluations
    assert step == 4
    assert trainer.average is not None
    module = trainer.pipe.module.eval()
    with trainer.average.in_place_of_weights(), torch.no_grad():
        outputs = module(inputs)
    assert values["accuracy"] == pytest.approx(accuracy(outputs, targets).item())
    assert values["loss"] == pytest.approx(LOSS(outputs, targets).item(), rel=1e-5)
    # Only the first batch weighs.
    assert values["first"] == pytest.approx(LOSS(outputs[:10], targets[:10]).item(), rel=1e-5)


# Checkpoints.


def trained(folder, steps=4, **options):
    trainer = make(folder, 1, save_every=1, **options)
    trainer.run(steps)
    return trainer


@pytest.mark.parametrize(
    "pattern", ["stage*.pt", "average/stage*.pt", "index.json", "history.json"]
)
def test_a_truncated_checkpoint_is_left_out_and_the_one_before_is_used(tmp_path, pattern):
    whole = trained(tmp_path)
    # Two checkpoints are kept, and a save that was interrupted counts for nothing.
    (tmp_path / "step-000005" / "average").mkdir(parents=True)
    names = [path.name for path in checkpoints.committed(tmp_path)]
    assert names == ["step-000003", "step-000004"]
    file = next((tmp_path / "step-000004").glob(pattern))
    file.write_bytes(file.read_bytes()[:-10])
    resumed = make(tmp_path, 1)
    with pytest.warns(UserWarning, match=r"step-000004.*going on from .*step-000003$"):
        assert resumed.resume() == 3
    resumed.run(4)
    assert_same(state(resumed), state(whole))
    assert make(tmp_path, 1).resume() == 4  # written anew, in place of the damaged one


def test_other_settings_are_refused(tmp_path):
    trained(tmp_path, settings={"model": "small", "sizes": (1, 2)})
    with pytest.raises(ValueError, match=r"step-000004 of an earlier run; resume it"):
        make(tmp_path, 1).run(1)
    assert make(tmp_path, 1, settings={"model": "small", "sizes": (1, 2)}).resume() == 4
    with pytest.raises(ValueError, match=r"^.*model = 'small', not 'large'.*$"):
        make(tmp_path, 1, settings={"model": "large", "sizes": (1, 2)}).resume()


@pytest.mark.parametrize("broken", ["repro.train.checkpoints.write", "torch.save"])
def test_a_full_disk_keeps_the_checkpoint_before(tmp_path, monkeypatch, broken):
    trainer = trained(tmp_path, steps=2)

    def full(*_arguments):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(broken, full)
    with pytest.raises(ValueError, match=r"No space left.* \d+ bytes are free") as caught:
        trainer.run(3)
    assert "\n" not in str(caught.value)
    assert f"{tmp_path / 'step-000002'} is whole" in str(caught.value)
    assert not (tmp_path / "step-000003").exists()
    monkeypatch.undo()
    assert make(tmp_path, 1).resume() == 2
    # The trainer that could not write goes on too, once there is room.
    trainer.run(4)
    assert make(tmp_path, 1).resume() == 4


@pytest.mark.parametrize(
    "place", ["step-000001", "step-000002/index.json", "step-000002/average", "step-000003"]
)
def test_a_link_among_checkpoints_is_refused_and_its_target_left_alone(tmp_path, place):
    run, theirs = tmp_path / "run", tmp_path / "theirs"
    trainer = trained(run, steps=2)
    (run / place).rename(theirs) if (run / place).exists() else theirs.mkdir()
    (run / place).symlink_to(theirs)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    for call in (
        lambda: trainer.run(3),
        lambda: make(run, 1).run(1),
        lambda: make(run, 1).resume(),
        lambda: make(None, 1).start_from(run),
    ):
        with pytest.raises(ValueError, match=rf"{run / place}: is a link[^\n]*$"):
            call()
        assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before


@pytest.mark.slow
def test_a_killed_run_of_two_stages_goes_on_with_one_as_if_it_had_not_been(tmp_path):
    """SIGKILL at a moment of chance, during a step or a save."""
    run = tmp_path / "run"
    with started(run, 2, Path(__file__).with_name("training.py"), run) as process:
        process.kill()
    resumed = make(run, 1)
    step = resumed.resume()
    assert step >= 1
    resumed.run(step + 2)
    whole = make(None, 1)
    whole.run(step + 2)
    assert_same(state(resumed), state(whole))
    assert without_seconds(resumed.history) == without_seconds(whole.history)


def test_fine_tuning_begins_with_a_new_last_layer(tmp_path):
    trained(tmp_path)
    tuned, fresh = make(None, 1), make(None, 1)
    tuned.start_from(tmp_path, new_layers=1)
    source = whole_state_dict(tmp_path / "step-000004" / "average")
    now, initial = tuned.pipe.module.state_dict(), fresh.pipe.module.state_dict()
    for key, value in now.items():
        assert_same(value, initial[key] if key.startswith("4.") else source[key])
    assert not torch.equal(source["4.weight"], initial["4.weight"])
    tuned.run(2)

    from_state = make(None, 1)
    from_state.start_from(source, new_layers=1)
    from_state.run(2)
    assert_same(state(from_state), state(tuned))


# Translation.


@pytest.mark.slow
def test_any_number_of_stages_gives_the_tokens_of_a_plain_loop(on_two):
    """Without padding of the target, sentence by sentence, on the unsplit model."""
    tokens, weights = translated(1)
    for ran in on_two:
        translations, of_stage = ran["translations"]
        assert torch.equal(translations, tokens)
        assert_same(of_stage, {name: weights[name] for name in of_stage})
    built = build("translation", **TRANSLATION)
    model = nn.Sequential(*(layer() for layer in built.layers)).eval()
    model.load_state_dict(weights)
    expected = []
    for source in built.batch(9, 0)[0][0]:
        translation = [BOS]
        while len(translation) <= T and translation[-1] != EOS:
            with torch.no_grad():
                logits = model((source.unsqueeze(0), torch.tensor([translation])))
            translation.append(int(logits[0, -1].argmax()))
        expected.append(translation[1:] + [PAD] * (T + 1 - len(translation)))
    assert len({tuple(translation) for translation in expected}) > 1
    assert tokens.tolist() == expected
