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
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path

import numpy as np
from scipy.stats import rankdata

from predictions import curve
from repro.costs import device as devices
from repro.costs import roofline
from repro.costs.counter import Counter
from repro.costs.device import Device
from repro.costs.roofline import LayerTime
from repro.costs.stage_memory import micro_batch
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
# All but matrix products, whose rates others measured, and the bandwidths of links.
FITTED = (
    *("bytes_per_second", "elementwise_half", "norm_half"),
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
    """Megatron-LM, which recomputes each block before its backward, on a device.

    Ranks are numbered over T first, then over D, and then over K.
    """

    def __init__(self, device: Device) -> None:
        self._device, self._links = device, device.links()
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
        forward = [blocks * (block.forward + 2 * sum_s)] * K
        backward = [forward[0] + blocks * (block.backward + 2 * sum_s)] * K
        update, parameters = [blocks * block.update] * K, [blocks * block.parameters] * K
        # The ends are not recomputed. An embedding is summed, and the gradient of the last block.
        forward[0] += embedding.forward + sum_s
        backward[0] += embedding.backward
        forward[-1] += softmax.forward + loss.forward
        backward[-1] += softmax.backward + loss.backward + sum_s
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
            replace(link, overlap=False),
            tuple(update),
            (self._device.setup_s.value,) * K,
        )
        step = simulate(_schedule(K, row.batch // D // row.micro_batch), costs)
        if D == 1:
            return step.step_time
        sums = [self._links.all_reduce_seconds(HALF * size, D, stride=T) for size in parameters]
        return step.step_time + exposed_seconds(step, sums)


def is_fitted(row: Iteration) -> bool:
    """Whether the profile is fitted to a row: those of the simplest setting."""
    return row.hidden == 1024 and row.K == 1


def fit(rows: Sequence[Iteration]) -> Device:
    """The profile a100, fitted to the iterations of hidden size 1024 without a pipeline."""
    simple = [row for row in rows if is_fitted(row)]

    def predict(tried: Device) -> list[float]:
        megatron = Megatron(tried)
        return [megatron.step_s(row) for row in simple]

    real = [row.step_s for row in simple]
    return curve.fit(devices.load("a100"), FITTED, predict, real, near=0.05)


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
    path = Path(__file__).with_name(f"{DATE}-vtrain-products.json")
    if verb == "predict":
        device = fit(single)
        megatron = Megatron(device)
        found = {"date": DATE, "fidelity": "simulated"} | {
            name: [round(megatron.step_s(row), 6) for row in rows]
            for name, rows in (("single_s", single), ("multi_s", multi))
        }
        with path.open("x", encoding="utf-8") as file:
            file.write(json.dumps(found) + "\n")
        text = json.dumps(device.model_dump(exclude_none=True), indent=2, allow_nan=False)
        (ROOT / "repro/costs/devices/a100.json").write_text(text + "\n", encoding="utf-8")
        return
    found = json.loads(path.read_text(encoding="utf-8"))
    of_single = [*zip(single, found["single_s"], strict=True)]
    of_multi = [*zip(multi, found["multi_s"], strict=True)]
    for title, steps in (
        ("not fitted, on one node", [(row, s) for row, s in of_single if not is_fitted(row)]),
        ("on several nodes", of_multi),
        ("on several nodes, T <= 8", [(row, s) for row, s in of_multi if row.T <= 8]),
    ):
        rows, seconds = zip(*steps, strict=True)
        print(title, {name: round(value, 3) for name, value in compare(rows, seconds).items()})


if __name__ == "__main__":
    main(*sys.argv[1:])
