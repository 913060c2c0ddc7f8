"""Fit the profile a100 to vTrain's iterations of hidden size 1024 without a pipeline; predict all.

    .venv/bin/python -m predictions.vtrain fit       # writes repro/costs/devices/a100.json
    .venv/bin/python -m predictions.vtrain predict   # writes predictions/<today>-vtrain.json

Source: Bang et al., vTrain, MICRO 2024, arXiv:2312.12391; github VIA-Research/vTrain, 1,440
iterations of Megatron-LM on 2 to 8 A100 GPUs.
"""

import json
import sys
from collections.abc import Sequence
from datetime import date
from functools import cache
from pathlib import Path
from typing import Any

from predictions import curve
from predictions.curve import where_free
from repro.costs import device as devices
from repro.costs.device import Amount, Device
from repro.harness.predict import Roofline, predict
from repro.harness.spec import RunSpec
from repro.models import build
from repro.paper.numbers import Iteration, vtrain

HOME = Path(__file__).parent
DEVICE = "a100"
V = 51200  # words; Megatron-LM pads its vocabulary to a multiple of 128 T
_RATES = ("matmul_flops", "bytes_per_second", "link_bytes_per_second")
# Way of predicting -> fields of the profile that are fitted: the profile's own; those of a roofline
# whose rates are constant and whose operators take a launch each; and one rate alone, by which
# FLOPs take all of the time.
FITTED = {
    "step_s": (
        *_RATES,
        *("product_half", "elementwise_half", "norm_half"),
        *("host_s", "link_latency_s", "setup_s"),
    ),
    "roofline_s": (*_RATES, "launch_s", "link_latency_s", "setup_s"),
    "flops_s": ("matmul_flops",),
}


def spec_of(row: Iteration) -> RunSpec:
    """The run of one iteration; Megatron-LM puts as many blocks on each stage."""
    K, blocks = row.pipeline, row.layers // row.pipeline
    counts = [blocks] * K
    counts[0], counts[-1] = counts[0] + 1, counts[-1] + 1  # embedding and softmax
    args = {"L": row.layers, "d": row.hidden, "H": 4 * row.hidden, "heads": row.heads}
    return RunSpec(
        model="transformer",
        model_args=args | {"V": V, "T": row.sequence},
        K=K,
        M=row.batch // row.data // row.micro_batch,
        N=row.batch,
        D=row.data,
        tensor_parallel=row.tensor if row.tensor > 1 else None,
        schedule="1f1b",
        checkpoint="never",
        optimizer="adam",
        balance=tuple(counts) if K > 1 else (row.layers + 2,),
        fidelity="simulated",
        profile=DEVICE,
    )


def step_s(row: Iteration, device: Device) -> float:
    """The predicted iteration, in seconds."""
    spec = spec_of(row)
    return predict(spec, _source(row.layers, row.hidden, row.tensor, device)).step_s


@cache
def _counted(layers: int, hidden: int, parts: int) -> Roofline:
    args = {"L": layers, "d": hidden, "H": 4 * hidden, "heads": 16, "V": V}
    return Roofline(devices.load(DEVICE), build("transformer", **args), "adam", parts=parts)


@cache
def _source(layers: int, hidden: int, parts: int, device: Device) -> Roofline:
    """Layers are counted once, and timed once for each device."""
    return _counted(layers, hidden, parts).changed(device)


def without_curves(device: Device, fitted: Sequence[str]) -> Device:
    """The device where nothing costs time but what is fitted."""
    start = {"launch_s": 1e-5, "link_latency_s": 1e-5, "setup_s": 1e-3}
    kept: dict[str, Any] = {name: getattr(device, name) for name in fitted}
    for name in start.keys() & set(fitted):
        kept[name] = Amount(value=start[name], source="where the fit begins")
    return where_free(device).model_copy(update=kept)


def fit(device: Device, fitted: Sequence[str], rows: Sequence[Iteration]) -> Device:
    """The fields that make the logarithms of steps fit best, where large errors count less."""

    def predicted(tried: Device) -> list[float]:
        _source.cache_clear()
        return [step_s(row, tried) for row in rows]

    return curve.fit(device, fitted, predicted, [row.step_s for row in rows], 0.05)


def main(verb: str) -> None:
    """Fit the profile, or write the predictions of all rows."""
    device, rows = devices.load(DEVICE), vtrain()
    # The simplest setting alone; all others are predicted.
    simple = [row for row in rows if row.hidden == 1024 and row.pipeline == 1]
    if verb == "fit":
        fitted = fit(device, FITTED["step_s"], simple)
        fitted.save(HOME.parent / f"repro/costs/devices/{DEVICE}.json")
        return
    found: dict[str, Any] = {"date": f"{date.today():%Y-%m-%d}", "fidelity": "simulated"}
    for way, fitted in FITTED.items():
        # The profile is fitted already.
        of_way = device if way == "step_s" else without_curves(device, fitted)
        of_way = of_way if way == "step_s" else fit(of_way, fitted, simple)
        found[way] = [round(step_s(row, of_way), 6) for row in rows]
    path = HOME / f"{found['date']}-vtrain.json"
    with path.open("x", encoding="utf-8") as file:
        file.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
