"""Functions of the stage processes of `test_decode.py`, which spawned processes can import."""

import torch
from torch import Tensor

from repro.data.tokens import BOS, EOS, PAD, SPECIAL
from repro.gpipe import Pipeline
from repro.models import build
from repro.train.decode import greedy
from repro.train.losses import translation

LENGTH, V = 3, 20
T = LENGTH + 1
MODEL = {"L": 1, "d": 32, "H": 64, "A": 2, "head_dim": 16, "V": V, "S": LENGTH, "T": T}
SEED = 3


def to_copy(n: int, seed: int) -> tuple[tuple[Tensor, Tensor], Tensor]:
    """Sentences of one to LENGTH random tokens, which are their own translations."""
    generator = torch.Generator().manual_seed(seed)
    source = torch.randint(SPECIAL, V, (n, LENGTH), generator=generator)
    lengths = torch.randint(1, LENGTH + 1, (n, 1), generator=generator)
    source[torch.arange(LENGTH) >= lengths] = PAD
    targets = torch.cat((source, torch.full((n, 1), PAD)), 1).scatter(1, lengths, EOS)
    decoder_input = torch.cat((torch.full((n, 1), BOS), source), 1)
    return (source, decoder_input), targets


def made(stages: int, dropout: float = 0.0) -> Pipeline:
    """The small model with its initial weights, in four micro-batches."""
    layers = build("translation", **MODEL, dropout=dropout).layers
    return Pipeline(layers, stages, 4, device="cpu", seed=SEED)


def trained_a_little(stages: int) -> tuple[Tensor, dict[str, Tensor]]:
    """Translations after three steps with dropout, and the weights of this stage.

    Only the first stage has the sources.
    """
    torch.set_num_threads(1)
    pipe = made(stages, dropout=0.5)
    optimizer = torch.optim.Adam(pipe.parameters(), lr=1e-3)
    for step in range(3):
        inputs, targets = to_copy(9, step + 1)
        pipe.train_step(inputs, targets, translation(0.1), optimizer)
    sources = to_copy(9, 0)[0][0]
    tokens = greedy(pipe, sources if pipe.is_first else None, T)
    assert pipe.module.training
    weights = dict(pipe.module.state_dict())
    pipe.close()
    return tokens, weights
