import pytest
import torch
from pipelined import whole

SMALL = {"L": 2, "d": 32, "H": 48, "heads": 4, "V": 64, "T": 12}


@pytest.mark.parametrize("attention", ["plain", "fused"])
def test_future_tokens_do_not_change_past_logits(attention):
    model = whole("transformer", **SMALL, attention=attention).eval()
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
        model = whole("transformer", **SMALL, attention=attention)
        torch.manual_seed(1)
        logits = model(tokens)
        logits.square().mean().backward()
        results.append([logits, *(p.grad for p in model.parameters())])
    for plain, fused in zip(*results, strict=True):
        torch.testing.assert_close(plain, fused)
