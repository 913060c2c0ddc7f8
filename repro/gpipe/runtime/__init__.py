"""Processes: starting them, watching over them."""
