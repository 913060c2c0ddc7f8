"""GPipe (Huang et al., arXiv:1811.06965), reproduced: library `repro.gpipe`, command `repro`."""

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd

__version__ = "0.1.0"


def results(folder: Path | str = "results") -> "pd.DataFrame":
    """Everything recorded under a folder: a row for each run, see docs/cli.md.

    Raises:
        ValueError: one line, if nothing is recorded there.
    """
    # Only now, since `repro --help` and `repro.gpipe` need none of it.
    from repro.harness.frame import all_runs
    from repro.harness.results import load_recorded

    return all_runs(load_recorded(Path(folder))).infer_objects()
