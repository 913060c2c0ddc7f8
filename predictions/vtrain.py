"""Fit the profile a100 to vTrain's iterations of hidden size 1024 without a pipeline; predict all.

    .venv/bin/python -m predictions.vtrain fit       # writes repro/costs/devices/a100.json
    .venv/bin/python -m predictions.vtrain predict   # writes predictions/<today>-vtrain.json

Source: Bang et al., vTrain, MICRO 2024, arXiv:2312.12391; github VIA-Research/vTrain, 1,440
iterations of Megatron-LM on 2 to 8 A100 GPUs.
"""

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import date
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import least_squares

from repro.costs import device as devices
from repro.costs.device import Device
from repro.harness.predict import Roofline, predict
from repro.harness.spec import RunSpec
from repro.models import build
from repro.paper.numbers import Iteration, vtrain

HOME = Path(__file__).parent
DEVICE = "a100"
V = 51200  # words; Megatron-LM pads its vocabulary to a multiple of 128 T
# Fields of the profile that are fitted: a fraction of a peak, or an amount.
RATES = ("matmul_flops", "bytes_per_second", "link_bytes_per_second")
AMOUNTS = ("product_half", "elementwise_half", "norm_half", "host_s", "link_latency_s", "setup_s")


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


def with_numbers(device: Device, values: Sequence[float]) -> Device:
    """The device with these values of the fitted fields, in order."""
    update: dict[str, Any] = {}
    for name, value in zip((*RATES, *AMOUNTS), values, strict=True):
        field = "attainable" if name in RATES else "value"
        update[name] = getattr(device, name).model_copy(update={field: float(value)})
    return device.model_copy(update=update)


def _numbers(device: Device) -> list[float]:
    rates = [getattr(device, name).attainable for name in RATES]
    return rates + [getattr(device, name).value for name in AMOUNTS]


def fit(device: Device, rows: Sequence[Iteration]) -> Device:
    """The fields that make the logarithms of steps fit best, where large errors count less."""
    real = np.log([row.step_s for row in rows])

    def errors(logs: Iterable[float]) -> Any:
        tried = with_numbers(device, np.exp([*logs]).tolist())
        _source.cache_clear()
        return np.log([step_s(row, tried) for row in rows]) - real

    # No rate is above its peak.
    bounds = -np.inf, [0.0] * len(RATES) + [np.inf] * len(AMOUNTS)
    start = np.log(_numbers(device))
    found = least_squares(errors, start, bounds=bounds, loss="soft_l1", f_scale=0.05)
    return with_numbers(device, [float(f"{value:.4g}") for value in np.exp(found.x)])


def main(verb: str) -> None:
    """Fit the profile, or write the predictions of all rows."""
    device, rows = devices.load(DEVICE), vtrain()
    if verb == "fit":
        # The simplest setting alone; all others are predicted.
        fitted = fit(device, [row for row in rows if row.hidden == 1024 and row.pipeline == 1])
        fitted.save(HOME.parent / f"repro/costs/devices/{DEVICE}.json")
        return
    found: Mapping[str, Any] = {
        "date": f"{date.today():%Y-%m-%d}",
        "fidelity": "simulated",
        "device": DEVICE,
        "step_s": [round(step_s(row, device), 6) for row in rows],
    }
    path = HOME / f"{found['date']}-vtrain.json"
    with path.open("x", encoding="utf-8") as file:
        file.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
