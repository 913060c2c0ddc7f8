"""What crosses a stage's boundaries, learnt in one step and expected in the steps that follow.

A step announces the signature of its inputs: their shapes, types and constants. Where the signature
is new, the step learns: every message brings its description along. Later steps with that signature
post their receives ahead.
"""

import logging
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any

from repro.gpipe.comm.message import MessageMeta
from repro.gpipe.schedule.actions import Cell

_log = logging.getLogger(__name__)
_LEARN_ALWAYS = 2  # unexpected steps after which a signature is learnt anew in every step
_NEW_IN_A_ROW = 10  # steps that learn, one after the other, before a warning says so
_MESSAGES = 2**14  # of all signatures together; a description of one takes about a kilobyte

Metas = dict[Cell, MessageMeta]  # stage and micro-batch -> what its message holds


@dataclass
class Learnt:
    """What crosses the boundaries of a rank's stages in a step with a certain signature.

    Each dictionary has a key (stage, micro-batch), the stage being one of this rank.

    Attributes:
        incoming: activations from the stage before.
        outgoing: activations to the stage after.
        reached: for each outgoing tensor that requires a gradient, whether the next stage returns
            one.
        made: for each incoming tensor that requires a gradient, whether this stage makes one.
        unexpected: how many steps differed from what was learnt and had to be done again.
    """

    incoming: Metas = field(default_factory=dict)
    outgoing: Metas = field(default_factory=dict)
    reached: dict[Cell, list[bool]] = field(default_factory=dict)
    made: dict[Cell, list[bool]] = field(default_factory=dict)
    unexpected: int = 0

    @property
    def must_learn(self) -> bool:
        """Whether steps with this signature differ so often that each of them has to learn."""
        return self.unexpected >= _LEARN_ALWAYS


class Signatures:
    """Signature -> what was learnt, for the signatures that were used last.

    All ranks see the same signatures in the same order, so all of them forget the same ones.

    Args:
        messages: of a step in each direction, M for each stage of a rank; more take more memory.
    """

    def __init__(self, messages: int) -> None:
        self._most = max(16, _MESSAGES // messages)
        self._learnt: OrderedDict[int, Learnt] = OrderedDict()
        self._last_shapes: Any = None
        self._in_a_row = 0

    def __len__(self) -> int:
        return len(self._learnt)

    def get(self, signature: int) -> Learnt | None:
        """What was learnt under this signature, if it is remembered."""
        return self._learnt.get(signature)

    def keep(self, signature: int, learnt: Learnt) -> None:
        """Remember what was learnt, and forget the signature that was not used for longest."""
        self._learnt[signature] = learnt
        self._learnt.move_to_end(signature)
        if len(self._learnt) > self._most:
            self._learnt.popitem(last=False)

    def note_inputs(self, shapes: object, constants: object, *, new: bool) -> None:
        """First stage: warn of a row of steps with a new signature each, since these are slow."""
        self._in_a_row = self._in_a_row + 1 if new else 0
        if self._in_a_row == _NEW_IN_A_ROW:
            if shapes == self._last_shapes:
                differing, advice = constants, "a constant among them differs; give it as a tensor"
            else:
                differing, advice = shapes, "pad to few shapes"
            _log.warning(
                "steps are slow: each of the last %d had inputs of a new kind, so every message "
                "brought its description (now %s); %s",
                _NEW_IN_A_ROW,
                differing,
                advice,
            )
        self._last_shapes = shapes
