"""Guards by name."""

from itertools import count
from pathlib import Path

import pytest
import torch
from examples import refused
from torch import nn

from repro.gpipe import Pipeline
from repro.gpipe.exact.rules import GUARDS, NAMES


class Counting(nn.Linear):
    """Adds the number of its calls, which no guard can put back."""

    def __init__(self) -> None:
        super().__init__(4, 4)
        self.calls = count()

    def forward(self, x):
        return super().forward(x) + next(self.calls)


def test_the_docs_say_what_happens_without_each_guard():
    note = (Path(__file__).parents[2] / "docs/notes/guards.md").read_text(encoding="utf-8")
    rows = [f"| `{guard.__name__}` | {str(guard.__doc__).splitlines()[0]} |" for guard in GUARDS]
    assert "\n".join(rows) in note


@pytest.mark.parametrize("left_out", NAMES)
def test_what_is_left_out_is_not_looked_at(left_out):
    x, guards = torch.randn(6, 4), [name for name in NAMES if name != left_out]
    pipe = Pipeline([Counting()], 1, 2, device="cpu", guards=guards)
    step = x, x, nn.functional.mse_loss
    if left_out == "RecomputeEqualsForward":
        pipe.train_step(*step)
    else:
        refused("its outputs are not the same when", pipe.train_step, *step)
