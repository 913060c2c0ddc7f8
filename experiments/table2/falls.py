"""Why a scaled-down run can slow down with more micro-batches: one sentence, computed from the runs."""

from repro.harness.results import Results, Run
from repro.report.compare import Setting, matching
from repro.report.ratio import Ratio, over


def falls(results: Results, setting: Setting, name: str) -> str:
    """Where the most micro-batches are slower than fewer at the same K, and what one stage alone loses there.

    Of several such K the largest; nothing where no interval shows it. `setting` holds the runs of
    K=1 too.
    """
    rows = matching(setting.rows, fidelity="measured", status="done")
    for K in sorted({row.K for row in rows if row.K > 1}, reverse=True):
        mine = matching(rows, K=K)
        most = max(mine, key=lambda row: row.M)
        fewer = max(mine, key=lambda row: row.throughput).M
        ratio = over(results, most, M=fewer)
        if ratio.verdict == "slower":
            words = (
                f"{name} at K={K}: M={most.M} has {_lost(ratio)} % less throughput than M={fewer}"
            )
            return f"{words}{_alone(results, matching(rows, K=1, M=most.M), fewer)}."
    return ""


def _alone(results: Results, runs: list[Run], fewer: int) -> str:
    """What one stage alone loses between the same two M, where its own interval shows a loss."""
    ratio = over(results, runs[0], M=fewer) if runs else None
    if ratio is None or ratio.verdict != "slower":
        return ""
    M, N = runs[0].M, runs[0].N
    return (
        f"; one stage alone (K=1) already loses {_lost(ratio)} % from M={fewer} to M={M} at this "
        f"size: micro-batches of N/M = {N / M:g} are too small. The table of speedup over K=1 "
        "takes that out"
    )


def _lost(ratio: Ratio) -> str:
    """Throughput lost, in percent."""
    return f"{100 * (1 - ratio.value):.0f}"
