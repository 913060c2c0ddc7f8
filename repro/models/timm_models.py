"""timm's ResNets as sequences of layers: `timm:resnet50`.

The model is built once on the meta device, which takes 0.1 s and no memory. A layer is a block or
an end of the model. Its factory copies the layer with memory of its own, and gives it timm's
initial weights. So a rank never has more than its own layers in memory. The keys of the state dict
are timm's: together the layers have those of the whole model.
"""

import re
from copy import deepcopy
from functools import partial
from typing import Annotated, Any

import torch
from annotated_types import Interval
from torch import Tensor, nn

from repro.io.untrusted import did_you_mean
from repro.models.arguments import Classes
from repro.models.model import Model, of_images

SUPPORTED = "ResNet (resnet*, resnext*, seresnet*, wide_resnet*)"


def timm_model(
    variant: str,
    /,
    image: Annotated[int, Interval(ge=32, le=2**14)] | None = None,
    num_classes: Classes = 1000,
) -> Model:
    """A timm model of one of the `SUPPORTED` families with random weights.

    The default size of images is that of the variant.
    """
    import timm
    from timm.models.resnet import ResNet

    wrong = f"model='timm:{variant}'"
    if not is_timm_model(variant):
        hint = did_you_mean(f"timm:{variant}", [f"timm:{name}" for name in timm.list_models()])
        raise ValueError(f"{wrong}: timm has no such model; supported are {SUPPORTED}{hint}")
    with torch.device("meta"):
        try:
            whole: Any = timm.create_model(variant, num_classes=num_classes)
        except RuntimeError as error:  # timm has no such tag of this model
            raise ValueError(f"{wrong}: {error}") from None
    kind = type(whole)
    # timm draws the weights of a pruned layer after `init_weights`.
    if kind is not ResNet or "_pruned" in variant:
        raise ValueError(
            f"{wrong}: a {kind.__name__} that is not cut into layers; supported are {SUPPORTED}, "
            "unpruned; of any other model write a function that returns its layers, "
            "import:package.module:function"
        )
    stages = ("layer1", "layer2", "layer3", "layer4")
    blocks = [f"{stage}.{n}" for stage in stages for n in range(len(whole.get_submodule(stage)))]
    parts = [("conv1", "bn1", "act1", "maxpool"), *[(block,) for block in blocks]]
    layers = [partial(_layer, whole, names) for names in (*parts, ("global_pool", "fc"))]
    size = image or whole.default_cfg["input_size"][-1]
    return of_images(f"timm:{variant}", layers, size, num_classes)


def is_timm_model(variant: str) -> bool:
    """Whether timm's registry has the model; timm itself would also load from hubs and folders."""
    import timm

    return re.fullmatch(r"[\w.-]+", variant) is not None and timm.is_model(variant)


def _layer(whole: Any, names: tuple[str, ...]) -> nn.Module:
    """Modules of the model one after the other, in memory and with timm's initial weights."""
    layer = nn.Sequential()
    for name in names:
        path, _, last = name.rpartition(".")
        parent = layer
        if path:
            parent = nn.Sequential()
            layer.add_module(path, parent)
        parent.add_module(last, _in_memory(whole.get_submodule(name)))
    for module in layer.modules():
        if module._parameters or module._buffers:
            module.reset_parameters()  # pyright: ignore[reportCallIssue]
    type(whole).init_weights(layer)
    return layer


def _in_memory(module: nn.Module) -> nn.Module:
    """A copy of a module, with uninitialised tensors in place of those without memory."""

    # `empty` uses the default device, and makes fake tensors in a fake mode.
    def empty(tensor: Tensor) -> Tensor:
        return torch.empty(tensor.shape, dtype=tensor.dtype)

    copies = {id(p): nn.Parameter(empty(p), p.requires_grad) for p in module.parameters()}
    copies |= {id(b): empty(b) for b in module.buffers()}
    return deepcopy(module, copies)  # which copies nothing that is among these already
