"""What a GPU times besides the paper's models: a ConvNeXt, and any model in bfloat16."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from torch import Tensor, nn

from repro.gpipe.core.layers import Layer
from repro.gpipe.tree import map_leaves
from repro.models import Model, build


def bfloat16(of: str, given: dict[str, Any]) -> Model:
    """The model `of` with arguments: its weights, activations and gradients are bfloat16."""
    model = build(of, **given)

    def batch(N: int, seed: int) -> tuple[Any, Any]:
        inputs, targets = model.batch(N, seed)
        return map_leaves(Tensor, _rounded, inputs), targets

    layers = [partial(_converted, layer) for layer in model.layers]
    return replace(model, layers=layers, batch=batch)


def _rounded(tensor: Tensor) -> Tensor:
    return tensor.bfloat16() if tensor.is_floating_point() else tensor


def _converted(layer: Layer) -> nn.Module:
    made = layer if isinstance(layer, nn.Module) else layer()
    return made.bfloat16()


def convnext(image: int, variant: str) -> Sequence[nn.Module]:
    """The layers of one of timm's ConvNeXts for images of ten classes."""
    import timm

    whole: Any = timm.create_model(variant, num_classes=10)
    blocks = [part for stage in whole.stages for part in (stage.downsample, *stage.blocks)]
    return [whole.stem, *blocks, whole.norm_pre, whole.head]
