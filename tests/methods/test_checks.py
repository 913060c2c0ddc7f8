"""The checks themselves, on methods that are wrong in one way; test_adapters.py has more."""

from typing import Any

import pytest
from probed import examined
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
    ("wrong", "evidence"), [("batch norm", "num_batches_tracked is 8"), ("gradients", "off by")]
)
def test_each_fault_is_found_by_its_own_check_alone(wrong, evidence):
    method = type("Faulty", (Faulty,), {"fault": wrong})
    found = examined(method, stages=1, balance=(4,))
    verdicts = {name: check.verdict for name, check in found.items()}
    assert verdicts == {"gradients": "ok", "batch norm": "ok"} | {wrong: "wrong"}
    assert evidence in found[wrong].evidence
