"""Models that `repro doctor --check` trains, for `import:repro.cli.doctor_models:NAME`.

Each has K layers, one per stage.
"""

import time
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from repro.models import Model

M = 4  # a power of two: dividing by it is exact in every number format
KINDS = 10  # of tensors, see `expected_tensors`
_WITH_GAPS = "every second number"


def patterns(K: int) -> Model:
    """Known tensors of many kinds, passed from stage to stage.

    A layer raises a ValueError when a tensor or a gradient does not arrive as it was sent.
    """
    layers = [partial(Checking, first=stage == 0) for stage in range(K)]
    return Model("patterns", layers, _zeros, pattern_loss, "examples/s")


def blocks(K: int) -> Model:
    """Layers with random numbers and running statistics."""
    return Model("blocks", [_block] * K, _noise, functional.mse_loss, "examples/s")


def fails(K: int) -> Model:
    """The last layer raises at its second micro-batch."""
    layers = [*[partial(nn.Linear, 16, 16)] * (K - 1), _Failing]
    return Model("fails", layers, _noise, functional.mse_loss, "examples/s")


def expected_tensors(device: torch.device | str = "cpu") -> dict[str, Tensor]:
    """Tensors of several number formats, sizes and memory layouts, the same on every stage.

    They hold whole numbers below 128, which every format represents exactly, also divided by `M`.
    """
    generator = torch.Generator().manual_seed(0)

    def whole(*shape: int) -> Tensor:
        return torch.randint(-127, 128, shape, generator=generator).to(device)

    return {
        "one number": whole(1).float(),
        "float32": whole(1000, 33).float(),
        "float16": whole(64, 3).half(),
        "bfloat16": whole(64, 3).bfloat16(),
        "int64": whole(64, 3),
        "bool": whole(64, 3) > 0,
        "1 MiB": whole(512, 512).float(),
        "transposed": whole(32, 7).float().t(),
        "channels last": whole(2, 3, 5, 4).float().contiguous(memory_format=torch.channels_last),
        _WITH_GAPS: _with_gaps(whole(16, 5).float()),
    }


class Checking(nn.Module):
    """Compares each tensor that arrives, and each gradient, with what was sent; passes them on.

    The first layer makes the tensors, whatever its input is.
    """

    def __init__(self, *, first: bool = False) -> None:
        super().__init__()
        self.first = first
        self.zero = nn.Parameter(torch.zeros(1))  # so that gradients are asked for

    def forward(self, value: Any) -> dict[str, Tensor]:
        expected = expected_tensors(self.zero.device)
        arrived = expected if self.first else value
        return {kind: self._checked(kind, arrived[kind], expected[kind]) for kind in expected}

    def _checked(self, kind: str, arrived: Tensor, expected: Tensor) -> Tensor:
        same_layout = (arrived.dtype, arrived.stride()) == (expected.dtype, expected.stride())
        if not same_layout or not torch.equal(arrived, expected):
            raise ValueError(f"arrived changed: {kind}")
        if not arrived.is_floating_point():
            return arrived
        # Times 0, so that no optimizer moves the parameter.
        passed = arrived + (0 * self.zero).to(arrived.dtype)
        if passed.requires_grad:
            passed.register_hook(partial(_check_gradient, kind, expected / M))
        return _with_gaps(passed) if kind == _WITH_GAPS else passed


def pattern_loss(outputs: dict[str, Tensor], _targets: object) -> Tensor:
    """A loss whose gradient with respect to each tensor is that tensor."""
    expected = expected_tensors(outputs["float32"].device)
    products = [
        (outputs[kind].float() * tensor.float()).sum()
        for kind, tensor in expected.items()
        if tensor.is_floating_point()
    ]
    return torch.stack(products).sum()


def _check_gradient(kind: str, expected: Tensor, gradient: Tensor) -> None:
    if not torch.equal(gradient, expected):
        raise ValueError(f"arrived changed: gradient of {kind}")


def _with_gaps(tensor: Tensor) -> Tensor:
    """The same numbers as a view of memory twice as large."""
    return torch.stack((tensor, tensor), -1)[..., 0]


class _Failing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(16, 16)
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        if self.calls > 1:
            raise RuntimeError(f"injected failure at {time.time():.3f}")
        return self.linear(x)


def _block() -> nn.Module:
    # No bias: before a batch norm its gradient is rounding alone.
    return nn.Sequential(
        nn.Linear(16, 16, bias=False), nn.BatchNorm1d(16), nn.Dropout(0.2), nn.Tanh()
    )


def _zeros(N: int, _seed: int) -> tuple[Tensor, Tensor]:
    return torch.zeros(N, 1), torch.zeros(N, 1)


def _noise(N: int, seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(N, 16, generator=generator), torch.randn(N, 16, generator=generator)
