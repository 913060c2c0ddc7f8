"""The adapters of the libraries, held against the unsplit model and ours, or arithmetic."""

from datetime import timedelta
from functools import partial
from importlib.util import find_spec
from typing import Any

import pytest
import torch
import torch.distributed as dist
from probed import examined, setup
from torch import nn

from repro.gpipe import launch
from repro.harness.request import Request, Result
from repro.harness.spec import RunSpec, sweep
from repro.harness.tasks.run import run
from repro.methods import make
from repro.methods.checks import Check
from repro.methods.probe import probe

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
BARE: dict[str, Any] = {"library": "bare", "K": 2, "M": 4, "N": 4, "trace": False, "steps": 2}
Found = tuple[dict[str, Check], list[float]]  # its checks, and losses of a training


def two_ranks() -> dict[str, Found] | None:
    """In 3 processes, one without a stage: ours and torch's."""
    from repro.methods.peers.pipelining import groups

    short = timedelta(seconds=3)
    group, *spares = groups(2, [timedelta(minutes=2), *(short for _ in TORCH_SCHEDULES)])
    if dist.get_rank() == 2:
        return None
    results = {"repro": (examined(partial(make, "repro")), trained("repro", group))}
    for (library, settings), spare in zip(TORCH_SCHEDULES.items(), spares, strict=True):
        checks = examined(partial(make, library), spare, group=group, **settings)
        results[library] = (checks, trained(library, group, **settings))
    for library in ZERO_BUBBLE:
        settings = {"schedule": "zb", "balance": "uniform"}
        results[library] = ({}, trained(library, group, **settings))
    return results


def deepspeed_ranks() -> dict[str, Found]:
    checks = examined(partial(make, "deepspeed"), schedule="1f1b")
    ours = trained("repro", None, schedule="1f1b")
    return {"repro": ({}, ours), "deepspeed": (checks, trained("deepspeed", None, schedule="1f1b"))}


def _first() -> nn.Module:
    """With parameters: torch's zero bubble does not train behind a stage that has none."""
    return nn.Sequential(nn.Flatten(), nn.Linear(192, 16))


def trained(library: str, group: Any, **settings: Any) -> list[float]:
    """Losses while training without dropout, an evaluation in between where there can be one."""
    quiet = [_first, nn.ReLU(), partial(nn.Linear, 16, 16), partial(nn.Linear, 16, 5)]
    optimizer = partial(torch.optim.SGD, lr=0.1)
    method = make(library, setup(layers=quiet, group=group, optimizer=optimizer, **settings))
    inputs, targets = probe().batch(16, 0)
    losses = [method.train_step(inputs, targets).loss]
    if library not in ZERO_BUBBLE:  # torch's V fails to evaluate
        losses.append(method.evaluate(inputs, targets).loss)
    losses += [method.train_step(inputs, targets).loss for _ in range(2)]
    method.close()
    return losses


def assert_trains_as_ours(results: dict[str, Found], library: str) -> None:
    """Its known faults: if these change, it has changed, and the report's table says so too."""
    checks, losses = results[library]
    for name in ("gradients", "evaluation", "dropout"):
        assert checks[name].verdict == "ok", checks[name]
    assert "num_batches_tracked is 8" in checks["batch norm"].evidence  # recomputed ones twice
    assert checks["batch norm"].verdict == "wrong"
    assert checks["unequal micro-batches"].verdict == "refused"
    ours = results["repro"][1]
    assert losses == pytest.approx(ours, abs=1e-6)
    assert losses[-1] < losses[0]


def test_torch_trains_as_ours_and_ours_is_right_in_every_check():
    results, other, none = launch(two_ranks, stages=3)
    assert none is None
    assert results == other
    assert {check.verdict for check in results["repro"][0].values()} == {"ok"}
    for library in TORCH_SCHEDULES:
        assert_trains_as_ours(results, library)
        assert "batch_size" in results[library][0]["unequal micro-batches"].evidence
    first, _, *later = results["repro"][1]
    for library in ZERO_BUBBLE:
        assert results[library][1] == pytest.approx([first, *later], abs=1e-6)


@pytest.mark.skipif(
    find_spec("torchgpipe") is None, reason="torchgpipe is not installed; it is the extra `peers`"
)
def test_torchgpipe_is_right_but_for_the_variance():
    checks = examined(partial(make, "torchgpipe"))
    assert [name for name, check in checks.items() if check.verdict != "ok"] == ["batch norm"]
    assert (checks["batch norm"].value or 1.0) < 1e-3  # biased
    assert "micro-batches of 5, 5, 5, 2" in checks["unequal micro-batches"].evidence


@pytest.mark.skipif(
    find_spec("deepspeed") is None, reason="deepspeed is not installed; it is the extra `peers`"
)
def test_deepspeed_trains_as_ours():
    for results in launch(deepspeed_ranks, stages=2):
        assert_trains_as_ours(results, "deepspeed")


def bare_ranks() -> list[Result]:
    args = {"L": 2, "forward_s": 0.005, "backward_s": 0.01, "elements": 1024}
    timed = RunSpec(model="timed", model_args=args, balance="uniform", fidelity="emulated", **BARE)
    return run((Request(timed),), dist.get_rank())


@pytest.mark.alone
def test_the_bare_loop_takes_what_it_waits_and_little_more():
    record = launch(bare_ranks, stages=2)[0][0].record.model_dump()
    assert 1 <= min(record["step_s"]) / 0.095 < 1.5  # (M+K-1)F + M(R+B) + (K-1)B
    assert record["sent_bytes"] == [{"activations": 4 * 4096}, {"gradients": 4 * 4096}]


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
    fields |= {"checkpoint": ["always", "never"], "library": ["repro", "loop"]}
    specs = [sweep(model=model, model_args=args, **fields) for model, args in models.items()]
    return [run([Request(spec) for spec in of_model], dist.get_rank()) for of_model in specs]


def test_the_plain_loop_has_our_losses_in_both_formats():
    """It adds gradients in another order, so a loss in bfloat16 may be the next number."""
    for results, rounding in zip(launch(loop_rank, stages=1)[0], (1e-6, 2**-7), strict=True):
        losses = [each.record.model_dump()["loss"] for each in results]
        assert losses[1::2] == [pytest.approx(ours, rel=rounding) for ours in losses[::2]]
