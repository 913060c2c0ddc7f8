"""What the runtime costs: steps of known duration against arithmetic, and steps on one GPU.

Layers of known duration wait, one layer a stage, so the best possible step is known as well:
(M+K-1)F + M(R+B) + (K-1)B with early recompute (arXiv:1811.06965v5, section 2.3). More is overhead.
"""

from repro.experiments.runtime.runs import ABOUT, BARE, NAME
from repro.harness.frame import ratio_of, ratios, runs_frame
from repro.harness.results import Results, Run
from repro.harness.statistics import interval_of_sets
from repro.paper import theory
from repro.report.framed import framed, with_interval
from repro.report.style import model_name
from repro.report.table import Table

STEP, OVERHEAD, OVER_BARE = "step (ms) emulated", "overhead (%)", "over the bare loop"
ON_GPU, OF_OURS, SHARE = "runtime_gpu", "loop's step over ours", "share of recomputation"


def tables(results: Results) -> list[Table]:
    made = (_known(results), _on_one_gpu(results))
    return [table for table in made if table is not None]


def _known(results: Results) -> Table | None:
    frame = runs_frame(results, NAME, library="repro", fidelity="emulated", done=True)
    if frame.empty and len(runs_frame(results, NAME, fidelity="measured")):
        return None
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
    return framed(NAME, table, ABOUT)


def _on_one_gpu(results: Results) -> Table | None:
    """A line for each step of ours that has a plain loop's in the same blocks."""
    frame = runs_frame(results, NAME, library="repro", fidelity="measured", K=1, done=True)
    loops = [results.baseline(run, library="loop") for run in frame["run"]]
    frame["loop"] = loops
    frame = frame[[loop is not None for loop in loops]]
    if frame.empty:
        return None
    over = [ratio_of(results, *pair) for pair in zip(frame["run"], frame["loop"], strict=True)]
    frame = with_interval(frame, OF_OURS, over)
    kept = ratios(results, frame, checkpoint="never")["ratio"]
    table = frame[["where"]].assign(model=[_name(run) for run in frame["run"]], M=frame["M"])
    table["recomputes"] = ["yes" if each == "always" else "no" for each in frame["checkpoint"]]
    table["step (ms)"] = 1e3 * frame["step_s"]
    table = table.join(frame.filter(like=OF_OURS))
    # Of a step that recomputes: what the other one lacks.
    table[SHARE] = (1 - kept).where(frame["checkpoint"] == "always")
    return framed(ON_GPU, table, ABOUT)


def _name(run: Run) -> str:
    """The model, and its number format if that is not float32."""
    of, given = run.model, run.spec.model_args
    half = of.endswith(":bfloat16")
    if half:
        of, given = given["of"], given["given"]
    name = "GPT" if "V" in given else model_name(of)
    if "variant" in given:
        name = "ConvNeXt-T"
    return f"{name}, bfloat16" if half else name
