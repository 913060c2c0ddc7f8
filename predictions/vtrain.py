"""Iterations of Megatron-LM that vTrain's authors measured on A100s: fit the profile a100, predict.

    .venv/bin/python -m predictions.vtrain predict SINGLE.csv MULTI.csv   # by the rule in README.md
    .venv/bin/python -m predictions.vtrain compare SINGLE.csv MULTI.csv

The files are data/ground_truth_single.csv and every second row of data/ground_truth_multi.csv of
github.com/VIA-Research/vTrain (Bang et al., MICRO 2024, arXiv:2312.12391).
"""

import csv
import json
import sys
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, partial
from math import log
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
from scipy.stats import rankdata

from predictions import curve
from repro.costs import device as devices
from repro.costs import roofline
from repro.costs.counter import Counter
from repro.costs.device import Device
from repro.costs.roofline import LayerTime
from repro.costs.stage_memory import micro_batch
from repro.gpipe.partition.layer_costs import LinkSpeed
from repro.gpipe.schedule.actions import Schedule
from repro.gpipe.schedule.kinds import make_schedule
from repro.gpipe.tree import Tree
from repro.harness.tasks.optimizers import OPTIMIZERS
from repro.models.attention import linear
from repro.models.transformer import Block, transformer
from repro.simulate.stage_costs import StageCosts
from repro.simulate.step import exposed_seconds, simulate

V = 51200  # words, as Megatron-LM pads them
HALF = 2  # bytes of a float16
DATE, ROOT = "2026-11-29", Path(__file__).parents[1]
WAYS = ("never", "always")  # whether blocks are recomputed
# Size of square matrices -> FLOP/s of torch.matmul in float16 on an A100, measured
# (github.com/zzc0721/torch-performance-test-data issue 108).
MATMUL = {2048: 214.73e12, 4096: 241.49e12}
FITTED = (
    *("matmul_flops", "bytes_per_second", "product_half", "elementwise_half", "norm_half"),
    *("host_s", "link_latency_s", "setup_s"),
)


@dataclass(frozen=True)
class Iteration:
    """An iteration of Megatron-LM."""

    batch: int  # of all replicas together
    micro_batch: int
    hidden: int
    heads: int
    layers: int
    sequence: int
    T: int  # devices that have parts of each matrix
    D: int
    K: int
    step_s: float  # measured


def read(path: str) -> list[Iteration]:
    """The rows of a file of vTrain; its multi-node file has one more column in front."""
    with Path(path).open(encoding="utf-8", newline="") as file:
        _, *rows = csv.reader(file)
    return [Iteration(*map(int, row[-10:-1]), step_s=float(row[-1]) / 1e3) for row in rows]


@cache
def _part(hidden: int, heads: int, sequence: int, T: int) -> tuple[Counter, tuple[Tree, Tree]]:
    """Embedding, a block and the softmax, as one of T devices has them; and a sequence."""

    def block() -> Block:
        part = Block(hidden, 4 * hidden, heads // T, dropout=0.1)
        part.query, part.key, part.value = (linear(hidden, hidden // T) for _ in range(3))
        part.expand, part.contract = (
            linear(hidden, 4 * hidden // T),
            linear(4 * hidden // T, hidden),
        )
        part.out = linear(hidden // T, hidden)
        return part

    model = transformer(1, hidden, 4 * hidden, heads, V // T, sequence)
    embedding, _, softmax = model.layers
    optimizer = partial(OPTIMIZERS["adam"], lr=0.01)
    return Counter([embedding, block, softmax], model.loss, optimizer), model.batch(1, 0)


@cache
def _schedule(K: int, M: int) -> Schedule:
    return make_schedule("1f1b", K, M, "never")


class Megatron:
    """Megatron-LM on a device. Ranks are numbered over T first, then over D, and then over K."""

    def __init__(self, device: Device, *, recompute: bool) -> None:
        self._device, self._links, self._recompute = device, device.links(), recompute
        self._times = cache(self._count)

    def _count(
        self, hidden: int, heads: int, sequence: int, T: int, n: int
    ) -> tuple[LayerTime, ...]:
        """Embedding, block, softmax and loss of a micro-batch of n sequences."""
        counter, one = _part(hidden, heads, sequence, T)
        inputs, targets = (micro_batch(each, n) for each in one)
        layers = roofline.layers(counter, inputs, self._device)
        return *layers, roofline.head(counter, inputs, targets, self._device)

    def step_s(self, row: Iteration) -> float:
        """The predicted iteration, in seconds."""
        T, D, K, blocks = row.T, row.D, row.K, row.layers // row.K
        layers = self._times(row.hidden, row.heads, row.sequence, T, row.micro_batch)
        embedding, block, softmax, loss = layers
        message = HALF * row.micro_batch * row.sequence * row.hidden
        sum_s = self._links.all_reduce_seconds(message, T)
        # Two sums in the forward of a block, and two in its backward.
        forward = [blocks * (block.forward.total + 2 * sum_s)] * K
        again = self._recompute * forward[0]
        backward = [blocks * (block.backward.total + 2 * sum_s) + again] * K
        update, parameters = [blocks * block.update] * K, [blocks * block.parameters] * K
        # The ends are not recomputed. An embedding is summed, and the gradient of the last block.
        forward[0] += embedding.forward.total + sum_s
        backward[0] += embedding.backward.total
        forward[-1] += softmax.forward.total + loss.forward.total
        backward[-1] += softmax.backward.total + loss.backward.total + sum_s
        for stage, end in ((0, embedding), (-1, softmax)):
            update[stage] += end.update
            parameters[stage] += end.parameters
        # Of a message each of the T devices sends its part, and computes nothing meanwhile.
        link = self._links.of_group(K, stride=T * D)
        costs = StageCosts(
            tuple(forward),
            (0.0,) * K,
            tuple(backward),
            (message / T,) * (K - 1),
            (message / T,) * (K - 1),
            LinkSpeed(link.latency, link.bytes_per_second, overlap=False),
            tuple(update),
            (self._device.setup_s.value,) * K,
        )
        step = simulate(_schedule(K, row.batch // D // row.micro_batch), costs)
        if D == 1:
            return step.step_time
        sums = [self._links.all_reduce_seconds(HALF * size, D, stride=T) for size in parameters]
        return step.step_time + exposed_seconds(step.timeline, sums)


def is_fitted(row: Iteration) -> bool:
    """Whether the profile is fitted to a row: those of the simplest setting."""
    return row.hidden == 1024 and row.K == 1


def fit(rows: Sequence[Iteration], *, recompute: bool) -> Device:
    """The profile a100, fitted to the iterations of hidden size 1024 without a pipeline."""
    simple = [row for row in rows if is_fitted(row)]

    def predict(tried: Device) -> list[float]:
        megatron = Megatron(tried, recompute=recompute)
        return [megatron.step_s(row) for row in simple]

    real = [row.step_s for row in simple]
    return curve.fit(devices.load("a100"), FITTED, predict, real, near=0.05)


def products_off(device: Device) -> float:
    """How far the rate of matrix products is from the measured ones: a mean of logarithms."""
    matmul, half = device.matmul_flops.value, device.product_half.value
    work = {2 * size**3: rate for size, rate in MATMUL.items()}
    return mean(abs(log(matmul * w / (w + half) / rate)) for w, rate in work.items())


def predict(single: Sequence[Iteration], multi: Sequence[Iteration]) -> tuple[Device, dict]:
    """The profile by the rule in README.md, and what it and the other fit predict."""
    fits = {way: fit(single, recompute=way == "always") for way in WAYS}
    chosen = min(WAYS, key=lambda way: products_off(fits[way]))
    found: dict[str, Any] = {"date": DATE, "fidelity": "simulated", "recomputation": chosen}
    for way, device in fits.items():
        as_fitted = Megatron(device, recompute=way == "always")
        recomputing = Megatron(device, recompute=True)
        found[way] = {
            "products_off": round(products_off(device), 4),
            "fitted": {name: getattr(device, name).value for name in FITTED},
            "single_s": [round(as_fitted.step_s(row), 6) for row in single],
            "multi_s": [round(recomputing.step_s(row), 4) for row in multi],
        }
    return fits[chosen], found


def compare(rows: Sequence[Iteration], predicted: Sequence[float]) -> dict[str, float]:
    """How far steps are off, as shares of the measured ones, and plans that follow from them."""
    real = [row.step_s for row in rows]
    off = np.abs(np.array(predicted) / real - 1)
    models = defaultdict[int, list[tuple[float, float]]](list)
    for row, seconds in zip(rows, predicted, strict=True):
        models[row.hidden].append((seconds, row.step_s))
    # Of each model, the plan that should be the fastest.
    slower = [min(plans)[1] / min(step for _, step in plans) - 1 for plans in models.values()]
    return {
        "steps": len(rows),
        "median": float(np.median(off)),
        "mean": float(off.mean()),
        "nine of ten": float(np.quantile(off, 0.9, method="inverted_cdf")),
        "rank correlation": float(np.corrcoef(rankdata(predicted), rankdata(real))[0, 1]),
        "slower than the fastest plan": max(slower),
    }


def main(verb: str, single_file: str, multi_file: str) -> None:
    """Fit the profile and write what it predicts, or compare that with what was measured."""
    single, multi = read(single_file), read(multi_file)
    path = Path(__file__).with_name(f"{DATE}-vtrain.json")
    if verb == "predict":
        device, found = predict(single, multi)
        text = json.dumps(device.model_dump(exclude_none=True), indent=2, allow_nan=False)
        (ROOT / "repro/costs/devices/a100.json").write_text(text + "\n", encoding="utf-8")
        with path.open("x", encoding="utf-8") as file:
            file.write(json.dumps(found) + "\n")
        return
    found = json.loads(path.read_text(encoding="utf-8"))
    not_fitted = [n for n, row in enumerate(single) if not is_fitted(row)]
    few = [n for n, row in enumerate(multi) if row.T <= 8]
    for way in WAYS:
        for name, rows, chosen in (
            ("single_s", single, not_fitted),
            ("multi_s", multi, range(len(multi))),
            ("multi_s", multi, few),
        ):
            numbers = compare([rows[n] for n in chosen], [found[way][name][n] for n in chosen])
            print(way, name, {key: round(value, 3) for key, value in numbers.items()})


if __name__ == "__main__":
    main(*sys.argv[1:])
