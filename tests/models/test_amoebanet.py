from itertools import pairwise

import pytest
import torch
from pipelined import whole

from repro.gpipe.tree import flatten
from repro.models import build


def test_layers_and_boundaries_of_table_2s_model():
    model = build("amoebanet-d")
    assert len(model.layers) == 24
    with torch.device("meta"):
        value = torch.empty(1, 3, 224, 224)
        seen = []
        for factory in model.layers:
            value = factory()(value)
            seen.append([tuple(t.shape) for t in flatten(value)[0]])
    heights = [111, 56, 28] + 6 * [28] + 7 * [14] + 7 * [7]
    channels = [32, 192, 384] + 6 * [1024] + [1536] + 6 * [2048] + [3072] + 6 * [4096]
    assert [s[0] for s in seen[:-1]] == [
        (1, c, h, h) for c, h in zip(channels, heights, strict=True)
    ]
    for before, after in pairwise(seen[:-1]):
        assert after[1] == before[0]  # the skip is the input
    assert seen[-1] == [(1, 1001)]


@pytest.mark.parametrize(("name", "D", "image"), [("amoebanet-d", 8, 45), ("amoebanet-b", 64, 16)])
def test_any_width_and_image_size(name, D, image):
    with torch.device("meta"):
        logits = whole(name, L=3, D=D, image=image)(torch.empty(2, 3, image, image + 9))
    assert logits.shape == (2, 1001)
