"""Eight plain encoder layers: nothing that one library could know better than another."""

from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional

from repro.models.model import Model


def encoder(L: int = 8, d: int = 128, T: int = 32) -> Model:
    """L of torch's own encoder layers on made-up sequences [N, T, d], without dropout."""
    layer = partial(nn.TransformerEncoderLayer, d, 4, 4 * d, dropout=0.0, batch_first=True)
    return Model(
        name="encoder",
        layers=[layer] * L,
        batch=partial(_batch, (T, d)),
        loss=functional.mse_loss,
        unit="sequences/s",
        labels={"data": "made up"},
    )


def _batch(shape: tuple[int, int], N: int, seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    inputs, targets = torch.randn(2, N, *shape, generator=generator)
    return inputs, targets
