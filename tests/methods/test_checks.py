"""The checks themselves, on methods that are right, or wrong in one way that is known."""

from typing import Any

import pytest
import torch
from probed import examined
from torch import nn

from repro.gpipe import EvaluationResult, StepResult
from repro.gpipe.tree import batch_size
from repro.methods.checks import Check
from repro.methods.own import Own

NAMES = ("gradients", "batch norm", "evaluation", "dropout", "unequal micro-batches")


class Faulty(Own):
    """Our pipeline with one fault in its results."""

    fault = ""

    def train_step(self, inputs: Any, targets: Any) -> StepResult:
        uneven = bool(batch_size(inputs) % self._setup.config.micro_batches)
        if uneven and self.fault == "refuses":
            raise RuntimeError("sizes\ndiffer")
        result = super().train_step(inputs, targets)
        recomputes = self._setup.config.checkpoint == "always"
        for part in self.module.modules():
            if isinstance(part, nn.BatchNorm2d) and self.fault == "batch norm":
                assert part.num_batches_tracked is not None
                part.num_batches_tracked += 7  # once for each F and R, instead of once
            dropped = isinstance(part, nn.Dropout) and part.p > 0
            if self.fault == "dropout" and dropped and recomputes:
                self._change_gradients()
        if self.fault == "unequal micro-batches" and uneven:
            self._change_gradients()
        return result

    def _change_gradients(self) -> None:
        for p in self.module.parameters():
            assert p.grad is not None
            p.grad *= 1.01

    def evaluate(self, inputs: Any, targets: Any) -> EvaluationResult:
        if self.fault != "evaluation":
            return super().evaluate(inputs, targets)
        with torch.no_grad():  # with the micro-batch's own statistics
            return EvaluationResult(0.0, self.module(inputs))


def examined_with(fault: str) -> dict[str, Check]:
    method = type("Faulty", (Faulty,), {"fault": fault})
    return examined(method, stages=1, balance=(4,))


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
    found = examined_with(wrong)
    verdicts = {name: check.verdict for name, check in found.items()}
    assert verdicts == dict.fromkeys(NAMES, "ok") | {wrong: "wrong"}
    assert found[wrong].value is not None
    assert evidence in found[wrong].evidence


def test_an_error_is_a_refusal_with_its_words():
    found = examined_with("refuses")["unequal micro-batches"]
    assert found == Check("refused", None, "RuntimeError: sizes differ")
