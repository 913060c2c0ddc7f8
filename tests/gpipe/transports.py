"""Functions of the stage processes of `test_transport.py`, which spawned processes can import."""

import os
import signal
from unittest import mock

import torch
import torch.distributed as dist
from examples import WIDTH, batch, linear, nested
from nccl_like import Deadlock, over
from torch import Tensor, nn

from repro.gpipe import Pipeline
from repro.gpipe.comm import shm
from repro.gpipe.comm.transport import Gloo, Shared

MSE = nn.functional.mse_loss
K = 3
TRANSPORTS = ("gloo", "shm", "nccl-like")
ORDERS = [("gpipe", "always", 4), ("gpipe-late", "except_last", 4), ("1f1b", "never", 4)]


def everything() -> dict:
    """Orders of messages, odd tensors, stages on different hosts, and a deadlock."""
    results: dict = {"posted": {}}
    for schedule, checkpoint, M in ORDERS:
        with over("nccl-like") as (_, connector):
            assert connector is not None
            train(K, M, checkpoint, schedule)
        results["posted"][schedule] = {key: made.posted for key, made in connector.made.items()}
    if dist.get_rank() < 2:
        results["odd"] = {transport: odd_tensors(transport, 2) for transport in TRANSPORTS}
        results["apart"] = {transport: on_two_hosts(transport) for transport in ("auto", "shm")}
        results["deadlock"] = deadlock()
    return results


def train(stages: int, M: int, checkpoint: str, schedule: str) -> None:
    """Two steps."""
    how: dict = {"checkpoint": checkpoint, "schedule": schedule}
    pipe = Pipeline(nested(), stages, M, **how, balance="uniform", device="cpu")
    for _ in range(2):
        pipe.train_step(*batch(), MSE)
    pipe.close()


def deadlock() -> dict | str:
    """What both ends of the only communicator are at when a step comes to a standstill."""
    with over("nccl-like, single", seconds=3.0) as (_, connector):
        try:
            train(2, 4, "always", "gpipe")
        except Deadlock as error:
            assert connector is not None
            return {"heads": [made.head for made in connector.made.values()], "why": str(error)}
    return "no deadlock"


def on_two_hosts(transport: str) -> str:
    """The kind of link between two stages that believe themselves on two hosts, or the refusal."""
    here = shm.host() + str(dist.get_rank())
    with mock.patch.object(shm, "host", return_value=here):
        try:
            pipe = Pipeline([linear, linear], 2, 2, transport=transport, device="cpu")
        except ValueError as error:
            return str(error)
    kinds = {type(link) for link in pipe.engine.links._all}
    loss = pipe.train_step(*batch(), MSE).loss
    pipe.close()
    assert loss > 0
    return {Gloo: "gloo", Shared: "shm"}[kinds.pop()] if len(kinds) == 1 else str(kinds)


def oddities(x: Tensor) -> dict[str, Tensor]:
    """Tensors made of x [n, WIDTH] whose memory is no plain array."""
    return {
        "gaps": x[:, ::2],
        "transposed": x.t().contiguous().t(),
        "expanded": x[:, :1].expand(-1, WIDTH),
        "expanded, transposed": x[:, :2].unsqueeze(0).expand(3, -1, -1).transpose(0, 1),
        "overlapping": x.unfold(1, 3, 1),
        "channels last": x.view(-1, 2, 3, 1).contiguous(memory_format=torch.channels_last),
        "empty": x[:, :0],
        "conjugate": torch.complex(x, x + 1).conj(),
        "negative": torch.complex(x, x + 1).conj().imag,
        "bfloat16": x.bfloat16(),
        "int16": (x * 10).detach().to(torch.int16),
        "bool": x.detach() > 0,
        "number": x.sum(),
        "large": x.repeat(200, 400)[:, None],
    }


class Odd(nn.Module):
    """x -> `oddities` of a linear layer's output, whose first dimension may be another one."""

    def __init__(self) -> None:
        super().__init__()
        # In float64, since Look's sum of all members cancels and strides decide the order in which
        # it is added up.
        self.linear = nn.Linear(WIDTH, WIDTH, dtype=torch.float64)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return oddities(self.linear(x.double()))


SEEN: list[dict] = []  # by the layers `Look` of this process; no state of a layer


class Look(nn.Module):
    """Records strides and bits of its input, and gives each member weights, so gradients differ."""

    def forward(self, value: dict[str, Tensor]) -> Tensor:
        device = value["gaps"].device
        SEEN.append(
            {
                name: (t.stride(), t.detach().resolve_conj().contiguous().cpu())
                for name, t in value.items()
            }
        )
        total = torch.zeros((), device=device)
        for t in value.values():
            weights = torch.linspace(-1, 1, t.numel(), device=device).view(t.shape)
            total = total + (t.real + t.imag if t.is_complex() else t).mul(weights).sum()
        return total.expand(len(value["gaps"]), 1)


def odd_tensors(transport: str, stages: int, device: str | None = "cpu") -> dict:
    """Two steps with odd tensors at the boundary: inputs of stage 1, and gradients of stage 0."""
    with over(transport) as (argument, _):
        pipe = Pipeline([Odd, Look], stages, 2, transport=argument, device=device, seed=5)
    x, y = batch()
    SEEN.clear()
    for _ in range(2):
        pipe.train_step(x, y[:, :1], MSE)
    pipe.close()
    return {
        "seen": [*SEEN],
        "gradients": {
            name: None if p.grad is None else p.grad.cpu()
            for name, p in pipe.module.named_parameters()
        },
    }


class Kill(nn.Module):
    """Ends its process at once."""

    def forward(self, x: Tensor) -> Tensor:
        os.kill(os.getpid(), signal.SIGKILL)
        return x


def killed() -> None:
    """A training whose second stage is killed, over shared memory."""
    pipe = Pipeline([linear, Kill], 2, 2, transport="shm", device="cpu", balance=[1, 1])
    pipe.train_step(*batch(), MSE)
