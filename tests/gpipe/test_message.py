"""Mini-batches are cut and joined; tensors are described, laid out to cross, and laid out again."""

from collections import OrderedDict, UserDict, namedtuple

import numpy as np
import torch
from examples import Apply
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from repro.gpipe import Pipeline
from repro.gpipe.comm.message import Form, TensorMeta, copied, dense, elements, offset_of
from repro.gpipe.tree import check, flatten, gather, sizes, split, unflatten

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.bool, torch.int16, torch.complex64]


def numbered(shape, dtype):
    """A tensor whose elements differ, as far as the type can tell."""
    count = torch.arange(torch.Size(shape).numel()).view(shape)
    return (count % 2 == 0) if dtype == torch.bool else count.to(dtype)


def crossed(tensor):
    """What a receiver makes of a tensor, by way of a copy of its bytes."""
    meta = TensorMeta.of(tensor)
    arrived = meta.room(torch.device("cpu"))
    elements(arrived).copy_(elements(dense(tensor)))
    assert arrived.untyped_storage().nbytes() == meta.nbytes
    return meta.restored(arrived)


@st.composite
def views(draw):
    """A tensor after a few operations that only change how its memory is read."""
    tensor = numbered(draw(st.lists(st.integers(0, 4), max_size=3)), draw(st.sampled_from(DTYPES)))
    for _ in range(draw(st.integers(0, 4))):
        operation = draw(st.sampled_from(["permute", "expand", "step", "offset", "unfold", "conj"]))
        d = draw(st.integers(0, tensor.ndim - 1)) if tensor.ndim else None
        if operation == "permute":
            tensor = tensor.permute(draw(st.permutations(range(tensor.ndim))))
        elif operation == "expand":
            tensor = tensor.unsqueeze(0).expand(draw(st.integers(0, 3)), *tensor.shape)
        elif operation == "conj":
            tensor = tensor.conj()
        elif d is None:
            continue
        elif operation == "step":
            tensor = tensor[(slice(None),) * d + (slice(None, None, 2),)]
        elif operation == "offset":
            tensor = tensor.narrow(d, min(1, tensor.shape[d]), max(0, tensor.shape[d] - 1))
        elif tensor.shape[d] >= 2:
            tensor = tensor.unfold(d, 2, 1)
    return tensor


@settings(max_examples=200, deadline=None)
@given(views())
def test_any_view_arrives_and_is_copied_with_its_bits_strides_and_alignment(tensor):
    for found in (crossed(tensor), copied(tensor)):
        assert torch.equal(found, tensor)
        assert (found.stride(), found.dtype) == (tensor.stride(), tensor.dtype)
        if tensor.numel():
            assert found.data_ptr() % 64 == offset_of(tensor) == tensor.data_ptr() % 64


def test_a_form_tells_which_tensors_share_their_memory_and_where_they_begin():
    memory = torch.zeros(64)
    for first, second, sharing in (
        (memory[:4], memory[:4].clone(), ()),
        (memory[:4], memory[4:8], (0, 1)),
        (memory[1:5], torch.zeros(4), ()),
    ):
        form = Form.of(*flatten((first, second)))
        assert form.sharing == sharing
        assert [meta.offset for meta in form.tensors] == [offset_of(first), offset_of(second)]


def test_a_gradient_whose_layout_depends_on_data_is_settled_in_every_step():
    strides = []

    def watch(x):
        y = x * torch.ones(3, requires_grad=True)
        y.register_hook(lambda gradient: strides.append(gradient.stride()))
        return y.clone()

    def turn(x):
        """Its gradient is an expanded one if the first input is negative."""
        return x.sum(1, keepdim=True) if x[0, 0] < 0 else x.square()

    pipe = Pipeline([Apply(watch), Apply(turn)], 1, 1, recompute="never", device="cpu", balance=[2])
    for sign in (1.0, 1.0, -1.0):
        pipe.train_step(sign * torch.ones(2, 3), torch.zeros(2), lambda y, _: y.sum() / y.shape[0])
    assert strides == [(3, 1)] * 3


Pair = namedtuple("Pair", "left right")


class BatchEncoding(UserDict):
    """As transformers has it."""


class ModelOutput(OrderedDict):
    """As transformers has it."""


def test_what_is_no_tensor_in_the_inputs_is_that_of_this_step():
    """Although NumPy prints both tables alike."""
    tables, seen = np.zeros((2, 2000)), []
    tables[1, 1000] = 1.0
    pipe = Pipeline([Apply(lambda given: seen.append(given[1][1000]) or given[0])], 1, 1)
    for table in tables:
        pipe.predict((torch.ones(2, 3), table))
    assert seen == [0.0, 1.0]


def test_what_makes_a_packed_sequence_crosses_and_dicts_of_transformers_become_dicts():
    packed = nn.utils.rnn.pack_sequence([torch.ones(3, 2), torch.zeros(1, 2)])
    batch = BatchEncoding(x=torch.ones(4), more=ModelOutput(y=torch.ones(4)))
    assert check(batch, 2, "inputs") == 4
    tensors, skeleton = flatten([packed, *split(batch, 2)])
    form = Form.unpacked(Form.of(tensors, skeleton).packed)
    found, *parts = unflatten(tensors, form.skeleton)
    assert type(found) is type(packed)
    assert all(map(torch.equal, found[:2], packed[:2]))
    for part in parts:
        assert (type(part), type(part["more"])) == (dict, dict)
        assert part["more"]["y"].tolist() == [1.0, 1.0]


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
