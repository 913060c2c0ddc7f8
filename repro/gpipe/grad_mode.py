"""Layers that compute other bits where autograd is off, although their results mean the same.

With re-materialization F needs no graph, and without one it is faster. But some modules of torch choose their kernels
by grad mode: an LSTM's are oneDNN's for training or for inference, and attention layers in eval mode take a fused
"fast path" where nothing requires a gradient. F would then differ from R in the last bits, and what a stage sends would
differ from what it trains on. So F builds a graph where such a layer is on the stage, and drops it at once: it takes
no more memory than R does later.
"""

from torch import nn

_ALWAYS = (nn.RNNBase,)
_IN_EVAL_MODE = (nn.MultiheadAttention, nn.TransformerEncoderLayer, nn.TransformerEncoder)


def sensitive(module: nn.Module) -> list[nn.Module]:
    """The parts of a module that may choose their kernels by grad mode.

    A module of the user's own that does so has an attribute `depends_on_grad_mode = True`.
    """
    kinds = _ALWAYS + _IN_EVAL_MODE
    return [m for m in module.modules() if isinstance(m, kinds) or getattr(m, "depends_on_grad_mode", False)]


def wants_graph(parts: list[nn.Module]) -> bool:
    """Whether F must build a graph now to compute as R will, given what `sensitive` found."""
    return any(not isinstance(part, _IN_EVAL_MODE) or not part.training for part in parts)
