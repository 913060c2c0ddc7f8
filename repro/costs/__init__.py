"""What a model costs before it runs: bytes, operations and parameters, counted on fake tensors at any size."""

from repro.costs.count import Counted, Counter, LayerCost, count
from repro.costs.fake import mini_batch
from repro.costs.stage import KINDS
from repro.costs.walk import Messages, StageMemory, Task

__all__ = ["KINDS", "Counted", "Counter", "LayerCost", "Messages", "StageMemory", "Task", "count", "mini_batch"]
