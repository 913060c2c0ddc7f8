"""The experiments: of each a folder with `runs.py`, what is run, and `report.py`, what is shown of it."""
