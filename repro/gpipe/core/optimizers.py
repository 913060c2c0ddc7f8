"""Optimizers and scalers that would train a stage otherwise than the whole model."""

import inspect

from torch.optim import LBFGS, Optimizer

from repro.gpipe.checkpoint.optimizer_state import refuse_no_optimizer
from repro.gpipe.core.scaler import GradScaler

_ADVICE = "use one that treats each parameter alone, such as SGD or AdamW"
_STEP_OF_LBFGS = inspect.unwrap(LBFGS.step).__code__


def refuse(optimizer: Optimizer | None, scaler: object, *, stages: int) -> None:
    """Raise a ValueError if an update needs more than the gradients of one of `stages`."""
    if optimizer is not None:
        refuse_no_optimizer(optimizer)
    if isinstance(optimizer, LBFGS) or (stages > 1 and _in_lbfgs()):
        raise ValueError(
            "optimizer: LBFGS needs the loss several times a step and all parameters at once; "
            f"{_ADVICE}"
        )
    # As of timm's LAMB, by default.
    limit = None if optimizer is None else getattr(optimizer, "defaults", {}).get("max_grad_norm")
    if stages > 1 and limit:
        raise ValueError(
            f"optimizer: {type(optimizer).__name__} with max_grad_norm={limit} would clip by the "
            "gradients of one stage; give it max_grad_norm=None, and call pipe.clip_grad_norm_"
        )
    if scaler is not None and not isinstance(scaler, GradScaler):
        raise ValueError(
            f"scaler: {type(scaler).__name__} knows the gradients of one stage only; make it by "
            "pipe.grad_scaler()"
        )


def _in_lbfgs() -> bool:
    """Whether this is called by the closure of such an optimizer."""
    frame = inspect.currentframe()
    while frame is not None and frame.f_code is not _STEP_OF_LBFGS:
        frame = frame.f_back
    return frame is not None
