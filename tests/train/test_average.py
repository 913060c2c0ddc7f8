import torch
from torch import nn

from repro.train.average import Average


class Growing(nn.Module):
    """A layer whose forward sets a buffer, and later one of another shape."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(2))
        self.register_buffer("seen", None)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen = x.detach()
        return x * self.weight


def test_buffers_that_a_forward_sets_or_resizes_are_averaged_from_then_on():
    layer = Growing()
    average = Average(layer, 0.5)
    for step, size in enumerate((2, 1, 1), start=1):
        layer(torch.full((size,), float(step)))
        average.update(step)
    layer(torch.zeros(2))  # has no average yet
    with average.in_place_of_weights():
        assert torch.equal(layer.seen, torch.zeros(2))
    layer(torch.full((1,), 3.0))
    with average.in_place_of_weights():
        assert 2 < layer.seen.item() < 3  # pyright: ignore[reportOptionalMemberAccess]
