"""What layers hold besides parameters: buffers, tensors, numbers, generators, lists and so on."""

from collections import Counter
from typing import Any

from torch import Tensor

from repro.gpipe.exact.batchnorm import is_torchs_own
from repro.gpipe.exact.guard import Finding, Guard, Outcome, Pass
from repro.gpipe.exact.snapshot import Place, Snapshot, copied, held_by, key, read, write

_MOST_OF_OTHERS = 100  # places in losses that take turns, which are remembered
_PASSES = (
    "of an object that layers of two stages hold: a forward leaves a tensor there, which the other "
    "stage would not get for the same micro-batch; return it with the output"
)


class LayerState(Guard):
    """R computes with state of a layer that F has moved, and moves it once more.

    Buffers, attributes, and the content of lists, sets, dicts and generators that a layer, the
    loss, or an object of theirs holds are put back for R if they are known to change. Found by
    comparing all of them over a whole step: by identity and version, in the first step with inputs
    of a form also by value. What changes for the first time is known from then on, and the step is
    taken again. A step that does not count leaves all of it as it was. If a step replaces a tensor
    in an object that layers of two stages hold, it is refused.
    """

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._tree: tuple[Any, ...] = ()
        self._seen: set[int] = set()  # numbers of places that the first F of a form has changed
        self._held = Snapshot(())  # as of the beginning of the step
        self._moving: dict[tuple[int, Any], Place] = {}

    def begin_step(self, step: Any) -> None:
        layers = self._layers
        # Losses may take turns, and a user or a good step may have added attributes and buffers.
        tree = layers.tree_number, *layers.of_loss
        self._first = tree != self._tree or not self._held.has_all_keys()
        self._recomputes = False
        self._seen.clear()
        if self._first:
            self._tree, self._held = tree, Snapshot(held_by([layers.module, *layers.of_loss]))
            self._of_norms = {id(m._buffers) for m in layers.modules if is_torchs_own(m)}
            self._of_two_stages = self._held_by_two_stages()
            if len(self._moving) > len(self._held.places) + _MOST_OF_OTHERS:
                known = self._moving.keys() & self._held.index.keys()
                self._moving = {each: self._moving[each] for each in known}
            return
        moving = self._known_to_move()
        changed = moving.union(self._held.changed())
        # No forward moves these running statistics, only `RunningStatistics`: a copy is not needed.
        in_norms = {k for k in changed - moving if id(self._held.places[k][0]) in self._of_norms}
        self._held.take(changed - in_norms)
        self._held.take(in_norms, copies=False)

    def before_forward(self, p: Pass) -> None:
        if p.first and not self._first:
            # The user has written through .data, which no version shows: what earlier passes of
            # this step can have moved is known.
            held = self._held
            held.take({*held.changed(closely=True)} - {*held.changed()} - self._known_to_move())
        self._first |= p.first
        self._recomputes |= p.recomputed
        if p.recomputed and self._moving:
            p.notes[self] = self._now(copies=True)

    def after_forward(self, p: Pass) -> None:
        if p.first and p.micro_batch == 0:  # at the end of the step a flag may be as before
            self._seen.update(self._held.changed())

    def before_recompute(self, p: Pass) -> None:
        before = p.notes.get(self)
        if before:
            p.notes[self] = self._now(copies=False)
            for place, value in before:
                write(place, value)

    def after_recompute(self, p: Pass) -> None:
        for place, value in p.notes.pop(self, ()):
            write(place, value)

    def end_step(self, step: Any) -> Finding | None:
        held = self._held
        changed = self._seen.union(held.changed(closely=self._first))
        for k in sorted(changed):
            holder, name = place = held.places[k]
            replaced = isinstance(held.values[k], Tensor) and read(place) is not held.values[k]
            if replaced and id(holder) in self._of_two_stages:
                return Finding(Outcome.REFUSED, f"{name!r} {_PASSES}")
        found = [held.places[k] for k in changed] + (held.made() if self._first else [])
        new = {key(place): place for place in found if key(place) not in self._moving}
        self._moving |= new
        return Finding(Outcome.AGAIN) if new and self._recomputes else None

    def undo(self) -> None:
        # Other values may be the user's, who has written through .data since the last copy.
        self._held.restore({*self._held.changed(closely=self._first)} | self._known_to_move())

    def _known_to_move(self) -> set[int]:
        """The numbers of places, whose copies are always of the beginning of the step."""
        index = self._held.index
        return {index[each] for each in self._moving.keys() & index.keys()}

    def _now(self, *, copies: bool) -> list[tuple[Place, Any]]:
        """Of each place known to move its value, or a copy of it if that has tensors."""
        memo: dict[int, Tensor] = {}  # a tensor that is held twice has one copy
        found: list[tuple[Place, Any]] = []
        for place in self._moving.values():
            value = read(place)
            found.append((place, copied(value, memo) if copies else value))
        return found

    def _held_by_two_stages(self) -> set[int]:
        """The ids of dicts that layers of more than one stage hold."""
        stages = [[layer for _, layer in of] for of in self._layers.layers.values()]
        times = Counter(
            id(each)
            for holders in (*stages, self._layers.foreign)
            for each in held_by(holders)
            if isinstance(each, dict)
        )
        return {each for each, count in times.items() if count > 1}
