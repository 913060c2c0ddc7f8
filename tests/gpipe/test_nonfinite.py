"""One question about many tensors, and what must not replace a good checkpoint."""

import math
from copy import deepcopy

import pytest
import torch
from checkpoints import model, refused, stepped
from torch import nn

from repro.gpipe import Pipeline
from repro.gpipe.errors import NonFiniteError
from repro.gpipe.exact.nonfinite import all_finite, is_finite, refuse_nonfinite

TYPES = [
    torch.float32,
    torch.float64,
    torch.bfloat16,
    torch.float16,
    torch.complex64,
    torch.complex128,
]
BAD = [math.inf, -math.inf, math.nan]
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


def several(dtype, device):
    """Dense, transposed, with gaps, of one number and of none."""
    wide = torch.arange(1.0, 41.0).reshape(5, 8).to(device, dtype)
    return [
        wide[0].clone(),
        wide.t(),
        wide[:, ::2].clone().t()[::2],
        wide[0, 0].clone(),
        wide[:, :0].clone(),
    ]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", TYPES)
def test_one_bad_number_among_many_tensors_is_found(dtype, device):
    """By the private function of torch behind it, whatever the layout; wherever it is."""
    for bad in BAD:
        for n in range(4):
            tensors = several(dtype, device)
            assert all_finite(tensors)
            assert all(map(is_finite, tensors))
            tensors[n].as_strided((1,), (1,), tensors[n].storage_offset()).fill_(bad)
            assert not all_finite(tensors)
            assert [is_finite(t) for t in tensors] == [m != n for m in range(len(tensors))]


@pytest.mark.parametrize("device", DEVICES)
def test_no_bit_is_changed(device):
    numbers = [1e-45, -0.0, 0.0, -1e-40, 3.4e38, math.nan, math.inf]
    tensor = torch.tensor(numbers, device=device)
    before = tensor.view(torch.int32).clone()
    all_finite([tensor[:5]])
    all_finite([tensor])
    assert torch.equal(tensor.view(torch.int32), before)


def test_sparse_gradients():
    table = nn.Embedding(10, 3, sparse=True)
    table(torch.tensor([1, 1, 4])).sum().backward()
    gradient = table.weight.grad
    assert gradient is not None
    assert gradient.is_sparse
    assert all_finite([gradient, torch.ones(2)])
    assert is_finite(gradient)
    assert not all_finite([gradient * math.inf])
    assert not is_finite(gradient * math.inf)


def lazy(dtype):
    """A gradient whose memory holds its conjugate, as autograd makes them."""
    leaf = torch.ones(3, dtype=dtype, requires_grad=True)
    (leaf.conj() * torch.ones(3, dtype=dtype)).real.sum().backward()
    assert leaf.grad is not None
    return leaf.grad


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
def test_lazy_conjugates_and_negatives(dtype):
    gradient = lazy(dtype)
    assert gradient.is_conj()
    negative = gradient.imag
    assert negative.is_neg()
    for tensor in (gradient, negative):
        assert all_finite([tensor])
        assert is_finite(tensor)
    gradient[1] = torch.tensor(complex(0.0, math.inf))
    for tensor in (gradient, negative):
        assert not all_finite([tensor])
        assert not is_finite(tensor)


class Widest(nn.Module):
    """Parameters of several dtypes, one with sparse gradients; computes in float64."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(4, 4, sparse=True, dtype=torch.float64)
        several = (torch.float32, torch.bfloat16, torch.float16, torch.complex64, torch.complex128)
        self.scales = nn.ParameterList(
            [nn.Parameter(torch.ones(4, dtype=dtype)) for dtype in several]
        )

    def forward(self, x):
        for scale in self.scales:
            x = x * (scale.conj() * scale).real if scale.is_complex() else x * scale
        return x + self.table(torch.arange(x.shape[0]) % 4)


def test_a_step_with_gradients_of_every_type():
    """As plain torch, with `train_step`'s own check; an infinite gradient is refused."""
    pipe = Pipeline([Widest], 1, 2, device="cpu")
    whole = deepcopy(pipe.module)
    x, y = torch.rand(4, 4, dtype=torch.float64), torch.rand(4, 4, dtype=torch.float64)
    loss = pipe.train_step(x, y, nn.functional.mse_loss).loss
    parts = zip(x.split(2), y.split(2), strict=True)
    wanted = torch.stack([nn.functional.mse_loss(whole(a), b) for a, b in parts]).mean()
    wanted.backward()
    assert loss == pytest.approx(wanted.item())
    for ours, theirs in zip(pipe.parameters(), whole.parameters(), strict=True):
        assert ours.grad is not None
        assert theirs.grad is not None
        assert ours.grad.dtype == theirs.grad.dtype
        torch.testing.assert_close(ours.grad.to_dense(), theirs.grad.to_dense())
    with pytest.raises(NonFiniteError):
        pipe.train_step(x * math.inf, y, nn.functional.mse_loss)


def test_a_sum_that_overflows_is_no_infinity():
    assert is_finite(torch.full((4,), 3e38))
    assert is_finite(torch.full((4,), 60000.0, dtype=torch.float16))
    assert is_finite(torch.tensor([2**62, 2**62]))
    assert is_finite(torch.tensor([True]))


def test_a_mask_is_finite_if_it_may_be():
    mask = torch.tensor([0.0, -math.inf])
    assert not is_finite(mask)
    assert is_finite(mask, or_mask=True)
    assert not is_finite(-mask, or_mask=True)
    assert not is_finite(torch.tensor([math.nan]), or_mask=True)


def test_what_is_named():
    module = model(4, 4)
    module.append(nn.BatchNorm1d(4))
    optimizer = stepped(module, "Adam")
    module.register_buffer("best", torch.tensor(math.inf))
    refuse_nonfinite(module, optimizer)
    for name, tensor in (
        ("0.bias", module.get_parameter("0.bias")),
        (
            "exp_avg of 0.weight in the optimizer",
            optimizer.state[module.get_parameter("0.weight")]["exp_avg"],
        ),
        ("1.running_mean", module.get_buffer("1.running_mean")),
    ):
        with torch.no_grad():
            before = tensor.clone()
            tensor.view(-1)[0] = math.nan
            refused(f"^{name} is inf or nan", refuse_nonfinite, module, optimizer)
            tensor.copy_(before)
    refuse_nonfinite(module, None)
