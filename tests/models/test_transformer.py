import torch
from pipelined import whole
from torch.nn import functional

from repro.models.attention import attend

SMALL = {"L": 2, "d": 32, "H": 48, "heads": 4, "V": 64, "T": 12}


def test_future_tokens_do_not_change_past_logits():
    model = whole("transformer", **SMALL).eval()
    tokens = torch.randint(64, (2, 12))
    changed = tokens.clone()
    changed[:, 7:] = (changed[:, 7:] + 1) % 64
    before, after = model(tokens), model(changed)
    torch.testing.assert_close(before[:, :7], after[:, :7])
    assert not torch.isclose(before[:, 7:], after[:, 7:]).all(-1).any()


def test_attention_is_torchs_own():
    q, k, v = torch.randn(3, 2, 4, 12, 8)
    hidden = torch.rand(2, 1, 12, 12) < 0.5
    hidden[..., 0] = False
    expected = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    torch.testing.assert_close(attend(q, k, v), expected)
    expected = functional.scaled_dot_product_attention(q, k, v, ~hidden)
    torch.testing.assert_close(attend(q, k, v, hidden), expected)
