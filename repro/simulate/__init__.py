"""Simulation of a training step: a schedule and the costs of its stages, on a virtual clock.

Nothing is run. `repro.gpipe.schedule.replay` gives the order and the moments of all actions. Their
durations come from a cost model: a device profile (`repro.costs.roofline`), layers timed on this
machine, or given numbers. Such a run has the fidelity "simulated".
"""

from repro.simulate.calibration import Calibration
from repro.simulate.replicas import all_reduce_seconds, exposed_seconds
from repro.simulate.stage_costs import FREE, StageCosts, link_of, plain_link
from repro.simulate.step import overlap, settle, simulate

__all__ = [
    "FREE",
    "Calibration",
    "StageCosts",
    "all_reduce_seconds",
    "exposed_seconds",
    "link_of",
    "overlap",
    "plain_link",
    "settle",
    "simulate",
]
