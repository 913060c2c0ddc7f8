"""Counted memory against a GPU's allocator; workspaces of kernels are small in these models."""

from functools import partial

import pytest
import torch
from counted import memory_of_ranks

from repro.costs.stage_memory import Messages
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
    (stage,) = memory_of_ranks(
        model.layers, model.loss, data, config, optimizer, Messages(0, 0), "cuda"
    )
    assert stage.total == pytest.approx(measured, rel=0.05)
