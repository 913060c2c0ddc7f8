#!/usr/bin/env bash
# torch 2.15.0: F.mse_loss of DTensors has gradients that are too large by the number of ranks. So have huber_loss, smooth_l1_loss,
# soft_margin_loss and binary_cross_entropy. The loss is right, as the mean of the means of all ranks. But each rank's gradient is
# that of its own mean, and nothing divides it by the number of ranks. The same mean written as (a - b).square().mean() is right, and
# so are l1_loss, cross_entropy and binary_cross_entropy_with_logits. Nothing warns. If the ranks' parts differ in size, mse_loss
# itself is wrong too, since the means of all ranks count alike; .mean() is right.
# Seen in a linear layer whose weights are replicated and whose batch of 12 is sharded: the gradient is 2 times that without DTensors
# on 2 ranks, and 3 times on 3. With a batch of 13 the loss is 2.7 % and 7.0 % too small.
# Fails if that changes.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install -q uv==0.13.8
"$work/venv/bin/uv" pip install -q --python "$work/venv/bin/python" torch==2.15.0 numpy==2.4.6
cd "$work"
cat >losses.py <<'PY'
import torch
import torch.distributed as dist
from torch import Tensor, multiprocessing, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import Shard, distribute_module, distribute_tensor
from torch.nn import functional as F

RIGHT = {
    "(x - y).square().mean()": lambda x, y: (x - y).square().mean(),
    "l1_loss": F.l1_loss,
    "cross_entropy": lambda x, y: F.cross_entropy(x, y.softmax(1)),
    "binary_cross_entropy_with_logits": lambda x, y: F.binary_cross_entropy_with_logits(x, y.sigmoid()),
}
WRONG = {
    "mse_loss": F.mse_loss,
    "huber_loss": F.huber_loss,
    "smooth_l1_loss": F.smooth_l1_loss,
    "soft_margin_loss": lambda x, y: F.soft_margin_loss(x, y.sign()),
    "binary_cross_entropy": lambda x, y: F.binary_cross_entropy(x.sigmoid(), y.sigmoid()),
}


def step(loss_fn, examples: int, mesh: DeviceMesh | None = None) -> tuple[Tensor, Tensor]:
    """The loss, and the gradient of the weights."""
    torch.manual_seed(0)
    layer = nn.Linear(5, 3, dtype=torch.float64)
    x, y = torch.randn(examples, 5).double(), torch.randn(examples, 3).double()
    if mesh is not None:
        distribute_module(layer, mesh)
        x, y = (distribute_tensor(t, mesh, [Shard(0)]) for t in (x, y))
    loss = loss_fn(layer(x), y)
    loss.backward()
    found = loss.detach(), layer.weight.grad
    return found if mesh is None else tuple(t.full_tensor() for t in found)


def run(rank: int, ranks: int) -> None:
    store = dist.FileStore(f"store{ranks}", ranks)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks)
    mesh = init_device_mesh("cpu", (ranks,))
    for name, loss_fn in (RIGHT | WRONG).items():
        (loss, gradient), found = step(loss_fn, 12), step(loss_fn, 12, mesh)
        factor = (found[1] / gradient).mean().item()
        if rank == 0:
            print(f"{name} on {ranks} ranks: {factor:.2f} times the gradient", flush=True)
        torch.testing.assert_close(found, (loss, gradient * (1 if name in RIGHT else ranks)))
    errors = {}
    for name in ("(x - y).square().mean()", "mse_loss"):
        loss_fn = (RIGHT | WRONG)[name]
        errors[name] = (step(loss_fn, 13, mesh)[0] / step(loss_fn, 13)[0]).item() - 1
    if rank == 0:
        print(f"losses of 13 examples on {ranks} ranks are off by", errors, flush=True)
    right, wrong = errors.values()
    assert abs(right) < 1e-9 and abs(wrong) > 0.001
    dist.destroy_process_group()


if __name__ == "__main__":
    for ranks in (2, 3):
        multiprocessing.spawn(run, (ranks,), nprocs=ranks)
PY
"$work/venv/bin/python" -W error::UserWarning losses.py
