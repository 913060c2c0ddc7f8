"""A small model with what pipelines get wrong: batch norm, and a tuple at a boundary."""

from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional

from repro.models.model import Model


class _Fork(nn.Module):
    """[N, C, H, W] -> two tensors of the same shape."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, padding=1)
        self.norm = nn.BatchNorm2d(channels)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x, functional.relu(self.norm(self.conv(x)))


class _Join(nn.Module):
    """Two tensors [N, C, H, W] -> [N, C]."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(channels)

    def forward(self, pair: tuple[Tensor, Tensor]) -> Tensor:
        return self.norm(pair[0] + pair[1]).mean((2, 3))


def probe(channels: int = 8, classes: int = 5) -> Model:
    """Four layers on made-up images [N, 3, 8, 8]."""
    return Model(
        name="probe",
        layers=[
            partial(nn.Conv2d, 3, channels, 3, padding=1),
            partial(_Fork, channels),
            partial(_Join, channels),
            partial(nn.Linear, channels, classes),
        ],
        batch=partial(_batch, classes),
        loss=functional.cross_entropy,
        unit="images/s",
        labels={"data": "made up"},
    )


def _batch(classes: int, N: int, seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    images = torch.randn(N, 3, 8, 8, generator=generator)
    return images, torch.randint(classes, (N,), generator=generator)
