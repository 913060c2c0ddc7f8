"""Bytes that a process sends in a step, counted where tensors are handed to torch.distributed.

A process does not see what a collective sends, so the bandwidth-optimal ring is assumed: of n
processes each sends 2 (n - 1) / n times the tensor in an all-reduce, and (n - 1) / n times the
whole tensor in an all-gather, a reduce-scatter and a broadcast.
"""

from collections import Counter
from typing import Any

from repro.gpipe.core.memory import TorchDispatchMode
from repro.gpipe.tree import flatten

# Operator of torch.distributed -> its name in a record, and the argument that holds the whole
# tensor: the output of an all-gather, which may be the result (-1), and the input of the others.
_NAMESPACES = ("c10d", "_c10d_functional")
_OPERATORS: dict[str, tuple[str, int]] = {
    "c10d::allreduce_": ("all-reduce", 0),
    "c10d::allgather_": ("all-gather", 0),
    "c10d::_allgather_base_": ("all-gather", 0),
    "c10d::_reduce_scatter_base_": ("reduce-scatter", 1),
    "c10d::broadcast_": ("broadcast", 0),
    "c10d::send": ("messages", 0),
    "_c10d_functional::all_gather_into_tensor": ("all-gather", -1),
    "_c10d_functional::all_reduce": ("all-reduce", 0),
    "_c10d_functional::all_reduce_": ("all-reduce", 0),
}
_SEND_NOTHING = {
    "c10d::recv_",
    "c10d::barrier",
    "_c10d_functional::wait_tensor",
    "_c10d_functional::_wrap_tensor_autograd",
}


def ring_share(operator: str, processes: int) -> float:
    """What a process sends in a collective of so many, in sizes of the whole tensor."""
    if operator == "messages":
        return 1.0
    rounds = 2 if operator == "all-reduce" else 1
    return rounds * (processes - 1) / processes


class SentBytes(TorchDispatchMode):
    """While active, `counts` are the bytes that this process sends, by operator.

    Only what passes through torch's dispatcher is seen. That is everything that the functions of
    torch.distributed and DistributedDataParallel send. Every process group that is used meanwhile
    has n processes. Wrappers are classes of tensors that run their operators on other tensors.
    """

    def __init__(self, processes: int, wrappers: tuple[type, ...] = ()) -> None:
        super().__init__()
        self._processes = processes
        self._wrappers = wrappers
        self._counts: Counter[str] = Counter()

    @property
    def counts(self) -> dict[str, int]:
        """Operator -> bytes."""
        return {
            operator: round(size * ring_share(operator, self._processes))
            for operator, size in self._counts.items()
        }

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(issubclass(kind, self._wrappers) for kind in types):
            return NotImplemented  # it runs operators on other tensors, which come here then
        name, result = func._schema.name, func(*args, **(kwargs or {}))
        if name in _OPERATORS:
            operator, position = _OPERATORS[name]
            whole = (*args, result)[position]
            self._counts[operator] += sum(t.nbytes for t in flatten(whole)[0])
        elif name.partition("::")[0] in _NAMESPACES:
            assert name in _SEND_NOTHING, f"{name}: it is not known what it sends"
        return result
