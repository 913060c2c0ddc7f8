"""Write a file of predictions: simulated steps on H100s that nobody has measured yet.

    .venv/bin/python -m predictions.make

Numbers come from `repro simulate`, their ranges from the recorded experiment `costs`. A file that
is there already is never written again: `tests/test_predictions.py` refuses changes to it.
"""

import json
import subprocess
import sys
from collections.abc import Mapping
from datetime import date
from pathlib import Path
from typing import Any

from experiments.table2.runs import AMOEBANET_N, KS, MS, TRANSFORMER_N
from repro.harness.error_bars import profile_error
from repro.harness.sizes import AMOEBANET, TRANSFORMER

HOME = Path(__file__).parent
DEVICE = "h100"
# What the numbers depend on: a file names the last commit that changed any of it.
COST_MODEL = ("repro/costs", "repro/simulate", "repro/models", "repro/gpipe", "repro/harness")
# What Table 2 measures at scale paper: model -> arguments and mini-batch.
MODELS: Mapping[str, tuple[dict[str, Any], int]] = {
    "amoebanet-d": (AMOEBANET["paper"], AMOEBANET_N["paper"]),
    "transformer": (TRANSFORMER["paper"], TRANSFORMER_N["paper"]),
}
# Link -> options of `repro simulate`, and where they are from.
LINKS: Mapping[str, tuple[list[str], str]] = {
    "nvlink": ([], "the profile's own link"),
    "pcie": (
        ["--link-gbps", "297.6", "--link-latency-us", "25"],
        "37.2 GB/s one way between two H100 SXM without peer access, through the host over PCI-E "
        "5.0 with 16 lanes (github.com/NVIDIA/nccl issue 1264); latency: assumption, about 24 "
        "microseconds between two A100 without peer access (github.com/LLMServe/DistServe issue 3)",
    ),
}
_MEASURE = (
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE=1 .venv/bin/repro run table2 --scale paper --yes --only "
    "fidelity=measured"
)
TESTED_BY = {"nvlink": _MEASURE, "pcie": f"NCCL_P2P_DISABLE=1 {_MEASURE}"}


def command(model: str, link: str) -> list[str]:
    """The arguments of `repro` that predict one model over one link, for all K and M."""
    args, N = MODELS[model]
    return [
        "simulate",
        model,
        "--model-args",
        *(f"{name}={value}" for name, value in args.items()),
        "--device",
        DEVICE,
        "--K",
        *map(str, KS),
        "--M",
        *map(str, MS),
        "--N",
        str(N),
        *LINKS[link][0],
        "--json",
    ]


def predicted(model: str, link: str) -> list[dict[str, Any]]:
    """One entry for each K and M."""
    ran = subprocess.run(
        [sys.executable, "-m", "repro", *command(model, link)],
        check=True,
        capture_output=True,
        text=True,
    )
    answer = json.loads(ran.stdout)
    base = next(point for point in answer["points"] if (point["K"], point["M"]) == (2, 1))
    return [
        {
            "model": model,
            "link": link,
            "K": point["K"],
            "M": point["M"],
            "N": answer["N"],
            "balance": point["balance"],
            "examples_per_s": _with_range(point["throughput"], answer["N"], point, "factor"),
            "over_K2_M1": None
            if point is base
            else _with_range(point["throughput"] / base["throughput"], answer["N"], point, "ratio"),
            "peak_bytes": max(point["peak_bytes"]),
            "fits": max(point["peak_bytes"]) <= answer["memory"],
        }
        for point in answer["points"]
    ]


def _with_range(value: float, N: int, point: dict[str, Any], of: str) -> dict[str, float]:
    """The value, and where nine of ten of its setting lie; `of` is a factor of an `ErrorBar`."""
    bar = profile_error(N / point["M"], point["K"])
    if bar is None:
        raise SystemExit("no ranges: `repro run costs --reference` records them")
    factor = getattr(bar, of)
    numbers = {"value": value, "low": value / factor, "high": value * factor}
    return {name: float(f"{number:.4g}") for name, number in numbers.items()}


def main() -> None:
    """Write the file of today."""
    path = HOME / f"{date.today().isoformat()}-{DEVICE}.json"
    if path.exists():
        raise SystemExit(f"{path}: is there already, and predictions are not changed")
    last_change = ["git", "log", "-1", "--format=%H", "--", *COST_MODEL]
    commit = subprocess.run(last_change, check=True, capture_output=True, text=True).stdout.strip()
    entries = [entry for model in MODELS for link in LINKS for entry in predicted(model, link)]
    content = {
        "date": date.today().isoformat(),
        "fidelity": "simulated",
        "device": DEVICE,
        "commit": commit,
        "commands": [" ".join([".venv/bin/repro", *command(m, n)]) for m in MODELS for n in LINKS],
        "links": {name: source for name, (_, source) in LINKS.items()},
        "tested_by": TESTED_BY,
        "ranges": "where nine of ten lie, by setting: plots/reference/costs_bars.csv",
        "predictions": entries,
    }
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    print(path)


if __name__ == "__main__":
    main()
