"""`repro predict`: steps of given K and M, the fastest plan, layers that are timed here."""

import dataclasses
import json
import shlex
from typing import Any

import pytest
from fakes import FakeWorkers
from torch import nn

from repro.cli import source
from repro.cli.main import main
from repro.costs.device import load as load_device
from repro.gpipe.schedule.kinds import make_schedule
from repro.harness import machine, runner
from repro.harness.fastest import RECOMPUTE_MODES, Search, order
from repro.harness.machine import Machine
from repro.harness.predict import Prediction, Roofline, predict
from repro.harness.results import load
from repro.harness.schema import KeptLayers, TrainRound
from repro.harness.spec import PLAIN, RunSpec
from repro.harness.tasks.simulate import simulated
from repro.models import build
from repro.simulate.stage_costs import StageCosts
from repro.simulate.step import exposed_seconds, simulate

ARGS = {"L": 6, "d": 1024, "H": 4096, "heads": 8, "V": 64, "T": 128}
LAYERS = ARGS["L"] + 2
SIZES = ["--model-args", *(f"{name}={value}" for name, value in ARGS.items())]
ON = ["predict", "transformer", *SIZES, "--device", "v100", "--N", "8"]
FASTEST = [*ON, "--devices", "2"]
TINY = [*"predict transformer --model-args L=1 d=16 H=32 heads=2 V=32 T=8 --device here".split()]
INTERLEAVED = ["--schedule", "interleaved-1f1b", "--stages-per-rank", "2"]
HERE = Machine("cpu", "Test CPU", 2, "shm", "2.9")


def answer(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert main([*words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def search(args: dict[str, Any], N: int, memory: float = 10**9) -> Search:
    """On two V100."""
    one = RunSpec(model="transformer", model_args=args, N=N, K=1, M=1, recompute="never")
    return Search(Roofline(load_device("v100"), build("transformer", **args)), one, 2, memory)


@pytest.mark.parametrize(
    ("schedule", "bubble"),
    [
        (["--schedule", "1f1b"], 3 / 8),
        (INTERLEAVED, 3 / 16),
        (["--schedule", "zb-h1"], 3 / 8 / 3),
        (["--schedule", "interleaved-zb", "--stages-per-rank", "2"], 3 / 16 / 3),
    ],
    ids=["1f1b", "interleaved", "zero bubble", "interleaved zero bubble"],
)
def test_bubbles_are_those_of_the_closed_forms(schedule, bubble, capsys):
    """Two stages a device halve the bubble of 1F1B; half I and half W leave a third of it."""
    timed = ["predict", "timed", "--model-args", "L=8", "--K", "4", "--M", "8", "--N", "8"]
    timed += ["--recompute", "never", *schedule]
    (plan,) = answer(capsys, *timed)["plans"]
    assert len(plan["cut"]) == (8 if "--stages-per-rank" in schedule else 4)
    found = plan["idle_over_total"]
    assert found / (1 - found) == pytest.approx(bubble)  # over work


def test_zero_bubble_pays_only_where_it_fills_more_than_the_split_costs():
    args = {"L": 14, "d": 256, "H": 1024, "heads": 4, "V": 1000, "T": 64}
    found = search(args, 64)

    def step(schedule: str, M: int) -> float:
        how = {"K": 4, "M": M, "schedule": schedule, "balance": "uniform"}
        return predict(found.plain.model_copy(update=how), found.source).step_s

    assert step("zb", 4) < step("zb-h1", 4) < step("1f1b", 4)
    assert step("zb", 32) > step("1f1b", 32)


def test_its_numbers_fit_together(capsys):
    found = answer(capsys, *ON, "--K", "2", "--M", "1", "4")
    assert (found["fidelity"], found["memory_fidelity"], found["N"]) == ("simulated", "counted", 8)
    first, second = found["plans"]
    (plain,) = answer(capsys, *ON, "--K", "1", "--M", "1", "--recompute", "never")["plans"]
    assert found["plain"]["step_s"] == plain["step_s"]
    assert plain["speedup_vs_plain"] == 1
    assert second["speedup_vs_plain"] == pytest.approx(plain["step_s"] / second["step_s"])
    assert first["throughput"] == pytest.approx(8 / first["step_s"])
    for plan in found["plans"]:
        assert 0.5 < plan["speedup_vs_k1"] <= 2
        assert sum(plan["cut"]) == LAYERS
        assert plan["step_low_s"] < plan["step_s"] < plan["step_high_s"]
    (slow,) = answer(capsys, *ON, "--K", "2", "--M", "4", "--link", "0.1")["plans"]
    size = 2 * 128 * 1024 * 4  # bytes of a micro-batch of 2 x 128 words of width 1024
    assert slow["step_s"] - second["step_s"] > 2 * 8 * size / 1e8 / 2


def test_with_replicas_the_idle_share_is_of_the_step_with_its_all_reduce(capsys):
    command = [*ON, "--K", "2", "--M", "2", "--D", "2", "--link"]
    slow, fast = (answer(capsys, *command, link)["plans"][0] for link in ("0.1", "1000000"))
    work = (1 - fast["idle_over_total"]) * fast["step_s"]
    assert slow["idle_over_total"] == pytest.approx(1 - work / slow["step_s"])
    assert slow["idle_over_total"] > 0.5


def test_the_sentence_names_what_fits_and_is_faster_than_plain_training(capsys):
    given = [*ON, "--K", "2", "--M", "1", "4"]
    plans = answer(capsys, *given)["plans"]
    fast, lean = plans[1], plans[0]
    assert fast["step_s"] < lean["step_s"]
    peaks = [max(plan["peak_bytes"]) for plan in plans]
    for size, start in (
        (2**40, "fastest: gpipe, K=2, D=1, M=4, "),
        (min(peaks), "fastest that fits: gpipe, K=2, D=1, M=4, "),
        (min(peaks) - 1, "none of these fits: the leanest, gpipe, K=2, D=1, M=4, recompute "),
    ):
        found = answer(capsys, *given, "--memory", f"{size}B")
        assert found["answer"].startswith(start)
        assert [plan["fits"] for plan in found["plans"]] == [peak <= size for peak in peaks]
        assert found["plain"]["fits"] == (size == 2**40)
    slow = answer(capsys, *given, "--link", "0.001")
    assert slow["answer"].startswith("fastest: plain training on one device")
    nearly = answer(capsys, *given, "--memory", f"{min(peaks) - 1}B")["answer"]
    assert f"takes {min(peaks):,} B of {min(peaks) - 1:,} B on its" in nearly


def shared() -> list:
    one = nn.Linear(3072, 3072)
    return [nn.Flatten, one, one]


def test_a_cut_that_the_library_refuses_is_refused_or_left_out(capsys):
    """N is odd, so without a pipeline the second device is of no use."""
    on = ["predict", f"import:{__name__}:shared", "--device", "a100", "--N", "15"]
    assert main([*on, "--K", "2", "--M", "3"]) == 2
    assert "layers[2].weight: shared by stages 0 and 1" in capsys.readouterr().err
    found = answer(capsys, *on, "--devices", "2", "--link", "10000", "--top", "30")
    assert {plan["K"] for plan in found["plans"]} == {1}
    on[on.index("a100")] = "a100-tf32"
    in_float32 = answer(capsys, *on, "--devices", "2", "--link", "10000")["plain"]
    assert max(found["plain"]["peak_bytes"]) < max(in_float32["peak_bytes"])


def test_steps_and_memory_are_those_of_a_simulated_run_and_no_plan_is_faster():
    asked, notes = search(ARGS, 8), []
    asked.note = notes.append
    plans = asked.best(top=30)
    assert {f"{p.spec.method}, K={p.spec.K}, D={p.spec.D}, M={p.spec.M}" for p in plans} <= {
        note.partition(": ")[2] for note in notes
    }
    assert {plan.spec.recompute for plan in plans} == set(RECOMPUTE_MODES)
    for plan in (plan for plan in plans if plan.spec.D == 1):
        record = simulated(
            plan.spec.model_copy(update={"fidelity": "simulated", "profile": "v100"}), "cpu"
        ).record
        assert isinstance(record, TrainRound)
        assert plan.step_s == pytest.approx(record.step_s[0])
        assert plan.peaks == record.peak_bytes
    every = [predict(spec, asked.source) for pair in asked._pairs for spec in asked._specs(*pair)]
    of_families: dict[Any, Prediction] = {}
    for plan in sorted(every, key=order, reverse=True):
        if max(plan.peaks or [0]) <= asked.memory:
            of_families[plan.spec.schedule, plan.spec.K, plan.spec.D, plan.spec.recompute] = plan
    fastest = sorted(map(order, of_families.values()))
    assert [order(plan) for plan in plans] == fastest
    assert [order(plan) for plan in search(ARGS, 8).best(top=2)] == fastest[:2]


def test_less_memory_needs_a_slower_plan_and_too_little_is_told(capsys):
    free = answer(capsys, *FASTEST)["plans"][0]
    limit = round(0.95 * max(free["peak_bytes"]))
    found = answer(capsys, *FASTEST, "--memory", f"{limit}B")
    assert found["plans"][0]["step_s"] > free["step_s"]
    assert all(max(plan["peak_bytes"]) <= limit for plan in found["plans"])
    assert main([*FASTEST, "--memory", "1MB"]) == 2
    needed, unit = capsys.readouterr().err.partition("takes ")[2].split()[:2]
    assert answer(capsys, *FASTEST, "--memory", f"{1.01 * float(needed)}{unit}")["plans"]
    assert main([*FASTEST, "--memory", f"{0.99 * float(needed)}{unit}"]) == 2


def test_nothing_fits_only_where_no_plan_does():
    """Neither with one micro-batch at a time, nor with two stages on each rank."""
    asked = search({"L": 3, "d": 64, "H": 128, "heads": 2, "V": 64, "T": 64}, 8)
    asked.devices = 4
    least = asked.memory
    for pair in asked._pairs:
        for spec in asked._specs(*pair):
            if spec.stages_per_rank is None:
                fullest = asked.source.tasks(spec, asked.source.examples(spec)).cut.fullest
                assert asked._least(*pair) <= fullest, spec
            else:
                fullest = max(predict(spec, asked.source).peaks or [0])
            least = min(least, fullest)
    (plan,) = dataclasses.replace(asked, memory=least).best(top=1)
    assert max(plan.peaks or [0]) <= least
    with pytest.raises(ValueError, match="nothing fits: the leanest plan"):
        dataclasses.replace(asked, memory=0.98 * least).best()


def test_a_memory_that_the_cut_by_time_exceeds_is_met_by_another_cut():
    """The last stage is the softmax, and little else."""
    asked = search({**ARGS, "d": 32, "H": 64, "V": 4096, "T": 16}, 2)
    cuts: dict[Any, set[Any]] = {}
    while True:
        try:
            plans = asked.best(top=30)
        except ValueError:
            break
        for plan in plans:
            key = plan.spec.schedule, plan.spec.K, plan.spec.M, plan.spec.recompute
            cuts.setdefault(key, set()).add(plan.counts)
        most = max(max(plan.peaks or [0]) for plan in plans)
        asked = dataclasses.replace(asked, memory=round(0.9 * min(asked.memory, most)))
    assert max(map(len, cuts.values())) > 1


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["transformer", "--K", "4"], "--device: name one; try --device v100"),
        (["--K", "4"], "model: name one"),
        (["transformer", "--device", "V100-32G", "--K", "4"], "did you mean 'v100'?"),
        (["timed", "--device", "v100", "--K", "2"], "the layers of timed have fixed times"),
        (["timed", "--devices", "2"], "there is no fastest plan; give --K"),
        ([*ON[1:]], "--devices: how many there are"),
        ([*ON[1:], "--devices", "0"], "--devices 0: allowed is 1 to 64"),
        ([*ON[1:], "--devices", "2", "--schedule", "1f1b"], "--schedule: has no meaning without"),
        ([*ON[1:], "--K", "2", "--top", "3"], "--top: has no meaning with --K"),
        ([*ON[1:], "--largest", "--link", "9"], "--link: has no meaning with --largest"),
        ([*ON[1:], "--K", "2", "--link", "0"], "--link 0: allowed is 1e-06 to 1e+06"),
        ([*ON[1:], "--K", "2", "--D", "0"], "--D 0: allowed is 1 to"),
        ([*ON[1:], "--K", "2", "--memory", "16"], "--memory = '16': allowed is a number of bytes"),
        ([*ON[1:], "--K", "2", "--node", "4"], "node=4: the profile v100 has no link between"),
        ([*ON[1:], "--K", "2", "--balance", "4", "5"], "balance = [4, 5] adds up to 9 layers, but"),
        ([*ON[1:], "--K", "4", "--balance", "4", "4"], "balance = [4, 4] has 2 entries for"),
        (["transformer", "--largest", "--K", "2", "4"], "allowed is one value of each"),
        (["timed", "--device", "here", "--K", "2"], "layers wait for fixed times"),
        (["transformer", "--largest"], "--largest: give the memory of each stage"),
    ],
)
def test_a_mistake_is_one_line(words, text, refused):
    assert text in refused(["predict", *words])


def test_a_plan_that_is_given_to_the_last_layer(capsys):
    (plan,) = answer(capsys, *ON, "--K", "2", "--M", "2", "--balance", "5", "3")["plans"]
    assert plan["cut"] == [5, 3]


def test_replicas_on_several_nodes_sum_over_the_slower_link(capsys):
    """K=2 and D=4: pipelines within a node of 4, and two replicas on each of two nodes."""
    on = [*ON, "--K", "2", "--D", "4", "--M", "1"]
    on[on.index("v100")] = "a100"
    steps = [answer(capsys, *on, "--node", node)["plans"][0]["step_s"] for node in ("8", "4", "2")]
    assert steps == sorted(steps)
    assert len({*steps}) == 3


def timed_layers() -> KeptLayers:
    """Layer times of ARGS on two processes, as an older record has them.

    A micro-batch of n examples takes 1 + n ms in each layer, forward. Alone it took half of that.
    """

    def tables(factor: float) -> dict[str, Any]:
        rows = [[1e-3 * factor * (1 + n)] * LAYERS for n in (2, 4, 8)]
        backward = [[2 * seconds for seconds in row] for row in rows]
        return {"forward": rows, "recompute": rows, "backward": backward}

    sent = dict.fromkeys(("activations", "gradients"), [0.0] * (LAYERS - 1))
    times = tables(1) | sent | {"alone": tables(0.5), "sizes": [2, 4, 8], "update": [0.0] * LAYERS}
    times["link"] = {"latency": 0.0, "bytes_per_second": None, "overlap": True}
    return KeptLayers.model_validate({"K": 2, "date": "2026-01-01", "calibration": times})


def test_plans_by_timed_layers_and_what_was_timed_otherwise(tmp_path, monkeypatch, refused, capfd):
    monkeypatch.setattr(machine, "detect", lambda _scale: HERE)
    monkeypatch.setattr(source, "_time", lambda *_: timed_layers())
    here = ["predict", "transformer", *SIZES, "--device", "here", "--results", str(tmp_path)]
    assert main([*here, "--devices", "2", "--N", "16", "--top", "50", "--json"]) == 0
    plans = json.loads(capfd.readouterr().out)["plans"]
    assert {(plan["K"], plan["D"]) for plan in plans} == {(1, 1), (1, 2), (2, 1)}
    for plan in (plan for plan in plans if plan["K"] == 1):
        examples = 16 // plan["D"] // plan["M"]
        assert 2 <= examples <= 8, "other sizes were not timed"
        if plan["recompute"] == "never":
            forward_s = 1e-3 * (1 + examples)  # of one of 8 layers; B takes twice as long
            assert plan["step_s"] == pytest.approx(plan["M"] * 8 * 3 * forward_s)
    assert main([*here, "--K", "1", "2", "4", "--M", "1", "4", "--N", "8"]) == 0
    assert "timed on K=2 processes with 2 to 8 examples; other steps" in capfd.readouterr().err
    assert main([*here, "--K", "1", "2", "--M", "1", "4", "--N", "8"]) == 0
    assert capfd.readouterr().err == ""
    assert "micro-batches of 2 to 8 exam" in refused([*here, "--devices", "2", "--N", "13"])
    monkeypatch.setattr(source, "_time", lambda *_: pytest.fail("timed before the folder is there"))
    (tmp_path / "file").touch()
    assert "/file" in refused([*here, "--devices", "2", "--results", str(tmp_path / "file")])


@pytest.mark.filterwarnings("default")  # torch's own, about its process groups
def test_layers_are_timed_here_once(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(machine, "gpus", lambda: ())
    monkeypatch.setattr(machine, "cores", lambda: 2)
    here = [*TINY, "--results", str(tmp_path), "--N", "4"]
    assert main([*here, "--json"]) == 0
    output = capsys.readouterr()
    assert output.err.startswith("timing the layers of transformer (L=1, d=16, ")
    (path,) = tmp_path.glob("*/layers-transformer-*.json")
    found = json.loads(output.out)
    assert str(path) in found["on"]
    assert found["plans"][0]["step_low_s"] < found["plans"][0]["step_s"]
    given = ["--K", "2", "--M", "1", "4"]
    assert main([*here, *given]) == 0
    assert capsys.readouterr().err == "", "the kept times are used"
    assert main([*here, *given, "--N", "16"]) == 0
    output = capsys.readouterr()
    assert "timing the layers" in output.err, "larger micro-batches than before"
    assert "range   of 90 %" in output.out
    path.write_text("damaged")
    assert main([*here, *given]) == 0
    assert "timing the layers" in capsys.readouterr().err


def test_of_the_sums_of_gradients_only_the_end_is_exposed():
    """The last backwards of the stages end at 6 and at 4."""
    costs = StageCosts(forward=(1.0, 1.0), recompute=(1.0, 1.0), backward=(2.0, 2.0))
    step = simulate(make_schedule("naive", 2, 1, "never"), costs)
    exposed = [exposed_seconds(step, each) for each in ([0.0, 1.5], [0.0, 2.5], [3.0, 2.5])]
    assert exposed == pytest.approx([0, 0.5, 3])


def test_the_command_that_is_printed_measures_the_plan(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(machine, "detect", lambda _scale: HERE)
    monkeypatch.setattr(runner, "workers_for", lambda *_: FakeWorkers())
    less = max(answer(capsys, *FASTEST)["plain"]["peak_bytes"]) - 1
    fastest = [*FASTEST, "--memory", f"{less}B"]
    plan = answer(capsys, *fastest)["plans"][0]
    assert main(fastest) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "repro run" in line]
    words = shlex.split(line.partition("repro run ")[2])
    words += ["--results", str(tmp_path), "--rounds", "1", "--wandb", "disabled"]
    assert main(["run", *words]) == 0
    specs = [run.spec for run in load(tmp_path).runs]
    assert PLAIN in [{name: getattr(spec, name) for name in PLAIN} for spec in specs]
    (spec,) = [spec for spec in specs if spec.K * spec.D == 2]
    assert list(spec.balance) == plan["cut"]
    assert "--scale" not in words
    whole = ["predict", "transformer", "--device", "v100", "--N", "8", "--devices", "2"]
    assert main(whole) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "repro run" in line]
    assert line.rstrip().endswith(" --scale node"), "on CPU cores a sweep's model is smaller"
    for name in ("K", "D", "M", "recompute", "schedule"):
        assert getattr(spec, name) == plan[name]
