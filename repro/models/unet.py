"""torchgpipe's U-Net (B, C). The cost model is compared with its published steps.

Each operator is a layer, so there are 44 B + 21 layers, as in torchgpipe's benchmark. A skip is
sent with the value, through all stages between its ends; torchgpipe sends it directly.
"""

from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional

from repro.data import images
from repro.models.arguments import Count, Probability
from repro.models.model import Model

DEPTH = 5  # how often an image is halved
Value = Tensor | tuple[Tensor, ...]  # x, or x and the skips, the newest first
Layers = Iterator[Callable[[], nn.Module]]


class First(nn.Module):
    """An operator on x; skips are passed on."""

    def __init__(self, operator: Callable[..., nn.Module], *args: int, **options: float) -> None:
        super().__init__()
        self.operator = operator(*args, **options)

    def forward(self, value: Value) -> Value:
        x, *skips = value if isinstance(value, tuple) else (value,)
        return (self.operator(x), *skips) if skips else self.operator(x)


class Keep(nn.Module):
    def forward(self, value: Value) -> Value:
        x, *skips = value if isinstance(value, tuple) else (value,)
        return (x, x, *skips)


class Join(nn.Module):
    def forward(self, value: tuple[Tensor, ...]) -> Value:
        x, newest, *skips = value
        joined = torch.cat((x, newest), dim=1)
        return (joined, *skips) if skips else joined


def unet(B: Count = 5, C: Count = 64, image: Count = 192, dropout: Probability = 0.1) -> Model:
    """U-Net of B convolutions in each block, the outermost with C channels.

    It separates the digits from their background; torchgpipe's targets are ones.
    """
    if image % 2 ** (DEPTH + 1):
        raise ValueError(f"image={image}: must be a multiple of {2 ** (DEPTH + 1)}; try image=192")
    loss = functional.binary_cross_entropy_with_logits
    return Model("unet", [*_layers(B, C, dropout)], partial(_batch, image), loss, "images/s")


def _layers(B: int, C: int, dropout: float) -> Layers:
    def block(*channels: int) -> Layers:
        for before, after in pairwise(channels):
            yield partial(First, nn.Conv2d, before, after, 3, padding=1, bias=False)
            yield partial(First, nn.Dropout2d, p=dropout)
            yield partial(First, nn.InstanceNorm2d, after)
            yield partial(First, nn.LeakyReLU)

    widths = [C * 2**level for level in range(DEPTH)]
    for before, width in pairwise([3, *widths]):
        yield from block(before, *[width] * B)
        yield Keep
        yield partial(First, nn.MaxPool2d, 2)
    yield from block(widths[-1], *[2 * widths[-1]] * (B - 1), widths[-1])
    for width in reversed(widths):
        yield partial(First, nn.Upsample, scale_factor=2)
        yield Join
        yield from block(2 * width, *[width // 2] * B)
    yield partial(First, nn.Conv2d, C // 2, 1, 1, bias=False)


def _batch(image: int, N: int, seed: int) -> tuple[Tensor, Tensor]:
    inputs, _ = images.batch(image, 10, N, seed)
    return inputs, (inputs[:, :1] > 0).float()
