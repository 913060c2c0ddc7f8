"""Plans, measures and records runs.

This is the way of a run from its definition to the report.
A `RunSpec` (spec.py) is what one run measures. An `Experiment` has groups of them; the runs of a
group share rounds. `plan.make` compares it with the journal: a `PlannedRun` has an id, and misses
some rounds. In a round (runner.py) worker processes get a `Request` for each run and answer with a
`Result`, or its `Status` says why there is none. The journal appends the records of a round as one
event. From journals results.py makes `Run`s with their rounds, and frame.py tables for the report.
"""
