"""AmoebaNet-B and -D as a sequence of layers: GPipe's image models (Tables 1 to 5).

The definition is that of the authors' TensorFlow code: a stem of 32 filters, stem reduction cells
of D/4 and D/2 filters, 1001 classes, and no auxiliary head, as by default there.

Parameters of AmoebaNet-D (L, D): (18, 208) 81,140,766; (18, 416) 317,548,353; (18, 544)
540,204,945; (36, 544) 1,053,302,481. They are within 1.1 % of the 82M, 318M, 542M and 1.05B of
Table 1. AmoebaNet-B (18, 512) has 557.3M, printed as 557M.

The model has L + 6 layers: stem, two reduction cells, L/3 normal cells, reduction cell, L/3,
reduction cell, L/3, head. The value between two layers is (output, skip), where the skip is the
input of the layer that made the output.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Annotated, Any, Literal

import torch
from annotated_types import Interval, MultipleOf
from torch import Tensor, nn
from torch.nn import functional

from repro.models import genotypes
from repro.models.arguments import Classes, Layers, Probability
from repro.models.genotypes import CELLS
from repro.models.model import Model, of_images
from repro.models.operations import BN_EPSILON, OPERATIONS, FactorizedReduction, conv

STEM_FILTERS = 32

Boundary = tuple[Tensor, Tensor]  # output and skip


class Stem(nn.Module):
    """3x3 convolution, stride 2, no padding: [N, 3, H, W] -> [N, 32, (H - 1) // 2, ...], twice."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, STEM_FILTERS, 3, stride=2, bias=False)
        self.norm = nn.BatchNorm2d(STEM_FILTERS, BN_EPSILON)

    def forward(self, image: Tensor) -> Boundary:
        output = self.norm(self.conv(image))
        return output, output  # the first cell has no earlier cell, so its skip is its input


class Cell(nn.Module):
    """One cell: (x [N, C, H, W], skip) -> (output, x).

    `skip_stride` is 2 if the skip is twice as high and wide as x, that is, after a reduction cell.
    It is None in the first cell, whose skip is its own input, unchanged as in the authors' code.
    """

    def __init__(
        self,
        cell: genotypes.Cell,
        channels: tuple[int, int],  # of x and of the skip
        filters: int,  # of each inner state
        stride: int,  # 2 in a reduction cell
        skip_stride: int | None,
    ) -> None:
        super().__init__()
        self.cell = cell
        self.input = conv(channels[0], filters)
        self.skip = _match(channels[1], filters, skip_stride)
        widths = (filters, channels[1] if skip_stride is None else filters)

        def operation(name: str, state: int) -> nn.Module:
            # Only operations on the cell's two inputs have a stride.
            if state < 2:
                return OPERATIONS[name](widths[state], filters, stride)
            return OPERATIONS[name](filters, filters, 1)

        self.left = nn.ModuleList(operation(p.left, p.left_state) for p in cell.pairs)
        self.right = nn.ModuleList(operation(p.right, p.right_state) for p in cell.pairs)

    def forward(self, value: Boundary) -> Boundary:
        x, skip = value
        states = [self.input(x), self.skip(skip)]
        for pair, left, right in zip(self.cell.pairs, self.left, self.right, strict=True):
            states.append(left(states[pair.left_state]) + right(states[pair.right_state]))
        return torch.cat([states[s] for s in self.cell.concat], dim=1), x


class Head(nn.Module):
    """ReLU, global average pool, dropout, linear: (x [N, C, H, W], skip) -> logits [N, classes]."""

    def __init__(self, channels: int, classes: int, dropout: float) -> None:
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        self.classifier = nn.Linear(channels, classes)

    def forward(self, value: Boundary) -> Tensor:
        return self.classifier(self.dropout(functional.relu(value[0]).mean((2, 3))))


def amoebanet(
    variant: Literal["b", "d"],
    L: Annotated[Layers, MultipleOf(3)] = 18,
    D: Annotated[int, Interval(ge=8), MultipleOf(4)] = 256,
    image: Annotated[int, Interval(ge=16)] = 224,
    num_classes: Classes = 1001,
    dropout: Probability = 0.5,
    bn_momentum: Annotated[float, Interval(gt=0, le=1)] = 3e-4,
) -> Model:
    """AmoebaNet-B or -D (L, D): L normal cells, and D filters in the first stack.

    The default sizes are those of Table 2.

    Args:
        image: height and width of the images. Up to 32 the last cells get a single pixel, so batch
            norm needs micro-batches of at least two examples.
        num_classes: 1001 is ImageNet's 1000 and a background class.
        bn_momentum: of batch norm's running statistics. The authors' 0.0003 (TensorFlow's decay
            0.9997) takes thousands of steps to forget the initial values.
    """
    # A factory for each layer, in order, with channels computed from cell to cell.
    made = partial(_initialised, bn_momentum)
    layers: list[Callable[[], nn.Module]] = [partial(made, Stem)]
    channels, skip_stride = (STEM_FILTERS, STEM_FILTERS), None
    for filters, reduces in _plan(L, D):
        cell = CELLS[variant, reduces]
        stride = 2 if reduces else 1
        layers.append(partial(made, Cell, cell, channels, filters, stride, skip_stride))
        skip_stride, channels = stride, (len(cell.concat) * filters, channels[0])
    layers.append(partial(made, Head, channels[0], num_classes, dropout))
    return of_images(f"amoebanet-{variant}", layers, image, num_classes)


def _plan(L: int, D: int) -> Iterator[tuple[int, bool]]:
    """For each cell in order: filters, and whether it is a reduction cell."""
    yield D // 4, True
    yield D // 2, True
    for stack in range(3):
        if stack > 0:
            yield D * 2**stack, True
        for _ in range(L // 3):
            yield D * 2**stack, False


def _match(channels: int, filters: int, stride: int | None) -> nn.Module:
    """What gives a skip F channels and the size of the cell's input; `stride` is `skip_stride`."""
    if stride == 2:
        return FactorizedReduction(channels, filters)
    if stride is None or channels == filters:
        return nn.Identity()
    return conv(channels, filters)


def _initialised(momentum: float, kind: Callable[..., nn.Module], *arguments: Any) -> nn.Module:
    """A layer with initial weights, and batch norm's momentum.

    Convolutions are initialised as in the authors' code: variance scaling by fan-out. The authors
    do the same for classifiers. With 10 classes instead of 1001 the first loss would be 14, and
    guessing gives 2.3. So classifiers are scaled by fan-in here.
    """
    layer = kind(*arguments)
    for module in layer.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out")
        elif isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=module.in_features**-0.5)
            nn.init.zeros_(module.bias)
        elif isinstance(module, nn.BatchNorm2d):
            module.momentum = momentum
    return layer
