"""The largest model that fits, and the command that looks for it."""

import json
from functools import partial
from itertools import accumulate, combinations, pairwise
from typing import Any

import pytest

from repro.cli.main import main
from repro.costs.fit import Step, largest, tasks
from repro.costs.limit import over_limit
from repro.costs.units import parse_bytes
from repro.gpipe.core.config import PipelineConfig
from repro.gpipe.partition.layer_costs import stage_layers
from repro.gpipe.partition.partition import additive
from repro.harness.tasks.optimizers import OPTIMIZERS
from repro.models import build

GIB = 2**30
SMALL = {"d": 64, "H": 256, "heads": 4, "V": 256, "T": 64}
STEP = Step(PipelineConfig(4, 8), batch=8, optimizer=OPTIMIZERS["rmsprop-momentum"])


def transformer(L: int):
    return build("transformer", L=L, **SMALL)


def test_no_cut_is_more_even():
    """Moving a layer over any boundary makes the fullest stage no emptier."""
    found = tasks(transformer, STEP, {"L": 9})
    ends = [0, *accumulate(found.cut.balance)]
    for boundary in (1, 2, 3):
        for moved in (-1, 1):
            other = [*ends]
            other[boundary] += moved
            if all(a < b for a, b in pairwise(other)):
                stages = found.peaks([b - a for a, b in pairwise(other)])
                assert max(stage.total for stage in stages) >= 0.99 * found.cut.fullest


def test_no_cut_that_fits_is_cheaper():
    found = tasks(transformer, STEP, {"L": 9})
    cost = additive([3.0, *9 * [1.0], 6.0])
    ends = ((0, *inner, 11) for inner in combinations(range(1, 11), 3))
    cuts = [tuple(b - a for a, b in pairwise(each)) for each in ends]
    peak = {cut: max(stage.total for stage in found.peaks(cut)) for cut in cuts}
    largest_cost = {cut: max(cost(s.start, s.stop) for s in stage_layers(cut)) for cut in peak}
    answers = set[Any]()
    for memory in range(found.cut.fullest, max(peak.values()), found.cut.fullest // 20):
        least = min(largest_cost[cut] for cut in peak if peak[cut] <= memory)
        answer = found.cheapest(memory, cost)
        assert answer is not None
        assert peak[answer] <= memory
        assert largest_cost[answer] == least
        answers.add(answer)
    assert len(answers) > 1
    assert found.cheapest(found.cut.fullest // 2, cost) is None


def test_a_model_too_shallow_for_the_stages_is_one_line_and_other_ladders_count():
    step = Step(PipelineConfig(stages=8, micro_batches=8), batch=8)
    with pytest.raises(ValueError, match="stages=8: the model has 5 layers"):
        largest(transformer, step, GIB, [[{"L": 3}]])
    best: Any = largest(transformer, step, GIB, [[{"L": 3}], [{"L": 9}]]).best
    assert best.args == {"L": 9}


def test_units_are_decimal_or_binary():
    for text, size in (("8GB", 8 * 10**9), ("8GiB", 8 * GIB), ("1.5 gib", 3 * GIB // 2)):
        assert parse_bytes("memory", text) == size
    for text in ("", "8", "GB", "8G", "-8GB", "1e3GB", "0GB", "8Gb", "9" * 400):
        with pytest.raises(ValueError, match=r"^memory = .*try .*GB$"):
            parse_bytes("memory", text)


def test_the_command(capsys: pytest.CaptureFixture[str]):
    command = ["predict", "transformer", "--largest", "4MiB", "--K", "4"]
    command += ["--N", "8", "--M", "8", "--optimizer", "rmsprop-momentum", "--model-args"]
    command += [f"{name}={value}" for name, value in SMALL.items()]
    assert main(command) == 0
    shown = capsys.readouterr()
    assert main([*command, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    best, above = found["largest"], found["next"]
    L = best["args"]["L"]
    for words in ("4.00 MiB of each stage", "counted", f"largest: L={L} ("):
        assert words in shown.out
    assert shown.err == ""
    assert best["fullest"] <= 4 * 2**20 < above["fullest"]
    assert (above["args"]["L"], sum(best["balance"])) == (L + 1, L + 2)
    layers = [layer() for layer in transformer(L).layers]
    assert best["parameters"] == sum(p.numel() for layer in layers for p in layer.parameters())
    assert best["stages"] == tasks(transformer, STEP, {"L": L}).cut.plain()["stages"]


def test_only_models_of_the_paper_have_sizes(refused):
    assert "is searched of transformer" in refused(["predict", "timed", "--largest"])


@pytest.mark.slow
def test_table_1_at_its_own_size():
    """The 83.9 billion parameters of Transformer-1663 on 128 stages of 16 GiB, and their memory."""
    step = Step(PipelineConfig(128, 32), 32)
    cut = tasks(partial(build, "transformer"), step, {"L": 1663}).cut
    assert cut.parameters == 83_876_910_336
    assert cut.fullest < 16 * GIB
    assert sum(stage.by_kind["parameters"] for stage in cut.stages) == 4 * cut.parameters


def test_the_limit_of_a_gpu_is_told_from_a_full_machine():
    """In torch's words on an H200, which name what is allowed only if there is a limit."""
    said = (
        "stage 1, R30 of step 1: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate "
        "20 MiB. GPU 0 has a total capacity of 139.80 GiB of which 114 GiB is free."
    )
    allowed = " Process 650 has 520 MiB memory in use. 16.00 GiB allowed; Of the allocated memory"
    rest = " 10.00 GiB is allocated by PyTorch, and 205.44 MiB is reserved by PyTorch but"
    assert over_limit(said + allowed + rest) == said
    assert over_limit(said + rest) == ""
