"""What is refused on every rank, in one line."""

import gc
import math
import time
from collections.abc import Callable
from itertools import count
from typing import Any

import pytest
import torch
import torch.distributed as dist
from examples import WIDTH, Around, M, batch, linear
from torch import Tensor, nn

from repro.gpipe import Pipeline, StageError, launch

MSE = nn.functional.mse_loss


def said(call: Callable[[], object]) -> str:
    try:
        call()
    except ValueError as error:
        return str(error)
    return "accepted"


def flickering() -> nn.Module:
    """Detaches its output in every other call."""
    calls = count()  # no number, which a step puts back

    def run(module: nn.Module, x: Tensor) -> Tensor:
        y = module(x)
        return y.detach() if next(calls) % 2 else y

    return Around(linear(), run)


def rows() -> nn.Module:
    """A learnt row of a table for each example."""
    table = nn.Embedding(2, WIDTH, sparse=True)
    return Around(table, lambda m, x: x + m((x[:, 0] > 0).long()))


def too_few() -> str:
    """A step that the first rank refuses before the last one asks for it."""
    pipe = Pipeline([linear(), linear()], 2, M, device="cpu")
    time.sleep(0.3 * dist.get_rank())
    x, y = batch()
    return said(lambda: pipe.train_step(x[:1], y[:1], MSE))


OTHERS: dict[str, Callable[[nn.Sequential], object]] = {
    "append": lambda module: module.append(nn.Tanh()),
    "rename": lambda module: module.add_module("other", module.pop(0)),
}


def refusals() -> dict[str, str]:
    """What each of two ranks says; the same Pipelines go on where they can."""
    rank, (x, y), found = dist.get_rank(), batch(), {"too few": too_few()}
    gc.collect()  # its Pipeline; the refusal arrives nevertheless

    def pipeline(**options: Any) -> Pipeline:
        layers = [linear(), nn.Tanh(), linear()]
        return Pipeline(layers, 2, M, **({"device": "cpu", "balance": [2, 1]} | options))

    pipe = pipeline()
    optimizer = torch.optim.SGD(pipe.parameters(), lr=0.1)
    for name, call in {
        "no inputs": lambda: pipe.train_step(None, y, MSE),
        "optimizer here only": lambda: pipe.train_step(x, y, MSE, optimizer if rank else None),
        "limits differ": lambda: pipe.clip_grad_norm_(1.0 + rank),
        "the same limit": lambda: pipe.clip_grad_norm_(math.nan),
    }.items():
        found[name] = said(call)
    pipe.train_step(x, y, MSE, optimizer)
    found["clips late"] = said(lambda: pipe.clip_grad_norm_(1.0))
    scaler = pipe.grad_scaler(init_scale=8.0 + rank)
    found["scales differ"] = said(lambda: pipe.train_step(x, y, MSE, optimizer, scaler=scaler))
    before = pipe.train_step(x, y, MSE).loss
    for case, change in OTHERS.items():
        layers = dict(pipe.module.named_children())
        if pipe.is_first:
            change(pipe.module)
        found[f"step, {case}"] = said(lambda: pipe.train_step(x, y, MSE))
        pipe.module._modules.clear()
        pipe.module._modules.update(layers)
        assert pipe.train_step(x, y, MSE).loss == before
    pipe.close()
    found["transport"] = said(lambda: pipeline(transport="tcp"))
    found["unlike"] = said(lambda: pipeline(seed=rank))
    layers = nn.Sequential(flickering(), linear())
    flickers = Pipeline(layers, 2, 2, balance=[1, 1], device="cpu")
    found["flickers"] = said(lambda: flickers.train_step(x[:4], y[:4], MSE))
    found["weights of another stage"] = said(layers.state_dict)
    return found


def sparse() -> None:
    Pipeline([rows], 1, M, replicas=2, device="cpu").train_step(*batch(), MSE)


REFUSALS = {
    "too few": f"micro_batches={M}: the mini-batch has only 1 examples",
    "no inputs": "inputs: holds no tensor that can be cut, but NoneType",
    "optimizer here only": "optimizer: some ranks got one and others",
    "limits differ": "clip_grad_norm_: max_norm=2.0 on rank 1, but 1.0 on rank 0",
    "the same limit": "accepted",
    "clips late": "train_step has updated the weights already",
    "scales differ": "scaler: scale=9.0 on rank 1, but 8.0 on rank 0",
    "transport": "transport='tcp': choose one of auto, shm, gloo",
    "unlike": "seed=1 on rank 1, but 0 on rank 0",
    "weights of another stage": ", which trains it; use pipe.predict or pipe.evaluate in place",
    "flickers": "a layer must do the same both times",
    **dict.fromkeys(("step, append", "step, rename"), "pipe.module: its layers are "),
}


def test_what_is_refused_is_refused_on_every_rank_in_one_line():
    for found in launch(refusals, stages=2):
        for what, words in REFUSALS.items():
            assert words in found[what]
            assert "\n" not in found[what]


def test_a_sparse_gradient_of_a_replica_ends_all():
    words = "reshape is not implemented for sparse tensors"
    with pytest.raises(StageError, match=words):
        launch(sparse, stages=2)
