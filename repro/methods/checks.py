"""Checks whether a library trains as one device would, against the unsplit model.

The reference is that of `Pipeline.compare`: the same micro-batches one after the other, without
recomputation. By section 2.3 of arXiv:1811.06965v5, micro-batches change only the statistics that
batch norm trains with.
"""

import math
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn

from repro.gpipe.core.compare import differences, step_without_pipeline
from repro.gpipe.core.layers import Layer
from repro.gpipe.core.verdict import worst
from repro.gpipe.exact.batchnorm import BATCH_NORMS
from repro.gpipe.tree import Tree, batch_size, flatten, gather, split
from repro.methods.method import Method, Setup

Verdict = Literal["ok", "wrong", "refused", "none"]
Make = Callable[[Setup], Method]
Batch = Callable[[int, int], tuple[Any, Any]]
State = dict[str, Tensor]
_PLAIN = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)
_DROPOUTS = (*_PLAIN, nn.AlphaDropout, nn.FeatureAlphaDropout)


@dataclass(frozen=True)
class Check:
    """Result of a check; the verdict is "none" if the model has nothing to check."""

    verdict: Verdict
    value: float | None  # the greatest difference
    evidence: str


def examine(
    make: Make, setup: Setup, batch: Batch, N: int, spare: dist.ProcessGroup | None = None
) -> dict[str, Check]:
    """All checks, by name; every process of the library calls this and gets the same result.

    The checkpoint and the optimizer of the setup are not used. N is a multiple of M; the check of
    unequal micro-batches has one example more. As that check may leave its process group unusable,
    it has a `spare` one.
    """
    without_dropout = replace(
        setup,
        layers=[_without_dropout(layer) for layer in setup.layers],
        optimizer=None,
        config=replace(setup.config, checkpoint="always"),
    )
    checks: dict[str, Check] = {}
    inputs, targets = batch(N, setup.seed)
    with closing(make(without_dropout)) as method:
        checks["gradients"] = _gradients(method, without_dropout, inputs, targets)
        if checks["gradients"].verdict == "refused":  # there was no step after which to look
            checks["batch norm"] = checks["evaluation"] = checks["gradients"]
        else:
            state = _from_all(method, method.module.state_dict())
            checks["batch norm"] = _batch_norm(method, without_dropout, inputs, targets, state)
            checks["evaluation"] = _evaluation(method, without_dropout, inputs, targets, state)
    checks["dropout"] = _dropout(make, setup, inputs, targets)
    inputs, targets = batch(N + 1, setup.seed)
    sample = split(inputs, setup.config.micro_batches)[0]
    with closing(make(replace(without_dropout, sample=sample, group=spare))) as method:
        checks["unequal micro-batches"] = _gradients(method, without_dropout, inputs, targets)
    return checks


def _gradients(method: Method, setup: Setup, inputs: Tree, targets: Tree) -> Check:
    step, refusal = _try(method, lambda: method.train_step(inputs, targets))
    if refusal:
        return Check("refused", None, refusal)
    expected, _ = _reference(method, setup, inputs, targets)
    sizes = ", ".join(str(batch_size(part)) for part in method.cut(inputs))
    text = f"micro-batches of {sizes}: loss {step.loss:.6f}, unsplit {expected['loss']:.6f}"
    actual = {**_from_all(method, _gradients_of(method.module)), "loss": torch.tensor(step.loss)}
    return _compare(actual, expected, text)


def _batch_norm(method: Method, setup: Setup, inputs: Tree, targets: Tree, state: State) -> Check:
    _, running = _reference(method, setup, inputs, targets)
    if not running:
        return Check("none", None, "the model has no batch norm")
    counts = {int(v) for n, v in state.items() if n.endswith("num_batches_tracked")}
    text = f"after one step num_batches_tracked is {', '.join(map(str, sorted(counts)))}"
    check = _compare(state, running, text)
    return check if counts == {1} else replace(check, verdict="wrong")


def _evaluation(method: Method, setup: Setup, inputs: Tree, targets: Tree, state: State) -> Check:
    """Compare outputs in evaluation mode with those of the unsplit model in the same state."""
    result, refusal = _try(method, lambda: method.evaluate(inputs, targets))
    if refusal:
        return Check("refused", None, refusal)
    model = _unsplit(setup)
    model.load_state_dict({name: state[name] for name in model.state_dict()})
    model.eval()
    with torch.no_grad():
        unsplit = gather([model(part) for part in method.cut(setup.placed(inputs))])
    outputs = [part for part in method.gather(result.outputs) if part is not None][-1]
    actual, expected = (
        {str(n): tensor.cpu() for n, tensor in enumerate(flatten(tree)[0])}
        for tree in (outputs, unsplit)
    )
    return _compare(actual, expected, "outputs with the statistics that training left")


def _dropout(make: Make, setup: Setup, inputs: Tree, targets: Tree) -> Check:
    """Compare gradients with and without recomputation: are the same activations dropped?"""
    if not any(isinstance(part, _DROPOUTS) and part.p for part in _unsplit(setup).modules()):
        return Check("none", None, "the model has no dropout")
    gradients: dict[str, State] = {}
    for checkpoint in ("always", "never"):
        config = replace(setup.config, checkpoint=checkpoint)
        with closing(make(replace(setup, config=config, optimizer=None))) as method:
            with torch.random.fork_rng():
                torch.manual_seed(setup.seed)
                _, refusal = _try(method, lambda: method.train_step(inputs, targets))
            if refusal:
                return Check("refused", None, refusal)
            gradients[checkpoint] = _from_all(method, _gradients_of(method.module))
    text = "gradients, always against never recomputed"
    return _compare(gradients["always"], gradients["never"], text)


def _reference(method: Method, setup: Setup, inputs: Tree, targets: Tree) -> tuple[State, State]:
    """One step of the unsplit model on this library's own micro-batches.

    Besides its gradients and loss there are the expected running statistics of batch norm: updated
    once, by the mini-batch's mean and unbiased variance.
    """
    model = _unsplit(setup)
    parts = [method.cut(setup.placed(tree)) for tree in (inputs, targets)]
    # Each micro-batch is given as that of another replica, since the library has chosen its size.
    batches = [*zip(*parts, strict=True)]
    loss, _ = step_without_pipeline(
        model, batches, 1, setup.loss, seed=setup.seed, step=0, order=[0]
    )
    norms = [name for name, part in model.named_modules() if isinstance(part, BATCH_NORMS)]
    names = [f"{norm}.{key}" for norm in norms for key in ("running_mean", "running_var")]
    running = {name: model.get_buffer(name).cpu() for name in names}
    return {**_gradients_of(model), "loss": torch.tensor(loss)}, running


def _unsplit(setup: Setup) -> nn.Sequential:
    return setup.build_stage([len(setup.layers)], 0)


def _without_dropout(layer: Layer) -> Layer:
    def factory() -> nn.Module:
        module = deepcopy(layer) if isinstance(layer, nn.Module) else layer()
        for part in module.modules():
            if isinstance(part, _DROPOUTS):
                part.p = 0.0
        return module

    return factory


def _gradients_of(module: nn.Module) -> State:
    return {n: p.grad.cpu() for n, p in module.named_parameters() if p.grad is not None}


def _try(method: Method, action: Callable[[], Any]) -> tuple[Any, str]:
    """Result of an action, and the first error of any process as one line ("" if none)."""
    result, failure = None, None
    try:
        result = action()
    except Exception as error:
        failure = (time.perf_counter(), " ".join(f"{type(error).__name__}: {error}".split())[:200])
    failures = [failure for failure in method.gather(failure) if failure is not None]
    return result, min(failures)[1] if failures else ""


def _from_all(method: Method, part: Mapping[str, Tensor]) -> State:
    state: State = {}
    for tensors in method.gather({name: tensor.detach().cpu() for name, tensor in part.items()}):
        state |= tensors
    return state


def _compare(actual: State, expected: State, text: str) -> Check:
    """Greatest difference, which is "ok" if each tensor differs by rounding at most."""
    found = [*differences("tensor", actual, expected)]
    lacking = sorted(each.name for each in found if math.isnan(each.largest))
    if lacking:
        return Check("wrong", None, f"{text}; missing or not finite: {', '.join(lacking)}")
    largest, size = max(each.largest for each in found), max(each.size for each in found)
    verdict: Verdict = "wrong" if worst(each.verdict for each in found) == "different" else "ok"
    return Check(
        verdict, largest, f"{text}; off by {largest:.1e} at most, of numbers up to {size:.3g}"
    )
