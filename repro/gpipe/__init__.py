"""GPipe for PyTorch (arXiv:1811.06965): pipelined micro-batches and re-materialization.

Usable alone: it imports torch and nothing else of this project. Each public name is imported when
it is first used, so that `repro.gpipe.schedule`, which is pure, can be imported without torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from repro.gpipe.checkpoint.save_load import whole_state_dict as whole_state_dict
    from repro.gpipe.core.config import PipelineConfig as PipelineConfig
    from repro.gpipe.core.loss import Weighted as Weighted
    from repro.gpipe.core.microbatch import Whole as Whole
    from repro.gpipe.core.pipeline import EvaluationResult as EvaluationResult
    from repro.gpipe.core.pipeline import Pipeline as Pipeline
    from repro.gpipe.core.pipeline import StepResult as StepResult
    from repro.gpipe.errors import NonFiniteError as NonFiniteError
    from repro.gpipe.partition.layer_costs import LinkSpeed as LinkSpeed
    from repro.gpipe.runtime.launch import launch as launch
    from repro.gpipe.schedule.actions import Action as Action
    from repro.gpipe.schedule.actions import Schedule as Schedule
    from repro.gpipe.schedule.breakdown import breakdown as breakdown
    from repro.gpipe.schedule.kinds import make_schedule as make_schedule
    from repro.gpipe.schedule.replay import draw as draw
    from repro.gpipe.schedule.replay import replay as replay
    from repro.gpipe.schedule.timeline import Span as Span
    from repro.gpipe.schedule.timeline import Timeline as Timeline

_NAMES = {
    "checkpoint.save_load": ["whole_state_dict"],
    "core.config": ["PipelineConfig"],
    "core.loss": ["Weighted"],
    "core.microbatch": ["Whole"],
    "core.pipeline": ["EvaluationResult", "Pipeline", "StepResult"],
    "errors": ["NonFiniteError"],
    "partition.layer_costs": ["LinkSpeed"],
    "runtime.launch": ["launch"],
    "schedule.actions": ["Action", "Schedule"],
    "schedule.breakdown": ["breakdown"],
    "schedule.kinds": ["make_schedule"],
    "schedule.replay": ["draw", "replay"],
    "schedule.timeline": ["Span", "Timeline"],
}
_HOME = {name: module for module, names in _NAMES.items() for name in names}
__all__ = sorted(_HOME)  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    """Import a public name from the module that defines it (PEP 562)."""
    if name not in _HOME:
        raise AttributeError(f"module 'repro.gpipe' has no attribute {name!r}")
    return getattr(import_module(f"repro.gpipe.{_HOME[name]}"), name)
