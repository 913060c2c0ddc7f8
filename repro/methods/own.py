"""Our own pipeline as a method."""

from collections import Counter
from collections.abc import Iterator
from functools import partial

from torch import Tensor

from repro.gpipe import Pipeline, StepResult
from repro.gpipe.core import memory
from repro.gpipe.core.topology import own_rank
from repro.gpipe.tree import Tree, unwrapped
from repro.methods.method import Method, Setup


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
            without=["LossCheck", "CoupledExamples"],  # these combine no examples
        )
        self.module = self._pipe.module
        self.balance = self._pipe.balance
        self._optimizer = setup.make_optimizer(self._pipe.parameters())

    def train_step(self, inputs: Tree, targets: Tree) -> StepResult:
        """See `Method`."""
        before = self._sent_so_far()
        result = self._pipe.train_step(
            inputs, targets, self._setup.loss, self._optimizer, trace=self._setup.trace
        )
        after = self._sent_so_far()
        self._sent = {kind: after[kind] - before[kind] for kind in after}
        return result

    def peak_bytes(self, inputs: Tree, targets: Tree) -> list[int]:
        """Peak memory per stage, of its fullest copy or part."""
        given = inputs, targets, self._setup.loss, self._optimizer
        step, resident = partial(self._pipe.train_step, *given), self.tensors(inputs, targets)
        peaks = self.gather(memory.peak_memory(step, self._setup.device, resident))
        return [max(peaks[stage :: self._pipe.stages]) for stage in range(self._pipe.stages)]

    def _sent_so_far(self) -> dict[str, int]:
        """Bytes that this process has sent since the Pipeline was built, and for that."""
        engine = self._pipe.engine
        sent = Counter(engine.links.sent_bytes())
        if engine.replicas is not None:
            sent["all-reduce"] = engine.replicas.sent_bytes
        return sent

    def tensors(self, inputs: Tree, targets: Tree) -> Iterator[Tensor]:
        """What is in this stage's memory between steps."""
        inputs = inputs if self._pipe.is_first else None
        return self._resident(unwrapped((inputs, targets if self._pipe.is_last else None)))

    def close(self) -> None:
        """See `Method`."""
        self._pipe.close()
