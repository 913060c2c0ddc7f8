"""timm's image models as sequences of layers: `timm:resnet50`, `timm:vit_base_patch16_224`.

The model is built once on the meta device, which takes 0.1 s and no memory. A layer is a block or
an end of the model: a copy of the whole that keeps only the modules that the layer runs. Its
factory allocates the parameters and gives them timm's own initial weights. So a rank never has more
than its own layers in memory. The keys of the state dict are timm's: together the layers have those
of the whole model.
"""

import copy
import re
from collections.abc import Callable, Iterator
from functools import partial
from typing import Annotated, Any, NamedTuple

import torch
from annotated_types import Interval
from torch import Tensor, nn

from repro.io.untrusted import did_you_mean
from repro.models.arguments import Classes
from repro.models.model import Model, of_images

SUPPORTED = (
    "ResNet (resnet*, resnext*, seresnet*, wide_resnet*) and VisionTransformer (vit_*, deit_* "
    "undistilled)"
)


class Part(NamedTuple):
    """One layer."""

    keeps: tuple[str, ...]  # names of its modules and parameters
    run: Callable[[Any, Tensor], Tensor]  # its forward


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
    from timm.models.vision_transformer import VisionTransformer

    wrong = f"model='timm:{variant}'"
    if not is_timm_model(variant):
        hint = did_you_mean(f"timm:{variant}", [f"timm:{name}" for name in timm.list_models()])
        raise ValueError(f"{wrong}: timm has no such model; supported are {SUPPORTED}{hint}")
    with torch.device("meta"):
        try:
            whole: Any = timm.create_model(variant, num_classes=num_classes)
        except RuntimeError as error:  # timm has no such tag of this model
            raise ValueError(f"{wrong}: {error}") from None
        if image is not None and isinstance(whole, VisionTransformer):
            # Its position embedding depends on the size of the images.
            whole = timm.create_model(variant, num_classes=num_classes, img_size=image)
    split = {ResNet: _resnet, VisionTransformer: _vision_transformer}.get(type(whole))
    # Every module below the whole model must be able to initialise its own tensors.
    owners = [m for m in whole.modules() if m is not whole and (m._parameters or m._buffers)]
    unable = [type(m).__name__ for m in owners if not hasattr(m, "reset_parameters")]
    unable += ["pruned layer"] * ("_pruned" in variant)  # timm draws it after `init_weights`
    kind, why = type(whole).__name__, "timm does not say in which order its parts run"
    if split is not None:
        why = f"its {[*unable, kind][0]} cannot initialise its own weights, as a stage must"
    if split is None or unable or getattr(whole, "fix_init", False):
        raise ValueError(
            f"{wrong}: a {kind} that cannot be cut: {why}; supported are {SUPPORTED}; of any other "
            "model write a function that returns its layers, import:package.module:function"
        )
    size = image or whole.default_cfg["input_size"][-1]
    layers = [partial(_layer, whole, part) for part in split(whole)]
    return of_images(f"timm:{variant}", layers, size, num_classes)


def is_timm_model(variant: str) -> bool:
    """Whether timm's registry has the model; timm itself would also load from hubs and folders."""
    import timm

    return re.fullmatch(r"[\w.-]+", variant) is not None and timm.is_model(variant)


def _resnet(whole: Any) -> Iterator[Part]:
    stem = ("conv1", "bn1", "act1", "maxpool")
    yield Part(stem, lambda m, x: m.maxpool(m.act1(m.bn1(m.conv1(x)))))
    for stage in ("layer1", "layer2", "layer3", "layer4"):
        yield from _blocks(stage, len(whole.get_submodule(stage)))
    yield Part(("global_pool", "fc"), lambda m, x: m.forward_head(x))


def _vision_transformer(whole: Any) -> Iterator[Part]:
    embedding = ("patch_embed", "cls_token", "reg_token", "pos_embed", "pos_drop", "patch_drop")
    embedding = (*embedding, "norm_pre")
    # _pos_embed is timm's private name for adding positions and tokens; a test compares outputs.
    yield Part(embedding, lambda m, x: m.norm_pre(m.patch_drop(m._pos_embed(m.patch_embed(x)))))
    yield from _blocks("blocks", len(whole.blocks))
    yield Part(
        ("norm", "attn_pool", "fc_norm", "head_drop", "head"),
        lambda m, x: m.forward_head(m.norm(x)),
    )


def _blocks(container: str, count: int) -> Iterator[Part]:
    for n in range(count):
        name = f"{container}.{n}"
        yield Part((name,), lambda m, x, name=name: m.get_submodule(name)(x))


def _layer(whole: nn.Module, part: Part) -> nn.Module:
    """The model stripped to one part, with timm's initial weights and the part's forward."""
    layer: Any = _strip(whole, part.keeps, "")
    layer.__class__ = type(f"{type(whole).__name__}Part", (type(whole),), {"forward": part.run})
    for module in layer.modules():
        if module is not layer and hasattr(module, "reset_parameters"):
            module.reset_parameters()
    layer.init_weights()
    return layer


def _strip(module: nn.Module, keeps: tuple[str, ...], path: str) -> nn.Module:
    """A copy of `module`, which is at `path`, with only `keeps` and with uninitialised tensors."""

    def kept(name: str) -> bool:
        full = f"{path}{name}."
        return any(full.startswith(f"{k}.") or f"{k}.".startswith(full) for k in keeps)

    twin = copy.copy(module)
    # `empty` uses the default device, and makes fake tensors in a fake mode.
    twin._parameters = {
        n: nn.Parameter(torch.empty(p.shape, dtype=p.dtype), p.requires_grad)
        if p is not None and kept(n)
        else None
        for n, p in module._parameters.items()
    }
    twin._buffers = {
        n: None if b is None else torch.empty(b.shape, dtype=b.dtype)
        for n, b in module._buffers.items()
    }
    twin._modules = {
        n: None if child is None else _strip(child, keeps, f"{path}{n}.")
        for n, child in module._modules.items()
        if kept(n)
    }
    return twin
