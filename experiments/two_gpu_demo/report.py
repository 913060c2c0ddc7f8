"""One device, naive model parallelism and GPipe beside each other; the notebook draws them."""

from repro.experiments.two_gpu_demo.runs import ABOUT, NAME
from repro.harness.results import Results
from repro.report.curves import OVER_ONE
from repro.report.table import Table
from repro.report.tables import points

__all__ = ["ABOUT", "tables"]


def tables(results: Results) -> list[Table]:
    return [points(results, NAME, OVER_ONE)]
