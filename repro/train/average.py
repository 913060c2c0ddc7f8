"""The moving average of the weights (EMA), stage by stage."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel


def averaged(module: nn.Module, decay: float) -> AveragedModel:
    """An exponential moving average of a stage's weights and running statistics.

    It begins with the present values. After n updates the decay is min(decay, (1 + n) / (10 + n)),
    as in TensorFlow's average with `num_updates`, which the authors' code uses. So the first
    weights soon count little. Whole numbers, such as batch norm's count of batches, are copied.
    """

    def moved(average: Tensor, value: Tensor, n: Tensor | int) -> Tensor:
        share = 1 - min(decay, (1 + int(n)) / (10 + int(n)))
        return average.lerp(value, share) if value.is_floating_point() else value

    model = AveragedModel(module, avg_fn=moved, use_buffers=True)
    model.n_averaged.fill_(1)  # the update now to come; torch's first one would copy
    return model


@contextmanager
def in_place_of_weights(average: AveragedModel, module: nn.Module) -> Iterator[None]:
    """Give a module its average for a while, to evaluate it."""
    weights = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    module.load_state_dict(average.module.state_dict())
    try:
        yield
    finally:
        module.load_state_dict(weights)
