"""vTrain's iterations beside their predictions, which stand in a file that never changes."""

import json
from pathlib import Path
from typing import Any

import pandas as pd

from repro.harness.frame import Frame
from repro.paper.numbers import vtrain

PREDICTIONS = Path(__file__).parents[2] / "predictions/2026-11-26-vtrain.json"
# Column of predicted seconds -> what predicted them.
WAYS = {"step_s": "profile a100", "roofline_s": "roofline", "flops_s": "FLOPs alone"}
_SETTING = ["hidden", "layers", "tensor", "data", "pipeline", "micro_batch", "M"]
ITERATIONS = "costs_iterations"


def iterations() -> Frame:
    """A line for each iteration: its setting, seconds as measured, and as predicted in each way."""
    frame = pd.DataFrame([vars(row) for row in vtrain()]).rename(columns={"step_s": "real"})
    frame["M"] = frame["batch"] // frame["data"] // frame["micro_batch"]
    predicted = json.loads(PREDICTIONS.read_text(encoding="utf-8"))
    return frame.assign(**{way: predicted[way] for way in WAYS})


def errors() -> Frame:
    """A line for each part and way: median and 90 % of absolute errors, in percent.

    Of the step, and of its ratios over that of micro-batch 1 and over that without a pipeline.
    """
    frame = iterations()
    fitted = (frame["hidden"] == 1024) & (frame["pipeline"] == 1)
    parts = {"fitted": fitted, "predicted": ~fitted}
    for hidden, pipeline in ((1024, 2), (1024, 4), (2048, 1), (2048, 2), (2048, 4)):
        chosen = (frame["hidden"] == hidden) & (frame["pipeline"] == pipeline)
        parts[f"hidden size {hidden}, K={pipeline}"] = chosen
    lines = [_line(frame, part, chosen, way) for part, chosen in parts.items() for way in WAYS]
    return pd.DataFrame(lines)


def _line(frame: Frame, part: str, chosen: Any, way: str) -> dict[str, Any]:
    line: dict[str, Any] = {"part": part, "predicted by": WAYS[way]}
    line["iterations"] = int(chosen.sum())
    quotients = {
        "step": frame[way] / frame["real"],
        "over micro-batch 1": _over(frame, way, "micro_batch"),
        "over K=1": _over(frame, way, "pipeline"),
    }
    for what, quotient in quotients.items():
        off = 100 * (quotient[chosen].dropna() - 1).abs()
        line[f"{what} median"] = off.median()  # nan of nothing
        line[f"{what} 90 %"] = off.quantile(0.9)
        if what == "step":
            line["step mean"] = off.mean()
    return line


def _over(frame: Frame, way: str, changed: str) -> Any:
    """Of each iteration, its ratio to that with 1 of something, predicted over measured."""
    same = [name for name in _SETTING if name != changed]
    quotient = (frame[way] / frame["real"]).rename("base")
    of_base = frame[same].join(quotient)[frame[changed] == 1]
    joined = frame[same].merge(of_base, how="left", on=same).set_axis(frame.index)
    return (quotient / joined["base"]).where(frame[changed] != 1)
