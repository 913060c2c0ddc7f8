"""Does a library train as one device would? Each check is held against the unsplit model on the same micro-batches.

The reference runs the micro-batches one after the other, without recomputation; the mini-batch's
loss is their mean weighted by size (section 2.3 of arXiv:1811.06965v5: micro-batches change nothing
but what batch norm trains on).
"""

import time
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn

from repro.gpipe.core.layers import Layer, build
from repro.gpipe.core.microbatch import Tree, batch_size, flatten, gather, split
from repro.gpipe.exact.batchnorm import BATCH_NORMS
from repro.methods.method import Method, Setup

Verdict = Literal["ok", "wrong", "refused", "none"]
Make = Callable[[Setup], Method]
Batch = Callable[[int, int], tuple[Any, Any]]
State = dict[str, Tensor]
NAMES = ("gradients", "batch norm", "evaluation", "dropout", "unequal micro-batches")
_NEAR = 1e-5  # of the largest number compared: float32 sums in another order
_DROPOUTS = (
    nn.Dropout,
    nn.Dropout1d,
    nn.Dropout2d,
    nn.Dropout3d,
    nn.AlphaDropout,
    nn.FeatureAlphaDropout,
)


@dataclass(frozen=True)
class Check:
    """What one check found: `none` where the model has nothing to check; `value` is the greatest difference."""

    verdict: Verdict
    value: float | None
    evidence: str


@dataclass(frozen=True)
class _Reference:
    """One step of the unsplit model.

    `running` holds what batch norm's running statistics should then be: moved once, by the
    mini-batch's mean and unbiased variance.
    """

    loss: float
    gradients: State
    running: State


def examine(
    make: Make, setup: Setup, batch: Batch, N: int, spare: dist.ProcessGroup | None = None
) -> dict[str, Check]:
    """All checks, by name; every process of the library calls this and gets the same.

    Args:
        make: builds the library's method.
        setup: model and cut; checkpoint and optimizer are chosen here.
        batch: (N, seed) -> (inputs, targets).
        N: mini-batch size, a multiple of M; the unequal one has one example more.
        spare: a group for the check that may leave its group unusable.
    """
    quiet = replace(
        setup, layers=[_quiet(layer) for layer in setup.layers], optimizer=None, checkpoint="always"
    )
    inputs, targets = batch(N, setup.seed)
    method = make(quiet)
    try:
        found, trained = _gradients(method, quiet, inputs, targets)
        names = ("batch norm", "evaluation")
        found |= (
            _after(method, quiet, inputs, targets)
            if trained
            else dict.fromkeys(names, found["gradients"])
        )
    finally:
        method.close()
    found["dropout"] = _dropout(make, setup, inputs, targets)
    inputs, targets = batch(N + 1, setup.seed)
    odd = make(replace(quiet, sample=split(inputs, setup.micro_batches)[0], group=spare))
    try:
        unequal, _ = _gradients(odd, quiet, inputs, targets)
    finally:
        odd.close()
    return found | {"unequal micro-batches": unequal["gradients"]}


def _gradients(
    method: Method, setup: Setup, inputs: Tree, targets: Tree
) -> tuple[dict[str, Check], bool]:
    """Loss and gradients of one step, and whether there was one."""
    step, refusal = _tried(method, lambda: method.train_step(inputs, targets))
    if refusal:
        return {"gradients": Check("refused", None, refusal)}, False
    expected = _reference(method, setup, inputs, targets)
    gradients = _whole(
        method, {n: p.grad for n, p in method.module.named_parameters() if p.grad is not None}
    )
    sizes = [batch_size(part) for part in method.cut(inputs)]
    text = (
        f"micro-batches of {', '.join(map(str, sizes))}: loss {step.loss:.6f}, unsplit "
        f"{expected.loss:.6f}"
    )
    numbers = {**gradients, "loss": torch.tensor(step.loss)}
    return {
        "gradients": _compared(
            numbers, {**expected.gradients, "loss": torch.tensor(expected.loss)}, text
        )
    }, True


def _after(method: Method, setup: Setup, inputs: Tree, targets: Tree) -> dict[str, Check]:
    """Batch norm's running statistics after the step, and evaluation with whatever they are."""
    expected = _reference(method, setup, inputs, targets)
    state = _whole(method, method.module.state_dict())
    norm = Check("none", None, "the model has no batch norm")
    if expected.running:
        counts = {int(v) for n, v in state.items() if n.endswith("num_batches_tracked")}
        text = f"after one step num_batches_tracked is {', '.join(map(str, sorted(counts)))}"
        norm = _compared(state, expected.running, text)
        norm = norm if counts == {1} else replace(norm, verdict="wrong")
    result, refusal = _tried(method, lambda: method.evaluate(inputs, targets))
    if refusal:
        return {"batch norm": norm, "evaluation": Check("refused", None, refusal)}
    parts = [part for part in method.gather(result.outputs) if part is not None]
    outputs = {str(n): t.cpu() for n, t in enumerate(flatten(parts[-1])[0])}
    unsplit = {
        str(n): t.cpu() for n, t in enumerate(flatten(_evaluated(method, setup, inputs, state))[0])
    }
    text = "outputs with the statistics that training left"
    return {"batch norm": norm, "evaluation": _compared(outputs, unsplit, text)}


def _dropout(make: Make, setup: Setup, inputs: Tree, targets: Tree) -> Check:
    """Are the same activations dropped when a stage is recomputed? Gradients with recomputation and without."""
    modules = [build(layer, n, setup.seed, setup.device) for n, layer in enumerate(setup.layers)]
    if not any(
        isinstance(part, _DROPOUTS) and part.p for module in modules for part in module.modules()
    ):
        return Check("none", None, "the model has no dropout")
    found: dict[str, State] = {}
    for checkpoint in ("always", "never"):
        method = make(replace(setup, checkpoint=checkpoint, optimizer=None))
        try:
            with torch.random.fork_rng():
                torch.manual_seed(setup.seed)
                _, refusal = _tried(method, lambda: method.train_step(inputs, targets))  # noqa: B023
            if refusal:
                return Check("refused", None, refusal)
            named = method.module.named_parameters()
            found[checkpoint] = _whole(method, {n: p.grad for n, p in named if p.grad is not None})
        finally:
            method.close()
    return _compared(found["always"], found["never"], "gradients, always against never recomputed")


def _reference(method: Method, setup: Setup, inputs: Tree, targets: Tree) -> _Reference:
    """The unsplit model on this library's own micro-batches."""
    model = _unsplit(setup)
    norms: dict[str, Any] = {
        name: module for name, module in model.named_modules() if isinstance(module, BATCH_NORMS)
    }
    before = {
        name: (norm.running_mean.clone(), norm.running_var.clone()) for name, norm in norms.items()
    }
    seen: dict[str, list[Tensor]] = {name: [] for name in norms}
    for name, norm in norms.items():
        norm.register_forward_pre_hook(
            lambda _norm, given, name=name: seen[name].append(given[0].detach())
        )
    total, loss = batch_size(inputs), 0.0
    for part, target in zip(method.cut(inputs), method.cut(targets), strict=True):
        share = setup.loss(model(part), target) * (batch_size(part) / total)
        share.backward()
        loss += share.item()
    running: State = {}
    for name, norm in norms.items():
        values = torch.cat(seen[name]).transpose(0, 1).flatten(1)  # [C, values]
        factor = 1.0 if norm.momentum is None else norm.momentum
        for key, old, new in zip(
            ("mean", "var"), before[name], (values.mean(1), values.var(1)), strict=True
        ):
            running[f"{name}.running_{key}"] = old.lerp(new, factor).cpu()
    return _Reference(
        loss, {n: p.grad.cpu() for n, p in model.named_parameters() if p.grad is not None}, running
    )


def _evaluated(method: Method, setup: Setup, inputs: Tree, state: State) -> Tree:
    """Outputs of the unsplit model in that state."""
    model = _unsplit(setup)
    model.load_state_dict({name: state[name] for name in model.state_dict()})
    model.eval()
    with torch.no_grad():
        return gather([model(part) for part in method.cut(inputs)])


def _unsplit(setup: Setup) -> nn.Sequential:
    return nn.Sequential(
        *(build(layer, n, setup.seed, setup.device) for n, layer in enumerate(setup.layers))
    )


def _quiet(layer: Layer) -> Layer:
    """The same layer with nothing dropped."""

    def made() -> nn.Module:
        module = deepcopy(layer) if isinstance(layer, nn.Module) else layer()
        for part in module.modules():
            if isinstance(part, _DROPOUTS):
                part.p = 0.0
        return module

    return made


def _tried(method: Method, action: Callable[[], Any]) -> tuple[Any, str]:
    """What it returned, and the error that came first on any process, as one line."""
    result, failure = None, None
    try:
        result = action()
    except Exception as error:
        failure = (time.perf_counter(), " ".join(f"{type(error).__name__}: {error}".split())[:200])
    failures = [each for each in method.gather(failure) if each is not None]
    return result, min(failures)[1] if failures else ""


def _whole(method: Method, part: Mapping[str, Tensor]) -> State:
    """The parts of all processes together, on the CPU."""
    own = {name: tensor.detach().cpu() for name, tensor in part.items()}
    return {name: tensor for each in method.gather(own) for name, tensor in each.items()}


def _compared(found: State, expected: State, text: str) -> Check:
    """Greatest difference; `ok` where it is near nothing beside the greatest number expected."""
    if missing := sorted(expected.keys() - found.keys()):
        return Check("wrong", None, f"{text}; missing: {', '.join(missing)}")
    worst, size = 0.0, 0.0
    for name, target in expected.items():
        difference = (found[name].double() - target.double()).abs().max().item()
        worst = difference if difference != difference else max(worst, difference)
        size = max(size, target.abs().max().item())
        if worst != worst:
            return Check("wrong", None, f"{text}; {name} is not finite")
    verdict: Verdict = "ok" if worst <= _NEAR * max(size, 1e-3) else "wrong"
    return Check(verdict, worst, f"{text}; off by {worst:.1e} at most, of numbers up to {size:.3g}")
