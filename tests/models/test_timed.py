import torch

from repro.models.timed import TimedLayer


def test_it_passes_on_what_it_gets():
    layer = TimedLayer(0.0, 0.0, 5)
    x = torch.randn(3, 5, dtype=torch.double, requires_grad=True)
    assert torch.autograd.gradcheck(lambda a: layer.double()(a), (x,))
    output = layer(x)
    assert output.data_ptr() == x.data_ptr(), "no copy: a message of any size costs no computing"
    output.sum().backward()
    assert layer.weight.grad is not None
    assert layer.weight.grad.item() == 0
