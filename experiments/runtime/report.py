"""What the runtime costs: steps of known duration against arithmetic.

Its layers wait for a known time, one layer a stage, so the best possible step is known as well:
(M+K-1)F + M(R+B) + (K-1)B with early recompute (arXiv:1811.06965v5, section 2.3). More is overhead.
"""

from repro.experiments.runtime.runs import ABOUT, BARE, NAME
from repro.harness.frame import ratios, runs_frame
from repro.harness.results import Results
from repro.harness.statistics import interval_of_sets
from repro.paper import theory
from repro.report.framed import framed, with_interval
from repro.report.table import Table

STEP, OVERHEAD, OVER_BARE = "step (ms) emulated", "overhead (%)", "over the bare loop"


def tables(results: Results) -> list[Table]:
    frame = runs_frame(results, NAME, library="repro", done=True)
    frame["F"] = [args["forward_s"] for args in frame["model_args"]]
    lines = frame[["K", "M", "F"]].itertuples(index=False)
    frame["best_s"] = [theory.step_time(K, M, "early", F, F, 2 * F) for K, M, F in lines]
    overheads = [
        [[100 * (seconds / best - 1) for seconds in round_.blocks] for round_ in run.rounds]
        for run, best in zip(frame["run"], frame["best_s"], strict=True)
    ]
    frame = with_interval(frame, OVERHEAD, map(interval_of_sets, overheads))
    # Of steps, so the inverse of the ratio of throughputs.
    over = 1 / ratios(results, frame, **BARE)[["ratio", "high", "low"]].to_numpy()
    frame = with_interval(frame, OVER_BARE, over.tolist())
    table = frame[["where", "K", "M"]].assign(**{"F (ms)": (1e3 * frame["F"]).map("{:g}".format)})
    table[STEP], table["step (ms) arithmetic"] = 1e3 * frame["step_s"], 1e3 * frame["best_s"]
    table = table.join(frame.filter(like=OVERHEAD)).join(frame.filter(like=OVER_BARE))
    return [framed(NAME, table, ABOUT)]
