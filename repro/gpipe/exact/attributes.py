"""Changes of parameters and plain attributes by a forward; `buffers` has those of buffers.

R runs a layer once more. It must find what F found, and make and leave what F did: a moving average
would otherwise move twice for each micro-batch. Buffers and plain numbers are put back, see
`buffers`. Nothing else is, so a layer that leaves other values in R than in F is refused. A tensor
that is only written, such as activations that a layer keeps for debugging, does no harm.
"""

import random
import sys
from collections import deque
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

OWN_KEYS = frozenset(vars(nn.Module()))  # attributes that every module has
_PIECE = 2**22  # elements that are read at once, so that no second copy of a tensor is needed


def digest(tensor: Tensor) -> bytes:
    """A hash of a tensor's bits in row-major order; equal bits have equal hashes."""
    if is_lazy(tensor):
        return b""
    text = f"{tensor.dtype} {tuple(tensor.shape)}"
    hashed = blake2b(text.encode(), digest_size=16)
    if tensor.is_meta or tensor.is_quantized or tensor.is_nested or tensor.layout != torch.strided:
        return hashed.digest()
    with torch.no_grad():
        plain = tensor.detach().resolve_conj().resolve_neg()
        for piece in plain.reshape(-1).split(_PIECE):
            # numpy() would keep the user's own storage from being resized.
            values: Any = piece.clone().cpu().view(torch.uint8).numpy()
            hashed.update(values)
    return hashed.digest()


def checksums(tensors: Sequence[Tensor]) -> list[Tensor]:
    """A number of most tensors, on their device: quicker than `digest`, and less sure to differ."""
    hashable = [t for t in tensors if t.is_floating_point() and t.itemsize > 1 and t.numel()]
    return [torch.hash_tensor(t.detach()) for t in hashable]


class LeftBehind:
    """What F of one micro-batch made and left in the modules of a stage; R must do the same.

    With `values`, it is also looked for writes to parameters through `.data`.
    """

    def __init__(self, stage: nn.Module, *, values: bool) -> None:
        self._stage, self._values = stage, values
        self._before = self._traces()

    def after_forward(self, outputs: Sequence[Tensor]) -> None:
        """Record what F has made and changed."""
        moved = {name for name, trace in self._traces().items() if trace != self._before.get(name)}
        self._left = self._contents(moved)
        self._made = [digest(t) for t in outputs]

    def after_recompute(self, outputs: Sequence[Tensor]) -> str:
        """What R has made otherwise than F, as the beginning of a sentence; empty if nothing."""
        now = self._contents(set(self._left))
        for name, left in self._left.items():
            if now.get(name) != left:
                return f"{name} is"
        return "" if [digest(t) for t in outputs] == self._made else "its outputs are"

    def _traces(self) -> dict[str, object]:
        """By name: a value that differs once the parameter or attribute has changed."""
        traces: dict[str, object] = {}
        for name, value in _held(self._stage):
            traces[name] = None if isinstance(value, nn.Parameter) else _content(value)
            if isinstance(value, nn.Parameter) and not is_lazy(value):
                hooks = len(value._backward_hooks or ())
                bits = digest(value) if self._values else b""
                traces[name] = value.data_ptr(), value._version, hooks, bits
        return traces

    def _contents(self, names: set[str]) -> dict[str, object]:
        return {name: _content(value) for name, value in _held(self._stage) if name in names}


def _held(stage: nn.Module) -> Iterator[tuple[str, Any]]:
    """Name and value of each parameter and each plain attribute."""
    for path, module in stage.named_modules():
        for key, value in module._parameters.items():
            yield f"{path}.{key}", value
        for key, value in vars(module).items():
            if key not in OWN_KEYS:
                yield f"{path}.{key}", value


def _content(value: Any, depth: int = 4) -> object:
    """A value that changes with a tensor, generator or container; None for anything else."""
    if isinstance(value, Tensor):
        return digest(value), len(value._backward_hooks or ())
    numpy: Any = sys.modules.get("numpy")  # nothing else could have made one of its objects
    if isinstance(value, torch.Generator):
        return digest(value.get_state())
    if isinstance(value, random.Random):
        return value.getstate()
    if numpy and isinstance(value, numpy.random.Generator):
        return repr(value.bit_generator.state)
    if numpy and isinstance(value, numpy.random.RandomState):
        return repr(value.get_state())
    if numpy and isinstance(value, numpy.ndarray):
        return value.tobytes()
    if isinstance(value, dict):
        value = [*value.items()]
    if isinstance(value, list | tuple | set | deque) and depth:
        # Parameters in a list, as recurrent layers have one, are held by the module, too.
        return [
            (not isinstance(member, nn.Parameter) and _content(member, depth - 1)) or _named(member)
            for member in value
        ]
    return None


def _named(member: object) -> str:
    """A number or a string as text; anything else as which object it is."""
    plain = isinstance(member, bool | int | float | complex | str)
    return repr(member) if plain else str(id(member))
