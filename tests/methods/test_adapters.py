"""The adapters of the libraries, held against the unsplit model and ours, or arithmetic."""

from functools import partial
from importlib.util import find_spec
from typing import Any

import pytest
import torch.distributed as dist
from probed import Beside, beside_unsplit, probe, setup
from torch import nn

from repro.gpipe import launch
from repro.harness.request import Request, Result
from repro.harness.spec import RunSpec, sweep
from repro.harness.tasks.run import run
from repro.methods import make

# Schedules of torch.distributed.pipelining: of the setup, and the stages of a rank.
TORCH_SCHEDULES: dict[str, dict[str, Any]] = {
    "torch": {},
    "torch-1f1b": {"schedule": "1f1b"},
    "torch-interleaved": {
        "schedule": "interleaved-1f1b",
        "stages_per_rank": 2,
        "balance": (1, 1, 1, 1),
    },
}
ZERO_BUBBLE = ("torch-zb", "torch-zbv", "torch-dualpipev")
SMALL = {"L": 2, "d": 16, "H": 32, "heads": 2, "V": 32, "T": 8, "dropout": 0.0}
Found = tuple[Beside | None, list[float]]  # its step beside the unsplit model, losses of a training


def two_ranks() -> dict[str, Found] | None:
    """In 3 processes, one without a stage: ours and torch's."""
    group = dist.new_group(range(2))
    if dist.get_rank() == 2:
        return None
    results: dict[str, Found] = {}
    results["repro"] = beside_unsplit(partial(make, "repro")), trained("repro", group)
    for library, settings in TORCH_SCHEDULES.items():
        beside = beside_unsplit(partial(make, library), group=group, **settings)
        results[library] = beside, trained(library, group, **settings)
    for library in ZERO_BUBBLE:
        settings = {"schedule": "zb", "balance": "uniform"}
        results[library] = None, trained(library, group, **settings)
    return results


def deepspeed_ranks() -> dict[str, Found]:
    beside = beside_unsplit(partial(make, "deepspeed"), schedule="1f1b")
    ours, theirs = (trained(name, None, schedule="1f1b") for name in ("repro", "deepspeed"))
    return {"repro": (None, ours), "deepspeed": (beside, theirs)}


def _first() -> nn.Module:
    """With parameters: torch's zero bubble does not train behind a stage that has none."""
    return nn.Sequential(nn.Flatten(), nn.Linear(192, 16))


def trained(library: str, group: Any, **settings: Any) -> list[float]:
    """Losses of three steps."""
    quiet = [_first, nn.ReLU(), partial(nn.Linear, 16, 16), partial(nn.Linear, 16, 5)]
    method = make(library, setup(layers=quiet, group=group, **settings))
    inputs, targets = probe().batch(16, 0)
    losses = [method.train_step(inputs, targets).loss for _ in range(3)]
    method.close()
    return losses


def assert_trains_as_ours(results: dict[str, Found], library: str, *tracked: int) -> None:
    """With its known fault: if that changes, docs/performance.md changes too.

    `tracked` are the micro-batches that norms have counted, recomputed ones again.
    """
    beside, losses = results[library]
    assert beside
    assert beside.gradients != "different"
    assert beside.statistics == "different"
    assert beside.tracked == {*tracked}
    ours = results["repro"][1]
    assert losses == pytest.approx(ours, abs=1e-6)
    assert losses[-1] < losses[0]


def test_torch_trains_as_ours_and_ours_as_the_unsplit_model():
    results, other, none = launch(two_ranks, stages=3)
    assert none is None
    assert results == other
    ours, _ = results["repro"]
    assert ours
    assert (ours.gradients, ours.statistics) == ("rounding", "same bits")
    for library in TORCH_SCHEDULES:
        assert_trains_as_ours(results, library, 8)
    for library in ZERO_BUBBLE:
        assert results[library][1] == pytest.approx(results["repro"][1], abs=1e-6)


@pytest.mark.skipif(
    find_spec("deepspeed") is None, reason="deepspeed is not installed; it is the extra `peers`"
)
def test_deepspeed_trains_as_ours():
    for results in launch(deepspeed_ranks, stages=2):
        # The first stage sends two tensors, and DeepSpeed calls a backward for each.
        assert_trains_as_ours(results, "deepspeed", 8, 12)


def minimal_ranks() -> list[Result]:
    """In 3 processes, one without a stage: ours and the paper on one page."""
    common: dict[str, Any] = {"K": 2, "M": 3, "N": 8, "steps": 3, "trace": False}
    common |= {"model": "transformer", "model_args": SMALL, "balance": "flops"}
    specs = [RunSpec(library=library, **common) for library in ("repro", "minimal")]
    return run([Request(spec) for spec in specs], dist.get_rank())


def test_the_paper_on_one_page_has_our_losses():
    ours, page = (each.record.model_dump() for each in launch(minimal_ranks, stages=3)[0])
    assert page["loss"] == ours["loss"]
    assert page["balance"] == ours["balance"]
    assert page["sent_bytes"] is None


def loop_rank() -> list[list[Result]]:
    """Ours and the plain loop at K=1, with and without recomputation: in float32, in bfloat16."""
    half = {"of": "transformer", "given": SMALL}
    models = {"transformer": SMALL, "import:repro.models.on_gpu:bfloat16": half}
    fields: dict[str, Any] = {"K": 1, "M": 3, "N": 8, "steps": 3, "trace": False}
    fields |= {"recompute": ["always", "never"], "library": ["repro", "loop"]}
    specs = [sweep(model=model, model_args=args, **fields) for model, args in models.items()]
    return [run([Request(spec) for spec in of_model], dist.get_rank()) for of_model in specs]


def test_the_plain_loop_has_our_losses_in_both_formats():
    """It adds gradients in another order, so a loss in bfloat16 may be the next number."""
    for results, rounding in zip(launch(loop_rank, stages=1)[0], (1e-6, 2**-7), strict=True):
        losses = [each.record.model_dump()["loss"] for each in results]
        assert losses[1::2] == [pytest.approx(ours, rel=rounding) for ours in losses[::2]]
