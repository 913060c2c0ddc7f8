"""The asynchronous pipeline, held against its definition in one process."""

from functools import partial
from typing import Any

import pytest
import torch
from probed import probe, setup
from torch import Tensor, nn

from repro.gpipe import launch
from repro.gpipe.tree import split
from repro.methods.method import Setup
from repro.methods.pipedream import PipeDream

SGD = partial(torch.optim.SGD, lr=0.1, momentum=0.9)
N, STEPS = 10, 5
CUTS = {2: (2, 2), 3: (1, 1, 2)}
QUIET = [nn.Flatten(), partial(nn.Linear, 192, 16), nn.Tanh(), partial(nn.Linear, 16, 5)]
# M, transport. With M=1 stage 0 of three has more micro-batches in flight than a step.
CASES = [(4, "auto"), (1, "gloo")]


def prepared(K: int, M: int, **changed: Any) -> Setup:
    settings: dict[str, Any] = {"layers": QUIET, "optimizer": SGD}
    return setup(stages=K, micro_batches=M, balance=CUTS[K], **(settings | changed))


def mini_batch(step: int) -> tuple[Tensor, Tensor]:
    return probe().batch(N + (step == 1), step)  # one mini-batch is larger


def trained(K: int, M: int, transport: str) -> dict[str, Any]:
    """Losses of each step, and what there is after all updates."""
    method = PipeDream(prepared(K, M, transport=transport))
    found: dict[str, Any] = {"losses": []}
    for step in range(STEPS):
        before = sum(method._links.sent_bytes().values())
        found["losses"].append(method.train_step(*mini_batch(step)).loss)
    found["sent"] = method.gather(sum(method._links.sent_bytes().values()) - before)
    found["counted"] = method.sent_bytes(*mini_batch(0))
    found |= method.asynchrony()
    method._drain()
    found["weights"] = {}
    for part in method.gather({n: p.detach() for n, p in method.module.named_parameters()}):
        found["weights"] |= part
    method.close()
    return found


def of_all_cases(K: int) -> list[dict[str, Any]]:
    return [trained(K, *case) for case in CASES]


def one_process(K: int, M: int) -> tuple[list[float], dict[str, Tensor]]:
    """PipeDream by its definition: losses of each step, and the weights after all updates.

    Stage j of K uses for micro-batch t the weights after max(0, t - (K - 1 - j)) updates.
    """
    model = prepared(K, M).build_stage([4], 0)
    stage_of_layer = [j for j, count in enumerate(CUTS[K]) for _ in range(count)]
    lags = {name: K - 1 - stage_of_layer[int(name.split(".")[0])] for name in model.state_dict()}
    newest = dict(model.named_parameters())
    optimizer = SGD(newest.values())
    versions = [{name: p.detach().clone() for name, p in newest.items()}]
    losses, t = [], 0
    for step in range(STEPS):
        loss = 0.0
        data = mini_batch(step)
        for inputs, targets in zip(*(split(tree, M) for tree in data), strict=True):
            used = {
                name: versions[max(0, t - lag)][name].clone().requires_grad_()
                for name, lag in lags.items()
            }
            mean = probe().loss(torch.func.functional_call(model, used, (inputs,)), targets)
            mean.backward()
            for name, parameter in newest.items():
                parameter.grad = used[name].grad
            optimizer.step()
            versions.append({name: p.detach().clone() for name, p in newest.items()})
            loss += mean.item() * len(inputs) / len(data[0])
            t += 1
        losses.append(loss)
    return losses, versions[-1]


def compare(results: list[dict[str, Any]], M: int) -> None:
    """Results of all stages against the definition."""
    K = len(results)
    losses, weights = one_process(K, M)
    for result in results:
        assert result["losses"] == pytest.approx(losses, rel=1e-6)
        assert result["weights"].keys() == weights.keys()
        for name, weight in weights.items():
            torch.testing.assert_close(result["weights"][name], weight, rtol=1e-5, atol=1e-6)
        assert result["staleness"] == [K - 1 - j for j in range(K)]
        assert [sum(counts.values()) for counts in result["counted"]] == result["sent"]
        last = [False]
        assert ["activations" in counts for counts in result["counted"]] == [True] * (K - 1) + last


@pytest.mark.parametrize("K", CUTS)
def test_each_micro_batch_updates_with_the_weights_of_its_forward(K):
    found = launch(of_all_cases, K, stages=K)
    for case, (M, _) in enumerate(CASES):
        compare([results[case] for results in found], M)
