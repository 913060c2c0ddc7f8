"""The bare loop: the waits and the messages of a step, and nothing else.

It runs stages of known duration, the model `timed`. What a step takes here is what these waits and
messages alone cost on this machine; what a step of our pipeline takes above that is our runtime's.
The schedule is unrolled before the first step into a flat list of calls. An F, R or B is one wait
for the seconds of its stage, as the timed layers wait, and a message is one of the same bytes over
the same shared memory. There is no autograd, no random number, no bookkeeping of recomputation, no
check for inf or nan, no barrier inside a step, and no update.
"""

from collections.abc import Callable
from functools import partial

import torch

from repro.gpipe import StepResult
from repro.gpipe.comm.links import Links
from repro.gpipe.comm.message import Form, Message
from repro.gpipe.core.topology import own_rank
from repro.gpipe.partition.layer_costs import stage_layers
from repro.gpipe.runtime.clock import Waits
from repro.gpipe.schedule.actions import Schedule
from repro.gpipe.tree import Tree, batch_size
from repro.methods.method import Method, Setup
from repro.models.timed import TimedLayer

_KEY = "bare"  # all messages of a link have one form, which travels with the first of them
_Call = Callable[[], object]


class Bare(Method):
    """One stage of timed layers; see `Method`. Its loss is always 0.0: nothing is computed.

    All micro-batches have the size of the setup's sample, [n, elements]. Peak memory is not
    measured.

    Raises:
        ValueError: one line: stages are not on the CPU of one Linux host.
    """

    def __init__(self, setup: Setup) -> None:
        config = setup.config
        assert config.stages_per_rank == 1
        super().__init__(setup, config.stages, own_rank(config))
        self.balance = setup.counts()
        # All layers, since a message back is as wide as the stage before makes it.
        whole = setup.build_stage([len(setup.layers)], 0)
        layers = [layer for layer in whole if isinstance(layer, TimedLayer)]
        assert len(layers) == len(whole)  # `LIBRARIES` refuses other models in a run
        own = stage_layers(self.balance)[self._rank]
        self.module = whole[own.start : own.stop]
        forward_s = sum(layers[n].forward_s for n in own)
        backward_s = sum(layers[n].backward_s for n in own)
        self._seconds = {"F": forward_s, "R": forward_s, "B": backward_s}
        self._links = Links(self._channel, setup.device, "shm")
        n = batch_size(setup.sample)
        # Activations are as wide as this stage's last layer, gradients as the one before its first.
        width = {"F": layers[own.stop - 1].elements, "B": layers[own.start - 1].elements}
        self._messages = {of: _zeros(n, width[of], setup.device) for of in self._links.outgoing}
        self._waits = Waits()
        self._step = self._unrolled(config.schedule_to_execute())

    def _unrolled(self, schedule: Schedule) -> list[_Call]:
        """What this stage does in a schedule, in order, as calls without arguments."""
        calls: list[_Call] = []
        for action in schedule.actions(self._rank):
            if action.kind in self._seconds:
                calls.append(partial(self._wait, self._seconds[action.kind]))
            elif action.kind == "Send":
                message = self._messages[action.of]
                calls.append(partial(self._links.send, action.of, message, _KEY))
            elif action.kind == "Recv":
                # In shared memory this posts nothing, so that one call serves all steps.
                calls.append(self._links.incoming[action.of].irecv(_KEY))
        return calls

    def _wait(self, seconds: float) -> None:
        self._waits.until(self._waits.after(seconds))

    def train_step(self, inputs: Tree, targets: Tree) -> StepResult:
        """The waits and messages of one step, from this stage's first to its last; see `Method`.

        The mini-batch is not read, and the loss is 0.0.
        """
        sent = self._links.sent_bytes()
        start = self._now()
        for call in self._step:
            call()  # a message that it returns is dropped, and its memory free again
        self._links.flush()
        end = self._now()
        now_sent = self._links.sent_bytes()
        self._sent = {what: size - sent[what] for what, size in now_sent.items()}
        return StepResult(0.0, start, end)

    def close(self) -> None:
        """See `Method`."""
        self._links.close()


def _zeros(n: int, elements: int, device: torch.device) -> Message:
    """A message of float32 numbers [n, elements], as between timed layers."""
    tensors = [torch.zeros(n, elements, device=device)]
    return Message(tensors, Form.of(tensors, None))
