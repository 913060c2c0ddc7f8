"""The list of guards."""

from collections.abc import Mapping, Sequence
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


def guards(names: str | Sequence[str], *given: Any, on: Mapping[str, bool]) -> Guards:
    """The guards of one rank's layers: "all", or those of these names, unless they are not `on`.

    What a `Guard` is made of is `given`.
    """
    chosen = NAMES if names == "all" else [names] if isinstance(names, str) else names
    for name in chosen:
        one_of("guards", name, ["all", *NAMES])
    used = [guard for guard in GUARDS if guard.__name__ in chosen and on.get(guard.__name__, True)]
    return Guards([guard(*given) for guard in used])
