"""`repro simulate`: steps on devices that are not here, told and as JSON, and what is said of
mistakes."""

import json
import re
from pathlib import Path

import pytest
from torch import nn

from repro.cli.answers import tell
from repro.cli.main import main
from repro.costs.device import load
from repro.harness.progress import LEGEND

ARGS = {"L": 4, "d": 32, "H": 64, "heads": 2, "V": 64, "T": 16}
SIZES = ["--model-args", *(f"{name}={value}" for name, value in ARGS.items())]
ON = ["simulate", "transformer", *SIZES, "--device", "v100", "--K", "2", "--N", "8"]
INTERLEAVED = ["--schedule", "interleaved-1f1b", "--stages-per-rank", "2"]


def answer(capsys, *words: str):
    assert main([*words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_the_step_that_is_drawn_is_the_recommended_one(capsys):
    assert main([*ON, "--K", "1", "2", "--M", "1", "4"]) == 0
    output = capsys.readouterr().out
    for words in ("transformer (L=4", "V100", "over plain", "shares of K x step"):
        assert words in output
    lines = output.splitlines()
    K, M = re.findall(r"^advice +fastest: K=(\d), M=(\d)", lines[-1])[0]
    (drawn,) = [line for line in lines if line.startswith("the step at ")]
    assert (K, M) != ("1", "1"), "the first"
    assert drawn == f"the step at K={K}, M={M}: {LEGEND}"


@pytest.mark.parametrize(
    ("order", "bubble"),
    [(["--schedule", "1f1b"], 3 / 8), (INTERLEAVED, 3 / 16), (["--schedule", "zb-h1"], 3 / 8 / 3)],
    ids=["1f1b", "interleaved", "zero bubble"],
)
def test_bubbles_are_those_of_the_closed_forms(order, bubble, capsys):
    """Two stages a device halve the bubble of 1F1B; half I and half W leave a third of it."""
    timed = ["simulate", "timed", "--model-args", "L=8", "--K", "4", "--M", "8", "--N", "8"]
    timed += ["--checkpoint", "never", *order]
    point = answer(capsys, *timed)["points"][0]
    assert len(point["balance"]) == (8 if order == INTERLEAVED else 4)
    found = point["idle_over_total"]
    assert found / (1 - found) == pytest.approx(bubble)  # over work
    assert main(timed) == 0
    split = "I and W take half of a backward each, assumed"
    assert (split in capsys.readouterr().out) == ("zb-h1" in order)


def test_its_numbers_fit_together(capsys):
    found = answer(capsys, *ON, "--M", "1", "4")
    assert (found["fidelity"], found["K"], found["N"]) == ("simulated", [2], 8)
    first, second = found["points"]
    (plain,) = answer(capsys, *ON, "--K", "1", "--M", "1", "--checkpoint", "never")["points"]
    assert found["plain"]["step_s"] == plain["step_s"]
    assert plain["speedup_vs_plain"] == 1
    assert second["speedup_vs_plain"] == pytest.approx(plain["step_s"] / second["step_s"])
    assert first["throughput"] == pytest.approx(8 / first["step_s"])
    for point in found["points"]:
        assert sum(point["breakdown"].values()) == pytest.approx(1)
        assert 0.5 < point["speedup_vs_k1"] <= 2
        assert sum(point["balance"]) == 6
        assert max(point["peak_bytes"]) < point["peak_bytes_k1"][0]
    slow = answer(capsys, *ON, "--M", "4", "--link", "0.01")["points"][0]
    size = 2 * 16 * 32 * 4  # bytes of a micro-batch of 2 x 16 words of width 32
    assert slow["step_s"] - second["step_s"] > 2 * 8 * size / 1e7 / 2
    assert slow["breakdown"]["transfer"] > second["breakdown"]["transfer"]


def test_with_replicas_shares_are_of_the_step_with_its_all_reduce(capsys):
    command = [*ON, "--M", "2", "--D", "2", "--link", "0.01"]
    point = answer(capsys, *command)["points"][0]
    shares = point["breakdown"]
    assert sum(shares.values()) == pytest.approx(1)
    assert shares["all-reduce"] > 0.5 > shares["computation"]
    work = sum(shares[name] for name in ("computation", "recompute", "update"))
    assert point["idle_over_total"] == pytest.approx(1 - work)
    assert main(command) == 0
    assert re.search("K  M .*transfer  all-reduce", capsys.readouterr().out)
    assert main([*ON, "--M", "2"]) == 0
    assert "all-reduce" not in capsys.readouterr().out


def shared() -> list:
    one = nn.Linear(3072, 3072)
    return [nn.Flatten, one, one]


def test_a_cut_that_the_library_refuses_is_refused_or_left_out(capsys):
    """N is odd, so without a pipeline the second device is of no use."""
    on = [f"import:{__name__}:shared", "--device", "a100", "--N", "4095"]
    words = "layers[2].weight: shared by stages 0 and 1"
    assert main(["simulate", *on, "--K", "2", "--M", "3"]) == 2
    assert words in capsys.readouterr().err
    found = answer(capsys, "advise", *on, "--devices", "2", "--link", "10000")
    assert {plan["K"] for plan in found["plans"]} == {1}
    assert words in found["too_large"][0]["why_not"]
    assert "memory is counted in float32" in found["on"]


def test_only_a_share_that_is_below_zero_has_a_sign(capsys):
    tell({"shares": [{"transfer": -1e-17, "imbalance": -0.014, "bubble": 0.5}]})
    assert capsys.readouterr().out.split() == "shares imbalance bubble -1.4% 50.0%".split()


def test_the_fastest_that_fits_is_advised(tmp_path, capsys):
    """The fastest has M=1; a byte less than it takes, and it is M=4, which is slower and leaner."""
    points = answer(capsys, *ON, "--M", "1", "4")["points"]
    peaks = [max(one["peak_bytes"]) for one in points]
    for size, start in (
        (2**30, "fastest: K=2, M=1, "),
        (peaks[0] - 1, "fastest that fits: K=2, M=4, "),
        (1000, "none of these fits into the device's 1,000 B: the leanest, K=2, M=4, takes"),
    ):
        profile = load("v100").model_dump()
        profile["memory"]["value"] = size
        (tmp_path / "small.json").write_text(json.dumps(profile))
        on = [word if word != "v100" else str(tmp_path / "small.json") for word in ON]
        found = answer(capsys, *on, "--M", "1", "4")
        assert found["advice"].startswith(start)
        assert [one["fits"] for one in found["points"]] == [peak <= size for peak in peaks]


def calibrated(folder: Path, layers: int) -> Path:
    """A file as `repro calibrate transformer` writes it, on two processes."""
    about = {"model": "transformer", "model_args": ARGS, "K": 2, "device": "a CPU", "unit": "x/s"}
    table = {name: [[1.0] * layers] for name in ("forward", "recompute", "backward")}
    sent = {name: [4.0] * (layers - 1) for name in ("activations", "gradients")}
    link = {"latency": 0.0, "bytes_per_second": None, "overlap": True}
    times = {**table, **sent, "sizes": [1], "update": [0.0] * layers, "link": link}
    path = folder / f"{layers}.json"
    path.write_text(json.dumps(about | {"date": "2026-01-01", "calibration": times}))
    return path


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["transformer"], ["--device, --calibration", "give one of the two", "--device v100"]),
        (["transformer", "--device", "v100", "--calibration", "x.json"], ["both are given"]),
        (["timed", "--device", "v100"], ["--device v100: the layers of timed", "leave it out"]),
        (["mlp", "--calibration", "2.json"], ["is a calibration of 'transformer'"]),
        (["--calibration", "2.json", "--K", "2"], ["is of 2 layers, transformer has L = 6"]),
    ],
)
def test_a_mistake_is_one_line(arguments, words, tmp_path: Path, refused, monkeypatch):
    monkeypatch.chdir(tmp_path)
    calibrated(tmp_path, 2)
    error = refused(["simulate", *arguments])
    for word in words:
        assert word in error


def test_what_was_timed_otherwise_is_a_warning(tmp_path: Path, capfd):
    command = ["simulate", "--calibration", str(calibrated(tmp_path, 6)), "--json"]
    assert main([*command, "--K", "1", "2", "--M", "1", "--N", "1"]) == 0
    assert capfd.readouterr().err == ""
    other = ["--K", "2", "4", "--optimizer", "adam", "--M", "2", "4", "--N", "4"]
    assert main([*command, *other]) == 0
    processes, sizes, updates = capfd.readouterr().err.splitlines()
    assert "timed with K=2 processes at once; with K=4 another number would share" in processes
    assert "of 1 to 1 examples; M=1, 2 is extrapolated" in sizes
    assert updates.startswith("warning: updates were timed with sgd; of adam only the memory")
