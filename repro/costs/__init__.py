"""Costs of a model before it runs: bytes, FLOPs and parameters, counted on fake tensors."""

from repro.costs import device, roofline
from repro.costs.counter import Counter
from repro.costs.device import Device
from repro.costs.fake import mini_batch
from repro.costs.roofline import LayerTime, Terms
from repro.costs.stage import KINDS
from repro.costs.stage_memory import Messages, StageMemory, Task

__all__ = [
    "KINDS",
    "Counter",
    "Device",
    "LayerTime",
    "Messages",
    "StageMemory",
    "Task",
    "Terms",
    "device",
    "mini_batch",
    "roofline",
]
