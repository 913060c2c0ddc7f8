"""Counted memory against a GPU's allocator; workspaces of kernels are small in these models."""

from functools import partial

import pytest
import torch

from repro.costs import Messages, count
from repro.gpipe import Pipeline
from repro.gpipe.core.config import PipelineConfig
from repro.models import build

MODELS = {
    "transformer": ({"L": 8, "d": 1024, "H": 4096, "heads": 16, "V": 32000, "T": 512}, 16),
    "amoebanet-d": ({"L": 6, "D": 128, "image": 224}, 32),
}


@pytest.mark.gpu
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(
    ("M", "checkpoint"), [(1, "never"), (4, "always"), (8, "except_last"), (8, "never")]
)
def test_counted_is_what_the_gpu_allocates(name: str, M: int, checkpoint: str):
    """Within 5 % of `max_memory_allocated`, counted on the GPU's operators."""
    args, N = MODELS[name]
    model = build(name, **args)
    data = model.batch(N, 0)
    optimizer = partial(torch.optim.RMSprop, foreach=False)
    pipe = Pipeline(model.layers, 1, M, checkpoint=checkpoint, balance="uniform", device="cuda")
    own = optimizer(pipe.parameters())
    for _ in range(2):
        (measured,) = pipe.measure_memory(*data, model.loss, own)
    pipe.close()
    config = PipelineConfig(1, M, checkpoint=checkpoint, balance="uniform")
    found = count(
        model.layers,
        model.loss,
        *data,
        config,
        optimizer=optimizer,
        messages=Messages(0, 0),
        device="cuda",
    )
    assert found.stages[0].total == pytest.approx(measured, rel=0.05)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there_is_one_line():
    model = build("transformer", L=1, d=8, H=8, heads=2, V=64, T=4)
    with pytest.raises(
        ValueError,
        match="device='cuda': counting is on 'cpu', or on 'cuda' where torch can use a GPU",
    ):
        count(model.layers, model.loss, *model.batch(2, 0), PipelineConfig(1, 1), device="cuda")
