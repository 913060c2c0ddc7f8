"""`repro simulate`: steps on devices that are not here, told and as JSON, and what is said of
mistakes."""

import json
import re
from pathlib import Path

import pytest

from repro.cli.main import main
from repro.costs.device import load
from repro.harness import predict
from repro.harness.progress import LEGEND

SIZES = ["--model-args", "L=4", "d=32", "H=64", "heads=2", "V=64", "T=16"]
ON = ["simulate", "transformer", *SIZES, "--device", "v100", "--K", "2", "--N", "8"]


def answer(capsys, *words: str):
    assert main([*ON, *words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_the_step_that_is_drawn_is_the_recommended_one(capsys):
    assert main([*ON, "--K", "1", "2", "--M", "1", "4"]) == 0
    output = capsys.readouterr().out
    for words in ("simulated: transformer (L=4", "V100", "over K=1, M=1", "shares of K x step"):
        assert words in output
    lines = output.splitlines()
    K, M = re.findall(r"^fastest: K=(\d), M=(\d)", lines[-1])[0]
    (drawn,) = [line for line in lines if line.startswith("the step at ")]
    assert (K, M) != ("1", "1"), "the first"
    assert drawn == f"the step at K={K}, M={M}: {LEGEND}"


def test_interleaved_stages_are_simulated_counted_and_drawn(capsys):
    """Two stages a device halve the bubble of 1F1B; the memory is that of a device."""
    timed = ["simulate", "timed", "--model-args", "L=8", "--K", "4", "--M", "8", "--N", "8"]
    timed += ["--checkpoint", "never"]
    interleaved = ["--schedule", "interleaved-1f1b", "--stages-per-rank", "2"]
    bubbles = []
    for order in (["--schedule", "1f1b"], interleaved):
        assert main([*timed, *order, "--json"]) == 0
        plain = json.loads(capsys.readouterr().out)
        bubble = plain["points"][0]["bubble_idle_over_total"]
        bubbles.append(bubble / (1 - bubble))  # over work
    assert plain["stages_per_rank"] == 2
    assert bubbles == pytest.approx([3 / 8, 3 / 16])
    point = answer(capsys, "--M", "4", *interleaved)["points"][0]
    assert (len(point["peak_bytes"]), len(point["balance"])) == (2, 4)
    assert main([*ON, "--M", "4", *interleaved]) == 0
    output = capsys.readouterr().out
    assert "schedule interleaved-1f1b with 2 stages a device" in output
    assert "rank 1 |" in output
    assert main([*ON, "--K", "9", "--M", "4", *interleaved]) == 2
    assert "K = 9 ranks of 2 stages each, but transformer has" in capsys.readouterr().err


def test_zero_bubble_is_simulated_and_drawn(capsys):
    """Its B is half I and half W, so a step has a third of the bubble of 1F1B."""
    timed = ["simulate", "timed", "--model-args", "L=4", "--K", "4", "--M", "8", "--N", "8"]
    bubbles = {}
    for name in ("1f1b", "zb-h1"):
        assert main([*timed, "--checkpoint", "never", "--schedule", name, "--json"]) == 0
        (point,) = json.loads(capsys.readouterr().out)["points"]
        bubble = point["bubble_idle_over_total"]
        bubbles[name] = bubble / (1 - bubble)  # over work
    assert bubbles["1f1b"] == pytest.approx(3 / 8)
    assert bubbles["zb-h1"] == pytest.approx(3 / 8 / 3)
    assert main([*timed, "--checkpoint", "never", "--schedule", "zb-h1"]) == 0
    assert "I and W take half of a backward each, assumed" in capsys.readouterr().out


def test_its_numbers_fit_together(capsys):
    found = answer(capsys, "--M", "1", "4")
    assert (found["fidelity"], found["K"], found["N"]) == ("simulated", [2], 8)
    first, second = found["points"]
    assert first["speedup_vs_first"] == 1
    assert second["speedup_vs_first"] == pytest.approx(first["step_s"] / second["step_s"])
    assert first["throughput"] == pytest.approx(8 / first["step_s"])
    for point in found["points"]:
        assert sum(point["breakdown"].values()) == pytest.approx(1)
        assert 0.5 < point["speedup_vs_k1"] <= 2
        assert sum(point["balance"]) == 6
        assert len(point["peak_bytes"]) == 2
        assert max(point["peak_bytes"]) < point["peak_bytes_k1"][0]


def test_an_answer_builds_each_schedule_once(capsys):
    predict._schedule.cache_clear()
    answer(capsys, "--M", "4")
    assert predict._schedule.cache_info().misses == 2, "those of K=1 and K=2"


def test_a_slow_link_makes_it_slower(capsys):
    free, slow = (
        answer(capsys, "--M", "2", *link)["points"][0] for link in ([], ["--link-gbps", "0.01"])
    )
    size = 4 * 16 * 32 * 4  # bytes of a micro-batch of 4 x 16 words of width 32
    assert slow["step_s"] - free["step_s"] > 2 * 8 * size / 1e7 / 2
    assert slow["breakdown"]["transfer"] > free["breakdown"]["transfer"]


def with_memory(folder: Path, size: int) -> list[str]:
    """The command on a V100 of so many bytes."""
    profile = load("v100").model_dump()
    profile["memory"]["value"] = size
    (folder / "small.json").write_text(json.dumps(profile))
    return [word if word != "v100" else str(folder / "small.json") for word in ON]


def test_the_fastest_that_fits_is_advised(tmp_path, capsys):
    """The fastest has M=1; a byte less than it takes, and it is M=4, which is slower and leaner."""
    points = answer(capsys, "--M", "1", "4")["points"]
    peaks = [max(one["peak_bytes"]) for one in points]
    for size, start in (
        (2**30, "fastest: K=2, M=1, "),
        (peaks[0] - 1, "fastest that fits: K=2, M=4, "),
        (1000, "none of these fits into the device's 1,000 B: the leanest, K=2, M=4, takes"),
    ):
        assert main([*with_memory(tmp_path, size), "--M", "1", "4"]) == 0
        output = capsys.readouterr().out
        assert output.splitlines()[-1].startswith(start)
        assert ("iB! " in output) == (size < peaks[0])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["transformer"], ["--device, --calibration", "give one of the two", "--device v100"]),
        (["transformer", "--device", "v100", "--calibration", "x.json"], ["both are given"]),
        (["--device", "v100"], ["model: name one"]),
        ([*ON[1:], "--M", "9"], ["M = 9", "N = 8"]),
        ([*ON[1:], "--K", "2", "9", "--M", "1"], ["K = 9", "L = 6", "1 to 6"]),
        ([*ON[1:], "--link-gbps", "nan"], ["--link-gbps nan: allowed is 1e-06 to 1e+06"]),
        ([*ON[1:], "--link-latency-us", "1"], ["needs --link-gbps"]),
        (["timed", "--device", "v100"], ["--device v100: the layers of timed", "leave it out"]),
    ],
)
def test_a_mistake_is_one_line(arguments, words, tmp_path: Path, capfd, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["simulate", *arguments]) == 2
    error = capfd.readouterr().err
    assert error.startswith("error: ")
    assert error.count("\n") == 1
    for word in words:
        assert word in error


def calibrated(folder: Path, layers: int) -> tuple[Path, dict]:
    """A file as `repro calibrate transformer` writes it, on two processes, and what it holds."""
    sizes = {"L": 4, "d": 32, "H": 64, "heads": 2, "V": 64, "T": 16}
    about = {
        "model": "transformer",
        "model_args": sizes,
        "K": 2,
        "device": "a CPU",
        "date": "2026-01-01",
        "unit": "x/s",
    }
    table = {name: [[1.0] * layers] for name in ("forward", "recompute", "backward")}
    sent = {name: [4.0] * (layers - 1) for name in ("activations", "gradients")}
    link = {"latency": 0.0, "bytes_per_second": None, "overlap": True}
    whole = about | {
        "calibration": {**table, **sent, "sizes": [1], "update": [0.0] * layers, "link": link}
    }
    path = folder / "own.json"
    path.write_text(json.dumps(whole))
    return path, whole


def test_a_calibration_of_another_model_is_refused(tmp_path: Path, capfd):
    path, whole = calibrated(tmp_path, 2)
    assert main(["simulate", "amoebanet-d", "--calibration", str(path)]) == 2
    assert "is a calibration of 'transformer'" in capfd.readouterr().err
    assert main(["simulate", "--calibration", str(path), "--K", "2"]) == 2
    assert "is of 2 layers, transformer has L = 6" in capfd.readouterr().err
    del whole["calibration"]["link"]
    path.write_text(json.dumps(whole))
    assert main(["simulate", "--calibration", str(path)]) == 2
    assert "--calibration" in capfd.readouterr().err


def test_what_was_timed_otherwise_is_a_warning(tmp_path: Path, capfd):
    path, _ = calibrated(tmp_path, 6)
    command = ["simulate", "--calibration", str(path), "--json"]
    assert main([*command, "--K", "1", "2", "--M", "2", "--N", "2"]) == 0
    assert capfd.readouterr().err == ""
    other = ["--K", "2", "4", "--optimizer", "adam", "--M", "2", "4", "--N", "4"]
    assert main([*command, *other]) == 0
    processes, sizes, updates = capfd.readouterr().err.splitlines()
    assert "timed with K=2 processes at once; with K=4 another number would share" in processes
    assert "of 1 to 1 examples; M=2 is extrapolated" in sizes
    assert updates.startswith("warning: updates were timed with sgd; of adam only the memory")
