"""Simulation of a training step: a schedule and the costs of its stages, on a virtual clock.

Nothing is run. `repro.gpipe.schedule.replay` gives the order and the moments of all actions. Their
durations come from a cost model: a device profile (`repro.costs.roofline`), layers timed on this
machine, or given numbers. Such a run has the fidelity "simulated".
"""
