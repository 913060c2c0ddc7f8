"""Checks whether a library trains as one device would, against the unsplit model.

The reference is that of `Pipeline.compare`: the same micro-batches one after the other, without
recomputation. By section 2.3 of arXiv:1811.06965v5, micro-batches change only the statistics that
batch norm trains with.
"""

import math
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor

from repro.gpipe.core.compare import differences, step_without_pipeline
from repro.gpipe.core.verdict import worst
from repro.methods.method import Method, Setup

Verdict = Literal["ok", "wrong", "none"]
State = dict[str, Tensor]


@dataclass(frozen=True)
class Check:
    """Result of a check; the verdict is "none" if the model has nothing to check."""

    verdict: Verdict
    value: float | None  # the greatest difference
    evidence: str


def examine(
    make: Callable[[Setup], Method], setup: Setup, batch: Callable[[int, int], Any], N: int
) -> dict[str, Check]:
    """Compare one step of N examples with one of the unsplit model: weights, running statistics.

    Every process of the library calls this and gets the same result. Instead of the optimizer of
    the setup there is SGD with a rate of 1, so that weights show gradients. A peer draws other
    random numbers, so its model has no dropout.
    """
    optimizer = partial(torch.optim.SGD, lr=1.0)
    inputs, targets = batch(N, setup.seed)
    state: State = {}
    with closing(make(replace(setup, optimizer=optimizer))) as method:
        loss = method.train_step(inputs, targets).loss
        own = method.module.state_dict()
        for tensors in method.gather({name: tensor.cpu() for name, tensor in own.items()}):
            state |= tensors
        parts = [method.cut(setup.placed(tree)) for tree in (inputs, targets)]
    model = setup.build_stage([len(setup.layers)], 0)
    # Each micro-batch is given as that of another replica, since the library has chosen its size.
    batches = [*zip(*parts, strict=True)]
    expected = step_without_pipeline(
        model, batches, 1, setup.loss, seed=setup.seed, step=0, order=[0]
    )
    optimizer(model.parameters()).step()
    buffers = {name: tensor.cpu() for name, tensor in model.state_dict().items()}
    weights = {name: buffers.pop(name) for name, _ in model.named_parameters()}
    checks = {
        "gradients": _compare(
            {**state, "loss": torch.tensor(loss)},
            {**weights, "loss": torch.tensor(expected)},
            f"loss {loss:.6f}, unsplit {expected:.6f}",
        ),
        "batch norm": Check("none", None, "the model has no running statistics"),
    }
    if buffers:
        counts = {int(v) for name, v in state.items() if name.endswith("num_batches_tracked")}
        text = f"after one step num_batches_tracked is {', '.join(map(str, sorted(counts)))}"
        checks["batch norm"] = _compare(state, buffers, text)
    return checks


def _compare(actual: Mapping[str, Tensor], expected: Mapping[str, Tensor], text: str) -> Check:
    """Greatest difference, which is "ok" if each tensor differs by rounding at most."""
    found = [*differences("tensor", actual, expected)]
    lacking = sorted(each.name for each in found if math.isnan(each.largest))
    if lacking:
        return Check("wrong", None, f"{text}; missing or not finite: {', '.join(lacking)}")
    largest, size = max(each.largest for each in found), max(each.size for each in found)
    verdict: Verdict = "wrong" if worst(each.verdict for each in found) == "different" else "ok"
    return Check(
        verdict, largest, f"{text}; off by {largest:.1e} at most, of numbers up to {size:.3g}"
    )
