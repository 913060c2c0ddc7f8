import pytest
import torch
from pipelined import whole

from repro.data.tokens import PAD
from repro.models.translation import DecoderBlock, EncoderBlock, batch

SMALL = {"L": 2, "d": 16, "H": 24, "A": 2, "head_dim": 12, "V": 32, "S": 12, "T": 13}


@pytest.mark.parametrize(
    ("L", "H", "A", "millions"),
    [(6, 8192, 16, 276.8), (12, 16384, 32, 1107.3), (64, 16384, 32, 5905.6)],
)
def test_weight_matrices_of_the_papers_layers(L, H, A, millions):
    with torch.device("meta"):
        layers = whole("translation", L=L, H=H, A=A)
    blocks = [layer for layer in layers if isinstance(layer, EncoderBlock | DecoderBlock)]
    assert len(blocks) == 2 * L
    matrices = sum(p.numel() for block in blocks for p in block.parameters() if p.ndim == 2)
    assert matrices == L * (12 * 1024 * 64 * A + 4 * 1024 * H)
    assert round(matrices / 1e6, 1) == millions
    with_embeddings = sum(p.numel() for p in layers.parameters() if p.ndim == 2)
    assert with_embeddings - matrices == 3 * 64000 * 1024


def test_padding_of_the_source_changes_nothing():
    model = whole("translation", **SMALL).eval()
    (source, target), _ = batch(4, 8, 13, 32, 0)
    assert (source == PAD).any()
    longer = torch.cat((source, torch.full((4, 4), PAD)), 1)
    torch.testing.assert_close(model((source, target)), model((longer, target)))


def test_every_token_of_the_source_is_seen_and_no_later_one_of_the_target():
    model = whole("translation", **SMALL).eval()
    source, target = torch.randint(4, 32, (2, 12)), torch.randint(4, 32, (2, 13))
    logits = model((source, target))
    for position in range(12):
        other = source.clone()
        other[:, position] = (other[:, position] + 1) % 28 + 4
        assert not torch.isclose(model((other, target)), logits).all(-1).any()
    other = target.clone()
    other[:, 6:] = (other[:, 6:] + 1) % 28 + 4
    changed = model((source, other))
    torch.testing.assert_close(changed[:, :6], logits[:, :6])
    assert not torch.isclose(changed[:, 6:], logits[:, 6:]).all(-1).any()
