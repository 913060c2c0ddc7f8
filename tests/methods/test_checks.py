"""The checks themselves, on methods that are wrong in one way; test_adapters.py has more."""

from typing import Any

import pytest
import torch
from probed import examined
from torch import nn

from repro.gpipe import EvaluationResult, StepResult
from repro.gpipe.tree import batch_size
from repro.methods.own import Own

NAMES = ("gradients", "batch norm", "evaluation", "dropout", "unequal micro-batches")


class Faulty(Own):
    """Our pipeline with one fault in its results."""

    fault = ""

    def train_step(self, inputs: Any, targets: Any) -> StepResult:
        uneven = bool(batch_size(inputs) % self._setup.config.micro_batches)
        result = super().train_step(inputs, targets)
        drops = any(isinstance(part, nn.Dropout) and part.p > 0 for part in self.module.modules())
        recomputes = self._setup.config.checkpoint == "always"
        is_wrong = {"dropout": drops and recomputes, "unequal micro-batches": uneven}
        for part in self.module.modules() if self.fault == "batch norm" else ():
            if isinstance(part, nn.BatchNorm2d):
                assert part.num_batches_tracked is not None
                part.num_batches_tracked += 7  # once for each F and R, instead of once
        for p in self.module.parameters() if is_wrong.get(self.fault) else ():
            assert p.grad is not None
            p.grad *= 1.01
        return result

    def evaluate(self, inputs: Any, targets: Any) -> EvaluationResult:
        if self.fault != "evaluation":
            return super().evaluate(inputs, targets)
        with torch.no_grad():  # with the micro-batch's own statistics
            return EvaluationResult(0.0, self.module(inputs))


@pytest.mark.parametrize(
    ("wrong", "evidence"),
    [
        ("batch norm", "num_batches_tracked is 8"),
        ("dropout", "always against never"),
        ("unequal micro-batches", "micro-batches of 5, 4, 4, 4"),
        ("evaluation", "off by"),
    ],
)
def test_each_fault_is_found_by_its_own_check_alone(wrong, evidence):
    method = type("Faulty", (Faulty,), {"fault": wrong})
    found = examined(method, stages=1, balance=(4,))
    verdicts = {name: check.verdict for name, check in found.items()}
    assert verdicts == dict.fromkeys(NAMES, "ok") | {wrong: "wrong"}
    assert found[wrong].value is not None
    assert evidence in found[wrong].evidence
