"""The list of guards."""

from collections.abc import Sequence
from typing import Any

from repro.gpipe.errors import one_of
from repro.gpipe.exact.batchnorm import RunningStatistics
from repro.gpipe.exact.coupled import CoupledExamples
from repro.gpipe.exact.foreign import ForeignLeaves
from repro.gpipe.exact.guard import Guard, Guards
from repro.gpipe.exact.inner_backward import InnerBackward
from repro.gpipe.exact.inputs import OverwrittenInputs
from repro.gpipe.exact.nonfinite import NonFinite
from repro.gpipe.exact.recompute import RecomputeEqualsForward
from repro.gpipe.exact.state import LayerState
from repro.io.untrusted import short

# In the order in which they are called.
GUARDS: tuple[type[Guard], ...] = (
    OverwrittenInputs,
    LayerState,
    RunningStatistics,
    InnerBackward,
    ForeignLeaves,
    RecomputeEqualsForward,
    NonFinite,
    CoupledExamples,
)
NAMES = tuple(guard.__name__ for guard in GUARDS)
LOSS_CHECK = "LossCheck"  # which is none, but can be left out, too


def guards(without: Sequence[str], *given: Any) -> Guards:
    """The guards of one rank's layers but for those `without`, made of what is `given`."""
    if not isinstance(without, list | tuple):
        raise ValueError(f"without={short(without)}: must be a list of names; try {[LOSS_CHECK]}")
    for name in without:
        one_of("without", name, [*NAMES, LOSS_CHECK])
    return Guards([guard(*given) for guard in GUARDS if guard.__name__ not in without])
