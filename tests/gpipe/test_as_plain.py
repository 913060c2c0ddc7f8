"""A step trains as in plain PyTorch, or it is refused in one line: the rules of docs/library.md."""

import as_plain
import numpy as np
import pytest
import torch
from torch.nn import functional

from repro.gpipe import Pipeline, launch
from repro.gpipe.runtime.launch import StageError

REFUSED = {
    "a class at a boundary": "a Marked",
    "a sequence with a forward": "Scaled",
    "a weight by reference": "stage",
    "state in a list": "again",
}


TRAINED = [case for case in as_plain.CASES if case not in REFUSED]


@pytest.mark.parametrize("case", REFUSED)
def test_refused_in_one_line(case):
    with pytest.raises(StageError, match=REFUSED[case]) as caught:
        launch(as_plain.trained, case, stages=2)
    assert "\n" not in str(caught.value)


@pytest.fixture(scope="module")
def ran():
    """What two stages did, rank by rank."""
    return launch(as_plain.trained, *TRAINED, stages=2)


@pytest.mark.parametrize("case", TRAINED)
def test_trains_as_in_plain_pytorch(ran, case):
    whole = torch.nn.Sequential(*as_plain.model(case))
    own = torch.optim.SGD(whole.parameters(), lr=0.1)
    x, y = as_plain.batch()
    for _ in range(2):
        own.zero_grad()
        for part, target in zip(x.chunk(as_plain.M), y.chunk(as_plain.M), strict=True):
            (functional.mse_loss(whole(part), target) / as_plain.M).backward()
        own.step()
    found = {**ran[0][case], **ran[1][case]}
    for name, value in whole.state_dict().items():
        torch.testing.assert_close(found[name], value, msg=lambda m, n=name: f"{n}: {m}")


@pytest.mark.parametrize("beside", [list(range(as_plain.N)), np.arange(as_plain.N)])
def test_numbers_beside_the_inputs_are_refused(beside):
    """Whole, they would go to each micro-batch, which has a part of the examples."""
    x, y = as_plain.batch()
    pipe = Pipeline([as_plain.Call(lambda _, v: v[0])], 1, as_plain.M, device="cpu")
    with pytest.raises(ValueError, match="of length 12, the mini-batch, is not cut"):
        pipe.train_step((x, beside), y, functional.mse_loss)
