"""Schedules as values, laid on a virtual clock, split, drawn: pure, no torch."""
