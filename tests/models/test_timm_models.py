from typing import Any

import pytest
import torch
from torch import Tensor, nn

from repro.models import build


def made(variant: str, **args: int) -> list[Any]:
    torch.manual_seed(0)
    return [factory() for factory in build(f"timm:{variant}", **args).layers]


def original(variant: str, **args: Any) -> nn.Module:
    import timm

    torch.manual_seed(1)
    return timm.create_model(variant, **args)


def joined(layers: list[Any]) -> dict[str, Tensor]:
    return {key: tensor for layer in layers for key, tensor in layer.state_dict().items()}


def test_outputs_and_gradients_are_those_of_the_unsplit_model():
    model = build("timm:resnet50", image=33, num_classes=10)
    whole = original("resnet50", num_classes=10)
    layers = made("resnet50", image=33, num_classes=10)
    state = whole.state_dict()
    assert joined(layers).keys() == state.keys()
    for layer in layers:
        layer.load_state_dict({key: state[key] for key in layer.state_dict()})

    inputs, targets = model.batch(2, 0)
    value, expected = nn.Sequential(*layers)(inputs), whole(inputs)
    assert torch.equal(value, expected)
    model.loss(value, targets).backward()
    model.loss(expected, targets).backward()
    gradients = {key: p.grad for layer in layers for key, p in layer.named_parameters()}
    for key, parameter in whole.named_parameters():
        torch.testing.assert_close(gradients[key], parameter.grad, rtol=0, atol=0)
    for key, tensor in whole.state_dict().items():  # batch norm's statistics too
        assert torch.equal(joined(layers)[key], tensor), key


def test_initial_weights_are_drawn_as_timm_draws_them():
    ours, theirs = joined(made("resnet18")), original("resnet18").state_dict()
    for key, tensor in theirs.items():
        assert ours[key].shape == tensor.shape
        if tensor.is_floating_point() and tensor.numel() >= 2000:
            torch.testing.assert_close(ours[key].std(), tensor.std(), rtol=0.15, atol=0.0)
        elif tensor.numel() > 1 and tensor.std() == 0:
            assert torch.equal(ours[key], tensor), key


@pytest.mark.parametrize(
    ("variant", "words"),
    [
        ("resnet5", "did you mean 'timm:resnet"),
        ("convnext_tiny", "a ConvNeXt that is not cut into layers; .*import:package"),
        ("ecaresnet50d_pruned", "a ResNet that is not cut into layers; .*unpruned"),
        # A name reaches neither a hub nor a folder: their files may hold code.
        ("hf-hub:timm/resnet18.a1_in1k", "timm has no such model"),
        ("local-dir:/tmp", "timm has no such model"),
        ("resnet18.nonsense", "Invalid pretrained tag"),
    ],
)
def test_a_name_that_timm_does_not_list_is_one_line(variant, words, monkeypatch):
    loaded = []
    for name in ("load_model_config_from_hf", "load_model_config_from_path"):
        monkeypatch.setattr(f"timm.models._factory.{name}", lambda *args, **_: loaded.append(args))
    with pytest.raises(ValueError, match=f"^model='timm:{variant}': .*{words}.*$"):
        build(f"timm:{variant}")
    assert loaded == []
