import pytest
import torch
from torch import nn

from repro.costs.counter import Counter
from repro.costs.fake import mini_batch
from repro.costs.stage_memory import micro_batch
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


@pytest.mark.parametrize(
    ("attention", "more_tensors"),
    [
        # The mask of dropout, and the weights that it leaves.
        ("plain", 2),
        # On a CPU there is no fused kernel with dropout: it keeps the weights too.
        ("fused", 3),
    ],
)
def test_dropout_of_attention_keeps_as_much_as_is_counted_by_hand(attention, more_tensors):
    N, heads, T = 2, SMALL["heads"], SMALL["T"]
    saved = []
    for p in (0.0, 0.1):
        model = build("transformer", **SMALL, attention=attention, attention_dropout=p)
        inputs = mini_batch(model.batch(1, 0)[0], N)
        block = Counter(model.layers, model.loss).layer(1, micro_batch(inputs, N))
        kept = dict(block.forward)
        for number in block.ended.union(n for n, size in block.forward if size < 0):
            kept.pop(number, None)
        saved.append(sum(kept.values()))
    expected = more_tensors * 4 * N * heads * T * T
    if attention == "fused":
        expected -= 4 * N * heads * T  # which the fused kernel keeps in place of the weights
    assert saved[1] - saved[0] == expected
