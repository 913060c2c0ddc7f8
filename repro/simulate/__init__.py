"""A training step on devices that are not here: a schedule and what its stages cost, laid on a virtual clock.

Nothing is run. The walker is `repro.gpipe.schedule.replay`, the durations come from a cost model: a
device's profile (`repro.costs.roofline`), layers timed here, or numbers of one's own. A run made so
has the fidelity "simulated".
"""

from repro.simulate.calibration import Calibration
from repro.simulate.stage_costs import FREE, StageCosts, link_of, plain_link
from repro.simulate.step import settle, simulate, together

__all__ = [
    "FREE",
    "Calibration",
    "StageCosts",
    "link_of",
    "plain_link",
    "settle",
    "simulate",
    "together",
]
