"""Buffers are as before, values and objects, if what is inside raises; else untouched."""

import pytest
import torch
from torch import nn

from repro.gpipe.exact.buffers import Changing
from repro.gpipe.exact.rollback import Rollback


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

    def step(self) -> None:
        self.here += 1
        self.other = self.here
        (self.weight.sum() * 2).backward()


def run(module: Counter, error: type[BaseException] | None) -> None:
    changing = Changing([module])
    rollback = Rollback(list(module.parameters()), changing)
    try:
        with changing.learning():
            module.step()
        if error is not None:
            raise error
    except BaseException:
        rollback.undo()
        raise
    rollback.keep()


@pytest.mark.parametrize("error", [FloatingPointError, KeyboardInterrupt])
def test_all_is_as_before(error):
    module = Counter()
    here, other = module.here, module.other
    with pytest.raises(error):
        run(module, error)
    assert module.weight.grad is None
    assert module.here is module.there is here
    assert module.other is other
    assert here.item() == other.item() == 0.0


def test_a_good_step_stays():
    module = Counter()
    run(module, None)
    assert module.weight.grad is not None
    assert module.weight.grad.tolist() == [2.0, 2.0]
    assert module.other.item() == module.there.item() == 1.0


def test_gradients_that_were_there_before_are_kept_or_added_to():
    module = Counter()
    run(module, None)
    before = module.weight.grad
    with pytest.raises(FloatingPointError):
        run(module, FloatingPointError)
    assert module.weight.grad is before
    assert before is not None
    assert before.tolist() == [2.0, 2.0]
    run(module, None)
    assert module.weight.grad is before
    assert before.tolist() == [4.0, 4.0]
