"""GPipe on one page: section 2 of arXiv:1811.06965v5 in plain torch.distributed, to be read.

    torchrun --nproc-per-node 3 -m repro.gpipe.minimal

A model is cut into K stages, one for each process. A mini-batch is cut into M micro-batches. First
all of them go forward through the stages (F). Then their gradients come back (B). Then every stage
updates its weights once, so the update is that of the whole mini-batch. While stage 1 works on
micro-batch 0, stage 0 works on micro-batch 1:

    stage 2            F0 F1 F2 B2 B1 B0
    stage 1         F0 F1 F2       B2 B1 B0
    stage 0      F0 F1 F2             B2 B1 B0

Between F and B a stage keeps only the input of each micro-batch, and runs its layers again (R)
before B. So a stage holds all activations of one micro-batch instead of M, and a step takes about a
third longer.

`repro.gpipe.Pipeline` computes the same bits for such models. Beyond this page it has dropout that
is the same in F, in R and for every K, batch norm over the mini-batch, layers that hold state or
write to their inputs, nested values, other schedules and devices, a vote before each update, and
errors that end all processes.
"""

from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn

Loss = Callable[[Tensor, Tensor], Tensor]  # outputs, targets -> mean over the examples
_MOST_DIMENSIONS = 8


class GPipe:
    """The stage of a model that this process trains.

    Args:
        layers: all layers of the model, with the same weights in every process. Each maps one
            float32 tensor to another, whose first dimension is the example.
        micro_batches: M, at most the number of examples of a mini-batch.
        group: the first K processes, in which each has a stage; None for all.

    Attributes:
        stage: the layers of this process. An optimizer gets their parameters.
    """

    def __init__(
        self,
        layers: Sequence[nn.Module],
        micro_batches: int,
        group: dist.ProcessGroup | None = None,
    ) -> None:
        self.rank, self.K, self.M = dist.get_rank(), dist.get_world_size(group), micro_batches
        self.group = group
        self.is_first, self.is_last = self.rank == 0, self.rank == self.K - 1
        own = torch.arange(len(layers)).tensor_split(self.K)[self.rank]
        self.stage = nn.Sequential(*[layers[n] for n in own.tolist()])
        self._sending: list[tuple[dist.Work, Tensor]] = []

    def train_step(
        self, inputs: Tensor, targets: Tensor, loss_fn: Loss, optimizer: torch.optim.Optimizer
    ) -> float:
        """Train on one mini-batch, with the same arguments in every process; its mean loss."""
        optimizer.zero_grad()
        xs, ts = inputs.tensor_split(self.M), targets.tensor_split(self.M)
        shares = [len(x) / len(inputs) for x in xs]
        entered: list[Tensor] = []
        losses: list[Tensor] = []

        for i in range(self.M):  # F: keep only what entered
            # A copy: on some CPUs the last bits of a product depend on where a slice begins.
            entered.append(xs[i].clone() if self.is_first else self._receive(self.rank - 1))
            with torch.no_grad():
                outputs = self.stage(entered[i])
                if self.is_last:
                    losses.append(shares[i] * loss_fn(outputs, ts[i]))
                else:
                    self._send(outputs, self.rank + 1)

        for i in reversed(range(self.M)):
            # R: run the layers again, with a graph. The gradient may still be on its way.
            x = entered.pop().detach().requires_grad_(not self.is_first)
            outputs = self.stage(x)
            # B: add to the gradients of the weights, and send the gradient of what entered.
            if self.is_last:
                (shares[i] * loss_fn(outputs, ts[i])).backward()
            else:
                outputs.backward(self._receive(self.rank + 1))
            if x.grad is not None:
                self._send(x.grad, self.rank - 1)

        for sending, _ in self._sending:
            sending.wait()
        self._sending.clear()
        optimizer.step()  # the one synchronous update
        loss = torch.tensor(float(sum(losses)), dtype=torch.float64)
        dist.broadcast(loss, self.K - 1, group=self.group)
        return loss.item()

    def _send(self, tensor: Tensor, to: int) -> None:
        """Start to send a tensor behind its shape, and go on computing."""
        shape = torch.tensor([*tensor.shape, *[-1] * (_MOST_DIMENSIONS - tensor.ndim)])
        for message in (shape, tensor.contiguous()):
            work = dist.isend(message, to)
            assert work is not None
            self._sending.append((work, message))  # a message must live until it is sent

    def _receive(self, source: int) -> Tensor:
        shape = torch.empty(_MOST_DIMENSIONS, dtype=torch.int64)
        dist.recv(shape, source)
        tensor = torch.empty([n for n in shape.tolist() if n >= 0])
        dist.recv(tensor, source)
        return tensor


def main() -> None:
    """Train a small model, and print its losses."""
    dist.init_process_group("gloo")
    torch.manual_seed(0)  # every process makes the same model and data
    layers = [nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 4)]
    inputs, targets = torch.randn(64, 32), torch.randint(4, (64,))
    pipe = GPipe(layers, micro_batches=8)
    # In a group, since a stage without weights has none to give.
    optimizer = torch.optim.SGD([{"params": list(pipe.stage.parameters())}], lr=0.5)
    for step in range(10):
        loss = pipe.train_step(inputs, targets, nn.functional.cross_entropy, optimizer)
        if pipe.is_last:
            print(f"step {step}: loss {loss:.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
