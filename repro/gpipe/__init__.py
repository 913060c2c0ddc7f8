"""GPipe for PyTorch (arXiv:1811.06965): pipelined micro-batches and re-materialization.

Usable alone: it needs torch and numpy. Each public name is imported when it is first used, so that
`repro.gpipe.schedule`, which is pure, can be imported without torch.
"""

# ruff: noqa: F401  # what is imported for type checkers is imported for others on first use

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from repro.gpipe.checkpoint.save_load import whole_state_dict
    from repro.gpipe.core.compare import Comparison
    from repro.gpipe.core.config import PipelineConfig
    from repro.gpipe.core.loss import Weighted
    from repro.gpipe.core.pipeline import Pipeline
    from repro.gpipe.core.results import EvaluationResult, StepResult
    from repro.gpipe.errors import NonFiniteError, RefusedError
    from repro.gpipe.partition.layer_costs import LinkSpeed
    from repro.gpipe.runtime.launch import StageError, launch
    from repro.gpipe.schedule.actions import Action, Schedule
    from repro.gpipe.schedule.kinds import make_schedule
    from repro.gpipe.schedule.replay import draw, replay
    from repro.gpipe.schedule.timeline import Span, Timeline
    from repro.gpipe.tree import Whole

_NAMES = {  # module -> names, in the order of the reference
    "core.pipeline": ["Pipeline"],
    "core.results": ["StepResult", "EvaluationResult"],
    "core.compare": ["Comparison"],
    "core.config": ["PipelineConfig"],
    "core.loss": ["Weighted"],
    "tree": ["Whole"],
    "runtime.launch": ["launch", "StageError"],
    "errors": ["NonFiniteError", "RefusedError"],
    "checkpoint.save_load": ["whole_state_dict"],
    "partition.layer_costs": ["LinkSpeed"],
    "schedule.kinds": ["make_schedule"],
    "schedule.replay": ["draw", "replay"],
    "schedule.actions": ["Schedule", "Action"],
    "schedule.timeline": ["Timeline", "Span"],
}
_HOME = {name: module for module, names in _NAMES.items() for name in names}
__all__ = [*_HOME]  # pyright: ignore[reportUnsupportedDunderAll]


def __dir__() -> list[str]:
    """The names of the module and the public ones, which are imported later."""
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> Any:
    """Import a public name from the module that defines it (PEP 562)."""
    if name not in _HOME:
        raise AttributeError(f"module 'repro.gpipe' has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(f"repro.gpipe.{_HOME[name]}"), name)
    return found
