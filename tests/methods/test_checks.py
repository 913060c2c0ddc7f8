"""The comparison with the unsplit model, of methods that are wrong in one way."""

from typing import Any

import pytest
from probed import beside_unsplit
from torch import nn

from repro.gpipe import StepResult
from repro.methods.own import Own


class Faulty(Own):
    """Our pipeline with one fault in its results."""

    fault = ""

    def train_step(self, inputs: Any, targets: Any) -> StepResult:
        result = super().train_step(inputs, targets)
        for part in self.module.modules():
            if self.fault == "batch norm" and isinstance(part, nn.BatchNorm2d):
                assert part.num_batches_tracked is not None
                part.num_batches_tracked += 7  # once for each F and R, instead of once
            elif self.fault == "gradients" and isinstance(part, nn.Linear):
                assert part.weight.grad is not None
                part.weight.data -= 0.01 * part.weight.grad
        return result


@pytest.mark.parametrize(
    ("fault", "words", "tracked"),
    [
        ("batch norm", ("rounding", "different"), {8}),
        ("gradients", ("different", "same bits"), {1}),
    ],
)
def test_each_fault_is_found(fault, words, tracked):
    found = beside_unsplit(type("Faulty", (Faulty,), {"fault": fault}), stages=1, balance=(4,))
    assert (found.gradients, found.statistics) == words
    assert found.tracked == tracked
