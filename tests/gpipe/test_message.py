"""How tensors are described, laid out for the crossing and laid out again."""

import torch
from examples import Apply
from hypothesis import given, settings
from hypothesis import strategies as st

from repro.gpipe import Pipeline
from repro.gpipe.comm.message import TensorMeta, copied, dense, elements, offset_of

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


def test_a_gradient_whose_layout_depends_on_data_is_settled_in_every_step():
    """Behind a layer that is not torch's own, no step trusts what the first one has seen."""
    strides = []

    def watch(x):
        y = x * torch.ones(3, requires_grad=True)
        y.register_hook(lambda gradient: strides.append(gradient.stride()))
        return y.clone()

    def turn(x):
        """Its gradient is an expanded one if the first input is negative."""
        return x.sum(1, keepdim=True) if x[0, 0] < 0 else x.square()

    pipe = Pipeline(
        [Apply(watch), Apply(turn)], 1, 1, checkpoint="never", device="cpu", balance=[2]
    )
    for sign in (1.0, 1.0, -1.0):
        pipe.train_step(sign * torch.ones(2, 3), torch.zeros(2), lambda y, _: y.sum() / y.shape[0])
    assert strides == [(3, 1)] * 3
