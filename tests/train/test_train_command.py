"""`repro train` from end to end, on a small model and the digits."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import small_model
import torch
from PIL import Image
from torch import nn

from repro.cli.main import main
from repro.cli.train import Progress
from repro.data.classification import ImageTask, evaluation_images
from repro.gpipe import whole_state_dict
from repro.gpipe.checkpoint.files import read_index
from repro.train import checkpoints
from repro.train.history import Evaluation, History, Step

HERE = Path(__file__).parent
MODEL = "import:small_model:layers"
QUICK = [MODEL, "--image", "8", "--N", "32", "--wandb", "disabled"]
SGD = ["--recipe", "sgd", "--lr", "0.1"]


@pytest.fixture(autouse=True)
def beside_the_model(monkeypatch):
    """Models are looked up from the current folder, also by the processes that are started."""
    monkeypatch.chdir(HERE)


def train(folder, *arguments):
    given = [*map(str, arguments)]
    quick = QUICK[1:] if "--model" in given else QUICK
    return main(["train", *quick, *SGD, "--out", str(folder), *given])


@pytest.mark.slow
def test_a_training_learns_and_goes_on(tmp_path, capfd):
    assert train(tmp_path / "run", "--epochs", 2) == 0
    out = capfd.readouterr().out
    accuracy = [float(share) for share in re.findall(r"accuracy ([\d.]+)%", out)]
    assert len(accuracy) >= 2
    assert accuracy[-1] > 70
    assert out.splitlines()[-1] == f"checkpoints: {tmp_path / 'run'}"

    # On two stages, which have another default of M.
    assert train(tmp_path / "run", "--epochs", 3, "--resume", "--K", 2, "--M", 1) == 0
    out = capfd.readouterr().out
    (line, *_) = out.splitlines()
    assert "goes on after step 90" in line
    newest = checkpoints.committed(tmp_path / "run")[-1]
    assert newest.name == "step-000135"
    assert whole_state_dict(newest)["3.weight"].shape == (10, 32)
    steps = checkpoints.read_history(newest).steps
    assert [step.step for step in steps] == list(range(1, 136))


@pytest.mark.slow
def test_a_folder_of_images_and_fine_tuning(tmp_path, capfd):
    """Three classes of the user's, in place of the digits' ten."""
    for number, name in enumerate(["red", "green", "blue"]):
        for split, count in (("train", 12), ("test", 4)):
            folder = tmp_path / "images" / split / name
            folder.mkdir(parents=True)
            for n in range(count):
                colour = [20 * n, 20 * n, 20 * n]
                colour[number] = 255
                Image.new("RGB", (10, 9), tuple(colour)).save(folder / f"{n}.png")
    data = ["--data", f"folder:{tmp_path / 'images'}", "--N", 12, "--steps", 12]
    assert train(tmp_path / "digits", "--steps", 2) == 0
    assert train(tmp_path / "run", *data, "--start-from", tmp_path / "digits") == 0
    assert "accuracy 100.0%" in capfd.readouterr().out
    state = whole_state_dict(checkpoints.committed(tmp_path / "run")[-1])
    assert state["3.weight"].shape == (3, 32)


@pytest.mark.slow
def test_a_fine_tuning_that_was_stopped_goes_on_with_the_same_options(tmp_path, capfd):
    assert train(tmp_path / "digits", "--steps", 2) == 0
    tuning = ["--start-from", tmp_path / "digits", "--new-layers", 0, "--lr", 1e-9, "--resume"]
    assert train(tmp_path / "run", *tuning, "--steps", 1) == 0
    assert "no checkpoint yet, so this begins" in capfd.readouterr().out
    # It has begun with the weights of the other run, which this learning rate leaves as they were.
    source, tuned = (
        whole_state_dict(checkpoints.committed(tmp_path / name)[-1])["3.weight"]
        for name in ("digits", "run")
    )
    torch.testing.assert_close(source, tuned)
    assert train(tmp_path / "run", *tuning, "--steps", 2) == 0
    assert "goes on after step 1" in capfd.readouterr().out


@pytest.mark.slow
def test_the_evaluated_loss_is_not_smoothed(tmp_path):
    data = ["--data", "digits", "--recipe-args", "label_smoothing=0.9", "--steps", "2"]
    quick = [MODEL, "--wandb", "disabled", "--out", str(tmp_path)]
    assert main(["train", *quick, *SGD, *data]) == 0
    (kept,) = checkpoints.committed(tmp_path)
    assert read_index(kept).extra["settings"]["image"] == 32
    model = nn.Sequential(*(make() for make in small_model.layers(10, 32)))
    model.load_state_dict(whole_state_dict(kept))
    inputs, targets = (
        torch.cat(part) for part in zip(*evaluation_images(ImageTask(), 64), strict=True)
    )
    with torch.no_grad():
        expected = nn.functional.cross_entropy(model(inputs), targets).item()
    (evaluation,) = checkpoints.read_history(kept).evaluations
    assert evaluation.values["loss"] == pytest.approx(expected, rel=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--recipe-args", "eam=null"], r"no field 'eam'.*did you mean 'ema'"),
        (
            ["--model", "import:small_model:five_outputs"],
            r"have the shape \[32, 5\]; .* 10 or more",
        ),
    ],
)
def test_a_mistake_in_a_stage_is_one_line(tmp_path, capfd, arguments, problem):
    assert train(tmp_path, *arguments, "--steps", "1") == 2
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith("error: ")
    assert re.search(problem, line)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--K", "0"], "--K 0: allowed is 1 to 1e+09"),
        (["--N", "7", "--D", "2"], "--N 7: allowed is a multiple of D=2"),
        (["--N", "4", "--M", "8"], "at least M=8 examples"),
        (["--epochs", "0"], "--epochs 0: allowed is 1e-06 to 1e+06"),
        (["--data", "digts"], "data='digts': no data set has this name"),
    ],
)
def test_a_mistake_that_is_seen_before_anything_is_read(tmp_path, capfd, arguments, problem):
    assert train(tmp_path, *arguments) == 2
    (line,) = capfd.readouterr().err.splitlines()
    assert problem in line


@pytest.mark.slow
def test_ctrl_c_says_how_to_go_on(tmp_path):
    folder = tmp_path / "run"
    arguments = [*QUICK, *SGD, "--out", str(folder), "--every", "5", "--epochs", "100000"]
    root = str(HERE.parents[1])
    process = subprocess.Popen(
        [sys.executable, "-m", "repro", "train", *arguments],
        env={**os.environ, "PYTHONPATH": root, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    end = time.monotonic() + 60
    while not checkpoints.committed(folder) and time.monotonic() < end:
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=30)
    assert process.returncode == 130
    (line,) = error.splitlines()
    kept = checkpoints.committed(folder)[-1]
    assert line.startswith(f"interrupted: {kept} is kept; `repro train import:small_model")
    assert line.endswith("--resume` goes on")


def history(count):
    steps = [Step(n + 1, 2.0, 0.1, 0.5, 16) for n in range(count)]
    return History(steps, [Evaluation(n + 1, {"accuracy": 0.5}) for n in range(1, count, 2)])


def test_a_line_at_each_evaluation_and_every_ten_seconds(capsys):
    progress = Progress(4, "images/s")
    for count in range(1, 4):
        progress(history(count))
    progress.printed_at -= 10
    progress(history(3))
    of_second, of_third = capsys.readouterr().out.splitlines()
    assert of_second == "step 2 of 4 · loss 2 · accuracy 50.0% · 32.0 images/s · 1 s left"
    assert of_third.startswith("step 3 of 4 · loss 2 · accuracy 50.0%")
