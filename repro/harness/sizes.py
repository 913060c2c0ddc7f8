"""Model arguments per scale, and how often a clock reads them, that experiments share.

`gpu`, `node` and `paper` have the paper's sizes: AmoebaNet-D (18, 256) at 224 x 224, and
Transformer-48, whose widths Table 2 does not state, at Table 1's (2.548 billion parameters). The
others are shrunk until two CPU cores do a step of 32 (smoke) or 128 (laptop) examples in about a
second.
"""

from typing import Any

from repro.harness.spec import ON_CPU, SCALES, RunSpec, Scale

Arguments = dict[str, Any]  # of a model


def _at(smoke: Arguments, laptop: Arguments, paper: Arguments) -> dict[Scale, Arguments]:
    """The arguments of a model at each scale; all scales on GPUs have the paper's size."""
    return {**dict.fromkeys(SCALES, paper), **dict.fromkeys(ON_CPU, laptop), "smoke": smoke}


AMOEBANET = _at(
    {"L": 3, "D": 16, "image": 48, "num_classes": 10},
    {"L": 3, "D": 32, "image": 64, "num_classes": 10},
    {"L": 18, "D": 256, "image": 224},
)
TRANSFORMER = _at(
    {"L": 6, "d": 32, "H": 64, "heads": 2, "V": 128, "T": 16},
    {"L": 10, "d": 128, "H": 512, "heads": 4, "V": 512, "T": 32},
    {"L": 48},
)
TRANSLATION = _at(
    {"L": 2, "d": 32, "H": 64, "A": 2, "head_dim": 16, "V": 128, "S": 12, "T": 12},
    {"L": 4, "d": 128, "H": 512, "A": 4, "head_dim": 32, "V": 512, "S": 16, "T": 16},
    {},
)

DEFAULT_N = 32  # mini-batch of every verb by default
BLOCKS = 15  # of a round at most by default


def sets(scale: Scale) -> int:
    """Rounds of an experiment: sets of fresh processes, whose place is a matter of chance."""
    return 1 if scale == "smoke" else 2


def in_blocks(scale: Scale, blocks: int = BLOCKS) -> dict[str, int]:
    """The fields of a measured run: so many blocks in each set at most, after a warm-up step."""
    return {"warmup": 1, "steps": 1 if scale == "smoke" else blocks}


def controls_at(scale: Scale, run: RunSpec) -> tuple[RunSpec, ...]:
    """A run again with another seed (A/A); none where a single step is timed."""
    again = run.model_copy(update={"control": "again", "seed": run.seed + 1})
    return () if scale == "smoke" else (again,)


def _at_paper_size(smoke: Arguments, paper: Arguments) -> dict[Scale, Arguments]:
    """Arguments of simulated models: the paper's size, except at scale smoke."""
    return _at(smoke, paper, paper)


MODELLED_AMOEBANET = _at_paper_size(AMOEBANET["smoke"], AMOEBANET["paper"])
MODELLED_TRANSFORMER = _at_paper_size(TRANSFORMER["smoke"], TRANSFORMER["paper"])
# Transformer-48 with half of Table 1's widths. At the full widths the weights of half the model
# alone fill a TPUv3 core.
NARROW = _at_paper_size(
    {**TRANSFORMER["smoke"], "d": 16, "H": 32}, {"L": 48, "d": 1024, "H": 4096, "heads": 16}
)


def small(model: str, scale: Scale) -> dict[str, Any]:
    """Arguments that make a model small enough for the CPU at a scale; empty for GPU scales."""
    if scale not in ON_CPU:
        return {}
    if model.startswith("timm:"):
        return {"image": 64, "num_classes": 10}
    known = {
        "amoebanet-b": AMOEBANET,
        "amoebanet-d": AMOEBANET,
        "transformer": TRANSFORMER,
        "translation": TRANSLATION,
    }
    return known[model][scale] if model in known else {}
