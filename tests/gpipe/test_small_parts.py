"""Live bytes and strides: the pieces below the engine."""

import torch

from repro.gpipe.memory import LiveBytes
from repro.gpipe.message import MessageMeta, TensorMeta, copied


def test_live_bytes_sees_peaks_and_frees():
    kept = torch.zeros(256)
    with LiveBytes([kept]) as meter:
        assert meter.now == 1024
        a = torch.ones(1024)
        view = a[:10]
        assert meter.now == 1024 + 4096, "a view owns nothing"
        del a
        assert meter.now == 1024 + 4096, "but keeps its storage alive"
        del view
        assert meter.now == 1024
        torch.ones(256)
    assert meter.peak == 1024 + 4096


def test_strides_survive_where_dense():
    last = torch.zeros(2, 3, 4, 5).to(memory_format=torch.channels_last)
    assert TensorMeta.of(last).stride == last.stride()
    gaps = torch.zeros(4, 4)[:, :2]
    assert TensorMeta.of(gaps).layout == (2, 1)
    assert TensorMeta.of(torch.zeros(3, 2).t()).stride == (1, 2)
    meta = MessageMeta.of((torch.zeros(2), torch.zeros(3, requires_grad=True)))
    assert [m.shape for m in meta.gradients().tensors] == [(3,)]
    assert meta.fits(MessageMeta.of((torch.ones(2), torch.ones(3))))
    assert not meta.fits(MessageMeta.of((torch.ones(2), torch.ones(4))))


def test_gradients_have_neither_gaps_nor_repeats():
    expanded = MessageMeta.of(torch.zeros(3, 1, requires_grad=True).expand(3, 4))
    (meta,) = expanded.gradients().tensors
    gradient = torch.arange(12.0).view(3, 4)
    assert torch.equal(meta.restored(gradient), gradient)
    assert [m.shape for m in expanded.gradients(flags=True).tensors] == [(3, 4), (1,)]
    assert MessageMeta.of(torch.zeros(2)).gradients(flags=True).tensors == ()


def test_copies_lie_in_memory_as_what_they_copy():
    base = torch.arange(12.0).view(3, 4)
    for tensor in (base, base.t(), base[:, ::2], base[:, 1:]):
        copy = copied(tensor)
        assert copy.stride() == tensor.stride()
        assert torch.equal(copy, tensor)
        assert copy.data_ptr() != tensor.data_ptr()
    leaf = torch.ones(3, 4)[:, ::2].requires_grad_()
    copied(leaf).mul_(2.0).sum().backward()
    assert torch.equal(leaf.grad, torch.full((3, 2), 2.0))  # pyright: ignore[reportArgumentType]
    repeated = torch.ones(3, 1).expand(3, 4)
    assert copied(repeated) is repeated
