"""The paper on one page trains with the same bits as the library."""

import copy
import os
import subprocess
import sys
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from repro.gpipe import Pipeline, launch
from repro.gpipe.minimal import GPipe

MSE = nn.functional.mse_loss


def models() -> list[tuple[nn.Sequential, torch.Tensor, torch.Tensor]]:
    """Models of layers without weights, and of encoder layers; with a mini-batch of each."""
    torch.manual_seed(3)
    plain = nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 9), nn.Tanh(), nn.Linear(9, 2))
    encoder = [nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True) for _ in range(3)]
    return [
        (plain, torch.randn(11, 6), torch.randn(11, 2)),
        (nn.Sequential(*encoder), torch.randn(11, 5, 8), torch.randn(11, 5, 8)),
    ]


def train(pipe: Any, stage: nn.Module, inputs: Any, targets: Any) -> list[Any]:
    """Losses and weights of three steps."""
    optimizer = torch.optim.SGD([{"params": [*stage.parameters()]}], lr=0.1, momentum=0.9)
    losses = []
    for _ in range(3):
        result = pipe.train_step(inputs, targets, MSE, optimizer)
        losses.append(result if isinstance(result, float) else result.loss)
    return [losses, *stage.state_dict().values()]


def both(M: int) -> list[tuple[Any, Any]]:
    trained = []
    for model, inputs, targets in models():
        mine = GPipe([*copy.deepcopy(model)], M)
        pipe = Pipeline(model, dist.get_world_size(), M, balance="uniform", device="cpu")
        small = train(mine, mine.stage, inputs, targets)
        trained.append((small, train(pipe, pipe.module, inputs, targets)))
        pipe.close()
    return trained


@pytest.mark.parametrize(("K", "M"), [(1, 3), (2, 4), (3, 1), (3, 4)])
def test_it_has_the_bits_of_the_library(K: int, M: int):
    for trained in launch(both, M, stages=K):
        for (losses, *weights), (expected, *others) in trained:
            assert losses == expected
            assert all(torch.equal(a, b) for a, b in zip(weights, others, strict=True))


def test_its_example_learns():
    world = {"MASTER_ADDR": "localhost", "MASTER_PORT": "0", "RANK": "0", "WORLD_SIZE": "1"}
    command = [sys.executable, "-m", "repro.gpipe.minimal"]
    out = subprocess.check_output(command, text=True, timeout=50, env={**os.environ, **world})
    losses = [float(line.rpartition(" ")[2]) for line in out.splitlines()]
    assert len(losses) == 10
    assert losses[-1] < losses[0]
