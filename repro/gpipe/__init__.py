"""GPipe for PyTorch: pipeline parallelism with micro-batches and re-materialization (arXiv:1811.06965).

Usable alone: it imports torch and nothing else of this project.
"""

from repro.gpipe.breakdown import breakdown
from repro.gpipe.checkpoint import whole_state_dict
from repro.gpipe.errors import NonFiniteError
from repro.gpipe.head import Weighted
from repro.gpipe.launch import launch
from repro.gpipe.microbatch import Whole
from repro.gpipe.outcome import EvaluationResult, StepResult
from repro.gpipe.pipeline import Pipeline
from repro.gpipe.profile import LinkSpeed
from repro.gpipe.replay import replay
from repro.gpipe.schedule import Action, Schedule, make_schedule
from repro.gpipe.timeline import Span, Timeline

__all__ = [
    "Action",
    "EvaluationResult",
    "LinkSpeed",
    "NonFiniteError",
    "Pipeline",
    "Schedule",
    "Span",
    "StepResult",
    "Timeline",
    "Weighted",
    "Whole",
    "breakdown",
    "launch",
    "make_schedule",
    "replay",
    "whole_state_dict",
]
