"""Cutting and joining nested mini-batches."""

from collections import namedtuple

import torch
from hypothesis import given
from hypothesis import strategies as st

from repro.gpipe.core.microbatch import Whole, flatten, gather, sizes, split

Pair = namedtuple("Pair", "left right")


@given(n=st.integers(1, 64), m=st.integers(1, 64))
def test_sizes_are_those_of_tensor_split(n, m):
    m = min(n, m)
    assert sizes(n, m) == [len(t) for t in torch.arange(n).tensor_split(m)]


def test_nested_there_and_back():
    tree = (
        torch.arange(5),
        {"a": [torch.arange(10).reshape(5, 2), "text", 3]},
        Pair(torch.ones(5), None),
    )
    parts = split(tree, 2)
    assert parts[0][0].tolist() == [0, 1, 2]
    assert parts[1][1]["a"][0].shape == (2, 2)
    assert isinstance(parts[0][2], Pair)
    joined = gather(parts)
    for ours, theirs in zip(flatten(joined)[0], flatten(tree)[0], strict=True):
        assert torch.equal(ours, theirs)
    assert joined[1]["a"][1:] == ["text", 3]


def test_whole_members_reach_every_micro_batch_uncut():
    mask = torch.ones(7, 7)
    parts = split((torch.arange(4), Whole((mask, 2))), 2)
    assert all(p[1][0] is mask and p[1][1] == 2 for p in parts)
