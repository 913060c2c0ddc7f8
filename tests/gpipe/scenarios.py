"""What the processes of `test_pipeline.py` run; at module level so that they can import it."""

import socket
import time

import torch
import torch.distributed as dist
from torch import Tensor, nn

from repro.gpipe import LinkSpeed, Pipeline, Whole
from repro.gpipe.comm.control_channel import Wire

N, WIDTH, STEPS = 10, 6, 3
CASES = [
    (schedule, checkpoint, M)
    for schedule in ("gpipe", "gpipe-late", "1f1b")
    for checkpoint in ("always", "except_last", "never")
    for M in (1, 4)
]


class Fork(nn.Module):
    """One tensor -> a nested value with a skip, an integer and a no-grad member."""

    def forward(self, x: Tensor) -> tuple:
        return x, {"skip": [x], "ids": (x.detach() > 0).long(), "mask": x.detach() > 0}


class Middle(nn.Module):
    """Works on the first member and passes the rest along."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, value: tuple) -> tuple:
        return self.linear(value[0]).tanh() * value[1]["mask"], value[1]


class Join(nn.Module):
    """The nested value -> one tensor."""

    def forward(self, value: tuple) -> Tensor:
        return value[0] + value[1]["skip"][0] * value[1]["ids"]


def nested() -> list:
    """Deterministic layers with nested boundaries, an in-place layer and one without parameters."""
    return [
        lambda: nn.Linear(WIDTH, WIDTH),
        Fork,
        Middle,
        Middle,
        Join,
        lambda: nn.ReLU(inplace=True),
        head,
    ]


def noisy() -> list:
    """Dropout and batch norm."""
    return [
        head,
        lambda: nn.Dropout(0.5),
        lambda: nn.BatchNorm1d(WIDTH),
        head,
        lambda: nn.Dropout(0.2),
        head,
    ]


def head() -> nn.Module:
    """The factory of a plain layer."""
    return nn.Linear(WIDTH, WIDTH)


def batch() -> tuple[Tensor, Tensor]:
    """One mini-batch of N examples that M = 4 cuts into unequal parts."""
    generator = torch.Generator().manual_seed(3)
    return torch.randn(N, WIDTH, generator=generator), torch.randn(N, WIDTH, generator=generator)


def train(
    model: str,
    stages: int,
    micro_batches: int,
    checkpoint: str,
    schedule: str,
    device: str | None = "cpu",
    transport: str = "auto",
    throttle: LinkSpeed | None = None,
) -> dict:
    """A few steps; loss, evaluation and this stage's weights and last gradients."""
    layers = {"nested": nested, "noisy": noisy}[model]()
    how: dict = {
        "checkpoint": checkpoint,
        "schedule": schedule,
        "transport": transport,
        "throttle": throttle,
    }
    pipe = Pipeline(layers, stages, micro_batches, **how, device=device, seed=7)
    optimizer = torch.optim.SGD(list(pipe.parameters()), lr=0.5, momentum=0.9)
    inputs, targets = batch()
    losses = [
        pipe.train_step(inputs, targets, nn.functional.mse_loss, optimizer, trace=step == 2)
        for step in range(STEPS)
    ]
    evaluation = pipe.evaluate(inputs, targets, nn.functional.mse_loss)
    pipe.close()
    return {
        "loss": [r.loss for r in losses],
        "timeline": losses[-1].timeline,
        "evaluation": evaluation,
        "weights": {k: v.cpu().clone() for k, v in pipe.module.state_dict().items()},
        "gradients": {
            k: p.grad.cpu().clone() for k, p in pipe.module.named_parameters() if p.grad is not None
        },
    }


def everything() -> dict:
    """All cases for K = 1, 2, 3 on the ranks of one launch, and a few that stand alone."""
    rank = dist.get_rank()
    results = {}
    for model in ("nested", "noisy"):
        for schedule, checkpoint, M in CASES:
            for K in (1, 2, 3):
                if rank < K and not (K == 1 and rank):
                    results[model, schedule, checkpoint, M, K] = train(
                        model, K, M, checkpoint, schedule
                    )
    results["memory"] = peaks()
    results["whole"] = whole()
    results["time"] = by_time()
    results["refused"] = refusal()
    if rank < 2:
        results["clock"] = foreign_clock()
    return results


def peaks() -> dict:
    """Peak bytes with and without re-materialization."""
    layers = [lambda: nn.Sequential(*(nn.Linear(64, 64) for _ in range(8))) for _ in range(3)]
    found = {}
    for checkpoint in ("always", "never"):
        pipe = Pipeline(layers, 3, 8, checkpoint=checkpoint, device="cpu")
        x = torch.ones(512, 64)
        pipe.train_step(x, x, nn.functional.mse_loss)
        found[checkpoint] = pipe.measure_memory(x, x, nn.functional.mse_loss)
        pipe.close()
    return found


class Masked(nn.Module):
    """Takes (x, mask) with a mask that has nothing to do with the batch."""

    def forward(self, value: tuple) -> Tensor:
        return value[0] @ value[1]


def whole() -> float:
    """A member that every micro-batch gets uncut."""
    pipe = Pipeline([Masked, head, head], 3, 5, device="cpu")
    x, y = batch()
    loss = pipe.train_step((x, Whole(torch.eye(WIDTH))), y, nn.functional.mse_loss).loss
    pipe.close()
    return loss


def by_time() -> tuple:
    """A cut by measured time: the same on every rank."""
    layers = [
        lambda: nn.Linear(8, 900),
        lambda: nn.Linear(900, 900),
        lambda: nn.Linear(900, 900),
        lambda: nn.Linear(900, 8),
    ]
    pipe = Pipeline(layers, 3, 2, balance="time", sample=torch.ones(64, 8), device="cpu")
    pipe.close()
    return pipe.balance, pipe.cut.imbalance


def refusal() -> str:
    """What a rank says when the first stage's inputs are no good."""
    pipe = Pipeline([head, head, head], 3, 4, device="cpu")
    x, y = batch()
    try:
        pipe.train_step(x[:3], y[:3], nn.functional.mse_loss)
    except ValueError as error:
        return str(error)
    finally:
        pipe.close()
    return "accepted"


def on_gpus(stages: int) -> dict:
    """One case on GPUs, as many as there are, and the peak memory of each stage."""
    results = train("nested", stages, 4, "always", "gpipe", device=None)
    pipe = Pipeline([head] * stages, stages, 2)
    x, y = batch()
    results["peaks"] = pipe.measure_memory(x, y, nn.functional.mse_loss)
    results["device"] = pipe.device.type
    pipe.close()
    del results["evaluation"]  # its outputs lie on a GPU of another process
    return results


def foreign_clock() -> float:
    """The offset that the last stage finds when it believes that it is on another host."""
    if dist.get_rank():
        socket.gethostname = lambda: "elsewhere"
        here = time.perf_counter
        time.perf_counter = lambda: here() - 1000.0
    return Wire(2, dist.get_rank()).clock_offset()


def fail(rank: int) -> None:
    """Raise on one stage."""
    if dist.get_rank() == rank:
        raise RuntimeError(f"stage {rank} cannot")
    dist.barrier()


class Counting(nn.Module):
    """Passes a constant that changes from call to call."""

    calls = 0

    def forward(self, x: Tensor) -> tuple:
        self.calls += 1
        return x, float(self.calls)


class First(nn.Module):
    """The first member, and in `log` whatever came with it."""

    def forward(self, value: tuple) -> Tensor:
        return value[0] + 0.0


def steps(layers: list, change=None, inputs: Tensor | None = None) -> list[float]:
    """The losses of two steps of two stages."""
    pipe = Pipeline(layers, 2, 2, device="cpu", balance=[1, len(layers) - 1])
    optimizer = torch.optim.SGD(pipe.parameters(), lr=0.1) if list(pipe.parameters()) else None
    x, y = batch()
    losses = []
    for step in range(3):
        if change is not None and step == 1:
            change(pipe)
        losses.append(
            pipe.train_step(
                x if inputs is None else inputs, y, nn.functional.mse_loss, optimizer
            ).loss
        )
    pipe.close()
    return losses


def thaw(pipe: Pipeline) -> None:
    """Unfreeze the first stage."""
    for parameter in pipe.parameters():
        parameter.requires_grad_(True)


def frozen_head() -> nn.Module:
    """A layer whose parameters require no gradient at first."""
    return head().requires_grad_(False)


def masks() -> tuple[int, list[float]]:
    """A fresh mask of the same shape in each step teaches nothing new."""
    pipe = Pipeline([Masked, head], 2, 2, device="cpu")
    x, y = batch()
    losses = [
        pipe.train_step((x, Whole(torch.eye(WIDTH) * scale)), y, nn.functional.mse_loss).loss
        for scale in (1.0, 2.0)
    ]
    pipe.close()
    return len(pipe.engine._signatures or ()), losses


SHARED = nn.Linear(WIDTH, WIDTH)


def hand_out() -> nn.Module:
    """A factory that makes nothing new."""
    return SHARED


def constants() -> list[float]:
    """A layer whose constants change."""
    return steps([Counting, First, head])


def closed() -> str:
    """What a step of a pipeline says that was closed, twice."""
    pipe = Pipeline([head, head], 2, 2, device="cpu", transport="gloo")
    pipe.train_step(*batch(), nn.functional.mse_loss)
    pipe.close()
    pipe.close()
    try:
        pipe.train_step(*batch(), nn.functional.mse_loss)
    except ValueError as error:
        return str(error)
    return "accepted"


def unlike() -> list[str]:
    """What is said where ranks disagree: each would otherwise train another model, or hang."""
    cases = {
        "balance": ([1, 2], [2, 1]),
        "transport": ("auto", "gloo"),
        "checkpoint": ("always", "never"),
    }
    said = []
    for name, values in cases.items():
        how: dict = {name: values[dist.get_rank()]}
        try:
            Pipeline([head] * 3, 2, 2, device="cpu", **how)
        except ValueError as error:
            said.append(str(error))
    return said


def other_stages(values: list[int]) -> str:
    """What is said where ranks disagree about K."""
    try:
        Pipeline([head] * 3, values[dist.get_rank()], 2, device="cpu")
    except ValueError as error:
        return str(error)
    return "accepted"


def odd() -> dict:
    """What people do that few think of, on two stages."""
    x, _ = batch()
    # no dense tensor, and it crosses the boundary as it is
    wide = torch.stack([x, x], dim=-1)[..., 0]
    try:
        Pipeline([hand_out, hand_out], 2, 2, device="cpu")
        shared = "accepted"
    except ValueError as error:
        shared = str(error)
    return {
        "strides": steps([Fork, Join, head], inputs=wide),
        "dense": steps([Fork, Join, head]),
        "thaw": steps([frozen_head, head], thaw if dist.get_rank() == 0 else None),
        "masks": masks(),
        "closed": closed(),
        "unlike": unlike(),
        "shared": shared,
    }
