"""The experiments. Each has a folder: `runs.py` says what is run, `report.py` what is shown."""
