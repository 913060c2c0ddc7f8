"""The methods side by side: what stands where nothing was timed, and what a rank keeps."""

import pytest

from experiments.methods import report as methods
from repro.gpipe.schedule.kinds import make_schedule


@pytest.mark.parametrize(
    ("schedule", "kept"),
    [
        (("naive", 8, 16), 1),
        (("gpipe", 8, 16), 16),
        (("1f1b", 8, 16), 8),
        (("zb-h1", 8, 16), 8),
        # With K=2 and M=4 rank 0 is 5 forwards of half its layers ahead of its first backward.
        (("interleaved-1f1b", 4, 4, "never", 2), 2.5),
    ],
)
def test_micro_batches_kept(schedule, kept):
    name, K, M, *more = schedule
    assert methods.kept_micro_batches(make_schedule(name, K, M, *(more or ["never"]))) == kept
