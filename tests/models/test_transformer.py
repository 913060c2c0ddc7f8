import pytest
import torch
from torch import nn

from repro.models import build

SMALL = {"L": 2, "d": 32, "H": 48, "heads": 4, "V": 64, "T": 12}


def made(**changes) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        *[factory() for factory in build("transformer", **{**SMALL, **changes}).layers]
    )


def parameters(**sizes: int) -> int:
    with torch.device("meta"):
        return sum(
            p.numel()
            for factory in build("transformer", **sizes).layers
            for p in factory().parameters()
        )


@pytest.mark.parametrize("L", [1, 3, 13])
def test_parameters_at_the_papers_widths(L):
    assert parameters(L=L) == 131_104_000 + 50_358_272 * L


@pytest.mark.parametrize("attention", ["plain", "fused"])
def test_future_tokens_do_not_change_past_logits(attention):
    model = made(attention=attention).eval()
    tokens = torch.randint(64, (2, 12))
    changed = tokens.clone()
    changed[:, 7:] = (changed[:, 7:] + 1) % 64
    before, after = model(tokens), model(changed)
    torch.testing.assert_close(before[:, :7], after[:, :7])
    assert not torch.isclose(before[:, 7:], after[:, 7:]).all(-1).any()


def test_plain_and_fused_attention_agree_with_their_gradients_and_dropout():
    tokens = torch.randint(64, (2, 12))
    results = []
    for attention in ("plain", "fused"):
        model = made(attention=attention)
        torch.manual_seed(1)
        logits = model(tokens)
        logits.square().mean().backward()
        results.append([logits, *(p.grad for p in model.parameters())])
    for plain, fused in zip(*results, strict=True):
        torch.testing.assert_close(plain, fused)
