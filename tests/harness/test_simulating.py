"""`repro simulate`: steps on devices that are not here, told and as JSON, and what is said of mistakes."""

import json
from pathlib import Path

import pytest

from repro.cli import main

SIZES = ["--model-args", "L=4", "d=32", "H=64", "heads=2", "V=64", "T=16"]
ON = ["simulate", "transformer", *SIZES, "--device", "v100", "--K", "2", "--N", "8"]


def answer(capsys, *words: str):
    assert main([*ON, *words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_it_says_what_is_simulated_on_what(capsys):
    assert main([*ON, "--M", "1", "4"]) == 0
    told = capsys.readouterr().out
    for words in (
        "simulated: transformer (L=4",
        "V100",
        "over K=1",
        "over M=1",
        "counted",
        "shares of K x step",
        "stage 1 |",
    ):
        assert words in told


def test_its_numbers_fit_together(capsys):
    found = answer(capsys, "--M", "1", "4")
    assert (found["fidelity"], found["K"], found["N"]) == ("simulated", 2, 8)
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


def test_a_slow_link_makes_it_slower(capsys):
    free, slow = (answer(capsys, "--M", "2", *link)["points"][0] for link in ([], ["--link-gbps", "0.01"]))
    size = 4 * 16 * 32 * 4  # bytes of a micro-batch of 4 x 16 words of width 32
    assert slow["step_s"] - free["step_s"] > 2 * 8 * size / 1e7 / 2
    assert slow["breakdown"]["transfer"] > free["breakdown"]["transfer"]


def test_a_peak_beyond_the_device_is_marked(capsys, tmp_path: Path):
    from repro.costs import Device
    from repro.gpipe.profile import LinkSpeed

    small = Device.measured(
        "small",
        title="A small device",
        precision="float32",
        date="2026-01-01",
        source="a test",
        matmul_flops=1e9,
        other_flops=1e9,
        bytes_per_second=1e9,
        launch_s=1e-6,
        memory=1000,
        link=LinkSpeed(1e-6, 1e9),
    )
    small.save(tmp_path / "small.json")
    words = [word if word != "v100" else str(tmp_path / "small.json") for word in ON]
    assert main([*words, "--M", "1"]) == 0
    assert "MiB!" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["transformer"], ["--device, --calibration", "neither", "--device v100"]),
        (["transformer", "--device", "v100", "--calibration", "x.json"], ["both are given"]),
        (["transformer", "--device", "v10"], ["v10", "h100", "did you mean 'v100'"]),
        (["--device", "v100"], ["model: name one"]),
        (["transformr", "--device", "v100"], ["model='transformr'", "did you mean"]),
        (["transformer", "--calibration", "none.json"], ["--calibration none.json"]),
        (["transformer", *SIZES, "--device", "v100", "--M", "9", "--N", "8"], ["M = 9", "N = 8"]),
        (["transformer", *SIZES, "--device", "v100", "--K", "9"], ["K = 9", "L = 6"]),
        (["transformer", *SIZES, "--device", "v100", "--link-gbps", "0"], ["--link-gbps 0"]),
        (["transformer", *SIZES, "--device", "v100", "--link-latency-us", "1"], ["needs --link-gbps"]),
        (["transformer", "--devic", "v100"], ["--devic", "did you mean '--device'"]),
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


def test_a_calibration_of_another_model_is_refused(tmp_path: Path, capfd):
    table = {name: [[1.0, 1.0]] for name in ("forward", "recompute", "backward")}
    link = {"latency": 0.0, "bytes_per_second": None, "overlap": True}
    rest = {"sizes": [1], "update": [0.0, 0.0], "activations": [4.0], "gradients": [4.0], "link": link}
    about = {
        "model": "transformer",
        "model_args": {"L": 4},
        "K": 2,
        "device": "a CPU",
        "date": "2026-01-01",
        "unit": "x/s",
    }
    path = tmp_path / "own.json"
    path.write_text(json.dumps({**about, "calibration": table | rest}))
    assert main(["simulate", "amoebanet-d", "--calibration", str(path)]) == 2
    assert "is a calibration of 'transformer'; leave it out" in capfd.readouterr().err
    assert main(["simulate", "--calibration", str(path), "--K", "2"]) == 2
    assert "is of 2 layers, transformer has L = 6" in capfd.readouterr().err
    path.write_text(json.dumps({**about, "calibration": table}))
    assert main(["simulate", "--calibration", str(path)]) == 2
    assert "--calibration" in capfd.readouterr().err
