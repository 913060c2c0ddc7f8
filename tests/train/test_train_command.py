"""`repro train` from end to end, on a small model and the digits."""

import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image
from training import started

from repro.cli.main import main
from repro.cli.train import Progress
from repro.gpipe import whole_state_dict
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


def train(folder, *arguments, model=MODEL):
    return main(["train", model, *QUICK[1:], *SGD, "--out", str(folder), *map(str, arguments)])


@pytest.mark.slow
def test_a_training_learns_and_is_tuned_on_a_folder_of_images(tmp_path, capfd):
    """Three classes of the user's, in place of the digits' ten; it goes on with other K."""
    assert train(tmp_path / "digits", "--epochs", 2) == 0
    out = capfd.readouterr().out
    accuracy = [float(share) for share in re.findall(r"accuracy ([\d.]+)%", out)]
    assert len(accuracy) >= 2
    assert accuracy[-1] > 70
    assert out.splitlines()[-1] == f"checkpoints: {tmp_path / 'digits'}"
    assert [path.name for path in checkpoints.committed(tmp_path / "digits")][-1] == "step-000090"

    for number, name in enumerate(["red", "green", "blue"]):
        for split, count in (("train", 12), ("test", 4)):
            folder = tmp_path / "images" / split / name
            folder.mkdir(parents=True)
            for n in range(count):
                colour = [20 * n, 20 * n, 20 * n]
                colour[number] = 255
                Image.new("RGB", (10, 9), tuple(colour)).save(folder / f"{n}.png")
    tuning = ["--data", f"folder:{tmp_path / 'images'}", "--N", 12, "--M", 1, "--resume"]
    tuning += ["--start-from", tmp_path / "digits"]
    assert train(tmp_path / "run", *tuning, "--steps", 6) == 0
    assert "no checkpoint yet, so this begins" in capfd.readouterr().out
    assert train(tmp_path / "run", *tuning, "--steps", 12, "--K", 2) == 0
    out = capfd.readouterr().out
    assert "goes on after step 6" in out
    assert train(tmp_path / "run", *tuning, "--steps", 8) == 0
    assert "nothing is left to train: asked for are 8 steps in all" in capfd.readouterr().out
    assert "accuracy 100.0%" in out
    newest = checkpoints.committed(tmp_path / "run")[-1]
    assert whole_state_dict(newest)["3.weight"].shape == (3, 32)
    assert [step.step for step in checkpoints.read_history(newest).steps] == list(range(1, 13))


@pytest.mark.slow
def test_a_mistake_in_a_stage_is_one_line(tmp_path, capfd):
    assert train(tmp_path, "--steps", "1", model="import:small_model:five_outputs") == 2
    (line,) = capfd.readouterr().err.splitlines()
    assert re.search(r"^error: .*have the shape \[32, 5\]; .* 10 or more", line)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--K", "0"], "--K 0: allowed is 1 to 1e+09"),
        (["--N", "7", "--D", "2"], "--N 7: allowed is a multiple of D=2"),
        (["--epochs", "0"], "--epochs 0: allowed is 1e-06 to 1e+06"),
        (["--data", "digts"], "data='digts': no data set has this name"),
        (["--K", "99"], "K = 99 stages, but import:small_model:layers has L = 4 layers here"),
        (["--M", "33"], "M = 33 micro-batches of a mini-batch of N = 32"),
        (["--image", "0"], "--image 0: allowed is 1 to 1e+09"),
        (["--model-args", "image=16"], "layers[1] (Linear) cannot be counted"),
    ],
)
def test_a_mistake_that_is_seen_before_a_process_starts(
    tmp_path, capfd, monkeypatch, arguments, problem
):
    monkeypatch.setattr("repro.gpipe.launch", None)
    assert train(tmp_path, *arguments) == 2
    (line,) = capfd.readouterr().err.splitlines()
    assert problem in line


def mirrored(folder, kind):
    """The records of a kind in each W&B run of a training, the oldest run first."""
    found = []
    for path in sorted(folder.glob("wandb/offline-run-*/*.wandb")):
        command = [sys.executable, "-m", "wandb", "leet", "inspect", "--json", path]
        lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        records = [json.loads(line) for line in lines.splitlines()]
        found.append([record[kind] for record in records if record["type"] == kind])
    return found


@pytest.mark.slow
def test_ctrl_c_says_how_to_go_on_and_so_does_its_w_and_b_run(tmp_path):
    folder = tmp_path / "run"
    quick = [word.replace("disabled", "offline") for word in QUICK]
    arguments = [*quick, *SGD, "--out", str(folder), "--every", "150"]
    with started(folder, 1, "-m", "repro", "train", *arguments, "--epochs", "100000") as process:
        process.send_signal(signal.SIGINT)
        _, error = process.communicate(timeout=30)
    assert process.returncode == 130
    (line,) = error.splitlines()
    kept = checkpoints.committed(folder)[-1]
    assert line.startswith(f"interrupted: {kept} is kept; `repro train import:small_model")
    assert line.endswith("--resume` goes on")
    last = int(kept.name.partition("-")[2])
    assert main(["train", *arguments, "--resume", "--steps", str(last + 5)]) == 0
    before, after = (
        {point["item"]["_step"]: point["item"] for point in points}
        for points in mirrored(folder, "history")
    )
    assert [*before] == [*range(1, len(before) + 1)]
    assert before, "it is written while the training runs"
    assert [*after] == [*range(1, last + 6)], "what the kill has cut off is there"
    assert {"train/loss", "train/lr", "time/step_s", "test/accuracy"} <= after[last + 5].keys()
    (first,), (second,) = mirrored(folder, "run")
    assert first["run_id"] == second["run_id"]


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
