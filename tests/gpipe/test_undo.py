"""A refused step leaves buffers and gradients as they were, values and objects."""

from contextlib import suppress

import pytest
import torch
from torch import nn

from repro.gpipe.exact.buffers import Changing, undone_if_refused


class Counter(nn.Module):
    """Two buffers that are one, and one that is replaced."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2))
        self.register_buffer("here", torch.zeros(()))
        self.register_buffer("there", self.here)
        self.register_buffer("other", torch.zeros(()))
        self.here: torch.Tensor
        self.there: torch.Tensor
        self.other: torch.Tensor


def run(module: Counter, *, good: bool) -> None:
    changing = Changing([module])
    with suppress(KeyboardInterrupt), undone_if_refused(list(module.parameters()), changing):
        before = changing.before_forward(closely=True)
        module.here += 1
        module.other = module.here
        changing.after_forward(before, closely=True)
        (module.weight.sum() * 2).backward()
        if not good:
            raise KeyboardInterrupt


@pytest.mark.parametrize("gradient", [None, torch.ones(2)])
def test_all_is_as_before_or_added(gradient):
    module = Counter()
    module.weight.grad = gradient
    here, other = module.here, module.other
    run(module, good=False)
    assert module.weight.grad is gradient
    assert gradient is None or gradient.tolist() == [1.0, 1.0]
    assert module.here is module.there is here
    assert module.other is other
    assert here.item() == other.item() == 0.0
    run(module, good=True)
    assert gradient is None or module.weight.grad is gradient
    assert module.weight.grad is not None
    assert module.weight.grad.tolist() == [2.0 + (gradient is not None)] * 2
    assert module.other.item() == module.there.item() == 1.0
