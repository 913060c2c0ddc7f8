"""Tests that need what this machine lacks skip themselves, with the reason."""

import os

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if reason := _missing(item):
            item.add_marker(pytest.mark.skip(reason=reason))


def _missing(item: pytest.Item) -> str:
    """What the test's markers ask for and is not here; empty when it can run."""
    if item.get_closest_marker("network") and os.environ.get("REPRO_NETWORK") != "1":
        return "needs the network: set REPRO_NETWORK=1"
    needed = (
        2 if item.get_closest_marker("multigpu") else 1 if item.get_closest_marker("gpu") else 0
    )
    if needed:
        import torch  # only where a test asks: many need no torch

        if torch.cuda.device_count() < needed:
            return (
                f"needs {needed} CUDA device{'s' * (needed > 1)}, found {torch.cuda.device_count()}"
            )
    return ""
