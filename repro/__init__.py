"""GPipe (Huang et al., arXiv:1811.06965), reproduced: library `repro.gpipe`, command `repro`."""

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd


def results(folder: Path | str = "results") -> "pd.DataFrame":
    """All recorded runs under a folder, a row for each: settings, times, speedups, memory.

    Args:
        folder: such as "results", or "results/reference" for the committed ones.

    Returns:
        The columns of `repro.harness.results.COLUMNS`. Times are in seconds, throughputs in
        examples per second, memory is in GiB. A run without a result has NaN there, and its status
        says why.

    Raises:
        ValueError: one line, if there is no such folder.
    """
    # Only now, since `repro --help` and `repro.gpipe` need none of it.
    from repro.harness.results import check_folder, load

    check_folder(Path(folder))
    return load(Path(folder)).rows
