"""Our own pipeline as a method, also with ZeRO-1."""

from collections import Counter
from collections.abc import Iterator
from importlib import import_module

import torch
from torch import Tensor

from repro.gpipe import EvaluationResult, Pipeline, StepResult
from repro.gpipe.core import memory
from repro.gpipe.core.topology import own_rank
from repro.gpipe.tree import Tree
from repro.methods.method import Method, Setup
from repro.methods.traffic import ring_share


class Own(Method):
    """`repro.gpipe.Pipeline` as a method."""

    def __init__(self, setup: Setup) -> None:
        config = setup.config
        super().__init__(setup, config.processes, own_rank(config))
        self._pipe = Pipeline(
            setup.layers,
            **config.arguments,
            device=setup.device,
            seed=setup.seed,
            sample=setup.sample,
            check_layers=False,  # these models combine no examples
        )
        self.module = self._pipe.module
        self.balance = self._pipe.balance
        self._weights_sent: dict[str, int] = {}  # in a step, by ZeRO-1
        self._optimizer = self._make_optimizer(setup)

    def _make_optimizer(self, setup: Setup) -> torch.optim.Optimizer | None:
        """The optimizer of this stage, by ZeRO-1 (arXiv:1910.02054) if the setup asks for it.

        Each replica of the stage then keeps the state of some parameters, updates these, and sends
        them to the others. Gradients are summed as without it, so the weights have the same bits.
        """
        parameters = list(self._pipe.parameters())
        if not setup.zero or setup.optimizer is None or not parameters:
            return setup.make_optimizer(parameters)
        # By name, since its import takes half a second.
        sharded = import_module("torch.distributed.optim").ZeroRedundancyOptimizer
        optimizer = sharded(parameters, setup.optimizer, process_group=setup.group)
        # The state that is in this process, so that its memory is counted.
        optimizer.state = optimizer.optim.state
        share = ring_share("broadcast", setup.config.replicas)
        self._weights_sent["broadcast"] = round(share * sum(p.nbytes for p in parameters))
        return optimizer

    def train_step(self, inputs: Tree, targets: Tree) -> StepResult:
        """See `Method`."""
        before = self._sent_so_far()
        result = self._pipe.train_step(
            inputs, targets, self._setup.loss, self._optimizer, trace=self._setup.trace
        )
        after = self._sent_so_far()
        self._sent = {kind: after[kind] - before[kind] for kind in after} | self._weights_sent
        return result

    def evaluate(self, inputs: Tree, targets: Tree) -> EvaluationResult:
        """See `Method`."""
        return self._pipe.evaluate(inputs, targets, self._setup.loss)

    def peak_bytes(self, inputs: Tree, targets: Tree, limit: int | None = None) -> list[int]:
        """Peak memory per stage, of its fullest copy or part; `limit` as in `memory.measure`."""
        given = inputs, targets, self._setup.loss, self._optimizer
        peaks = memory.measure(self._pipe, *given, limit)
        return [max(of_stage) for of_stage in zip(*self.gather(peaks), strict=True)]

    def _sent_so_far(self) -> dict[str, int]:
        """Bytes that this process has sent since the Pipeline was built, and for that."""
        engine = self._pipe.engine
        sent = Counter(engine.links.sent_bytes())
        if engine.replicas is not None:
            sent["all-reduce"] = engine.replicas.sent_bytes
        return sent

    def tensors(self, inputs: Tree, targets: Tree) -> Iterator[Tensor]:
        """What is in this stage's memory between steps."""
        return memory.resident(self._pipe, inputs, targets, self._optimizer)

    def close(self) -> None:
        """See `Method`."""
        self._pipe.close()
