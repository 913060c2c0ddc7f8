"""The experiments. Each has a folder: `runs.py` defines its runs, `report.py` its tables."""
