"""Loss scaling for float16: an inf on one stage skips the update on all stages."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, Optimizer

from repro.gpipe.comm.control_channel import ControlChannel
from repro.gpipe.exact.nonfinite import all_finite


class GradScaler(torch.amp.GradScaler):
    """torch.amp.GradScaler for one stage of a pipeline, made by `Pipeline.grad_scaler`.

    `train_step(..., scaler=scaler)` scales the loss, so `scale(loss)` is not needed, and asks all
    stages whether their gradients are finite. `step` and `update` act alike on all.
    """

    def __init__(self, device: torch.device, all_ranks: ControlChannel, **options: Any) -> None:
        super().__init__(device.type, **options)
        self._all_ranks = all_ranks
        self._found_inf = False  # on any stage, in the gradients of the step that ran last
        # torch makes the scale's tensor at the first call.
        self.scale(torch.zeros((), device=device))
        # torch's update() reads what unscale_() found. A stage without gradients has nothing to
        # unscale, so each stage also unscales this one number.
        self._witness = nn.Parameter(torch.zeros((), device=device))
        self._witness_optimizer = SGD([self._witness])

    def gradient_of(self, loss: Tensor) -> Tensor:
        """The gradient of the scaled loss with respect to the loss."""
        return torch.full_like(loss, self.get_scale(), dtype=torch.float32).to(loss.dtype)

    def update_all(self, parameters: Sequence[Tensor], optimizer: Optimizer | None) -> None:
        """After the last B, on every rank: update if no stage has inf or nan, and move the scale.

        Without an optimizer on any rank the caller updates, by `step` and `update`.
        """
        finite = all_finite(p.grad for p in parameters if p.grad is not None)
        same = {"scale": self.get_scale()}
        own = finite, optimizer is not None
        answers = self._all_ranks.gather_alike("scaler", own, same)
        self._found_inf = not all(finite for finite, _ in answers)
        if optimizer is not None:
            self.step(optimizer)
        if any(updates for _, updates in answers):
            self.update()

    def step(self, optimizer: Optimizer, *args: Any, **kwargs: Any) -> Any:
        """Unscale the gradients, once, and update; do nothing if any stage has inf or nan."""
        if not self.is_enabled():
            return super().step(optimizer, *args, **kwargs)
        if self._found_inf:
            return None
        if all(p.grad is None for group in optimizer.param_groups for p in group["params"]):
            return optimizer.step(*args, **kwargs)  # torch's step asserts that there is a gradient
        return super().step(optimizer, *args, **kwargs)

    def update(self, new_scale: float | Tensor | None = None) -> None:
        """Raise or lower the scale; call it on every rank after `step`."""
        if self.is_enabled():
            self._witness.grad = torch.full_like(
                self._witness, torch.inf if self._found_inf else 0.0
            )
            self.unscale_(self._witness_optimizer)
        super().update(new_scale)
