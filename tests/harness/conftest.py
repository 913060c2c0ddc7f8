"""Fixture: a finished sweep to be damaged."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from crew import Crew, measure
from shown import SWEEP, Seen, seen

from repro.io import files


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Seen]]:
    """A finished sweep and what its report shows; nothing here has to survive a loss of power."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files.os, "fsync", lambda _: None)
        results = tmp_path_factory.mktemp("recorded")
        assert measure(results, Crew(), SWEEP) == 0
        yield results, seen(results)
