"""What the tests of the asynchronous pipeline launch, and the same training in one process."""

from functools import partial
from typing import Any

import torch
from fakes import examined, setup
from torch import Tensor, nn

from repro.gpipe.core.layers import build
from repro.gpipe.core.microbatch import split
from repro.methods.checks import Check
from repro.methods.method import Setup
from repro.methods.pipedream import PipeDream
from repro.methods.probe import probe

SGD = partial(torch.optim.SGD, lr=0.1, momentum=0.9)
N, STEPS = 10, 5
CUTS = {1: (4,), 2: (2, 2), 3: (1, 1, 2)}
Cases = list[tuple[int, str, str]]  # M, checkpoint, transport
QUIET = [nn.Flatten(), partial(nn.Linear, 192, 16), nn.Tanh(), partial(nn.Linear, 16, 5)]


def prepared(K: int, M: int, **changed: Any) -> Setup:
    settings: dict[str, Any] = {"layers": QUIET, "optimizer": SGD, "checkpoint": "never"}
    return setup(stages=K, micro_batches=M, balance=CUTS[K], **(settings | changed))


def mini_batch(step: int) -> tuple[Tensor, Tensor]:
    return probe().batch(N + (step == 1), step)  # one mini-batch is larger


def trained(K: int, M: int, checkpoint: str, transport: str = "auto") -> dict[str, Any]:
    """Losses of each step, and what there is after an evaluation."""
    method = PipeDream(prepared(K, M, checkpoint=checkpoint, transport=transport))
    losses = [method.train_step(*mini_batch(step)).loss for step in range(STEPS - 1)]
    counted = method.sent_bytes(*mini_batch(0))
    before = sum(method._links.sent_bytes().values())
    losses.append(method.train_step(*mini_batch(STEPS - 1)).loss)
    sent = method.gather(sum(method._links.sent_bytes().values()) - before)
    staleness, stashed = method.staleness(), method.stashed_bytes()
    evaluated = method.evaluate(*mini_batch(0)).loss
    weights: dict[str, Tensor] = {}
    for part in method.gather({n: p.detach() for n, p in method.module.named_parameters()}):
        weights |= part
    sizes = method.gather(sum(p.nbytes for p in method.module.parameters()))
    method.close()
    return {
        "losses": losses,
        "staleness": staleness,
        "stashed": stashed,
        "counted": counted,
        "sent": sent,
        "sizes": sizes,
        "evaluated": evaluated,
        "weights": weights,
    }


def one_process(K: int, M: int) -> tuple[list[float], dict[str, Tensor]]:
    """PipeDream by its definition: losses of each step, and the weights after all updates.

    Stage j of K uses for micro-batch t the weights after max(0, t - (K - 1 - j)) updates.
    """
    layers = [build(layer, n, 0, torch.device("cpu")) for n, layer in enumerate(QUIET)]
    model = nn.Sequential(*layers)
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


def of_two_stages(cases: Cases) -> tuple[list[dict[str, Any]], dict[str, Check]]:
    return [trained(2, *case) for case in cases], examined(PipeDream)


def of_three_stages(cases: Cases) -> list[dict[str, Any]]:
    return [trained(3, *case) for case in cases]
