"""Checks runs against their models before workers start: names, arguments, layers and shapes.

Each distinct model that is not our own passes one micro-batch through its layers and its loss on
fake tensors. These have shapes but no memory, so a model of any size takes a second or two.
"""

from collections.abc import Iterable, Sequence
from copy import deepcopy
from typing import Any

import torch
from torch import nn

from repro.costs import mini_batch
from repro.costs.counter import Counter
from repro.costs.size_ladder import size_ladders
from repro.costs.stage_memory import micro_batch
from repro.gpipe.core.microbatch import map_leaves, sizes, split, unwrapped
from repro.harness import predict
from repro.harness.plan import Plan
from repro.harness.spec import TIMED, RunSpec, canonical
from repro.io.untrusted import message, short
from repro.methods.divided import refuse_indivisible
from repro.models import BUILDERS, Model, build


def check_plans(plans: Sequence[Plan]) -> None:
    """Raise a one-line ValueError if a run does not fit its model.

    Only missing runs and newly skipped ones are checked, so that a second start builds no model.
    """
    specs = [
        run.spec
        for plan in plans
        for run in plan.runs
        if run.missing
        or (run.status == "skipped" and plan.journal.status(run.id).word != "skipped")
    ]
    if specs:
        check(specs, plans[0].machine.device)


def check(specs: Iterable[RunSpec], device: str) -> None:
    """Check runs against their models.

    Args:
        specs: the runs.
        device: "cpu" or "cuda", what measured runs compute on.

    Raises:
        ValueError: one line, for the first run that cannot work: an unknown model or argument, a
            user's code that cannot be imported or that fails, too few layers, shapes that do not
            fit together.
    """
    built: dict[str, Model] = {}
    distinct: list[RunSpec] = []
    for spec in specs:
        if spec.task == "fit":  # builds models of many sizes
            check_model(spec)
            continue
        key = canonical([spec.model, spec.model_args])
        if key in built:
            check_model(spec, built[key])
            continue
        model = built[key] = build(spec.model, **spec.arguments)
        check_model(spec, model)
        # The builders of our own models check the arguments; layers that wait would really wait.
        if spec.model not in BUILDERS and not predict.waits(model):
            distinct.append(spec)
    rehearse(distinct, device)


def check_model(spec: RunSpec, model: Model | None = None) -> None:
    """Check a run against its model: name, arguments, number of layers, fidelity.

    Args:
        spec: the run.
        model: that of the spec, if it was built before. No layer is built.

    Raises:
        ValueError: one line.
    """
    if spec.task == "fit":
        sizes = size_ladders(spec.model, spec.arguments, None)
        build(spec.model, **sizes[0][0])
        if len(sizes) > 1 and spec.fidelity == "measured":
            raise ValueError(
                f"model_args = {spec.model_args} of {spec.model}: a measured fit grows one "
                "argument; fix all others, such as L"
            )
        return
    model = model or build(spec.model, **spec.arguments)
    if spec.task in ("calibrate", "roofline") and predict.waits(model):
        raise ValueError(
            f"model = '{spec.model}' with task = '{spec.task}': its layers wait as long as they "
            f"say, so there is nothing to time; `repro simulate {spec.model}` takes what they say"
        )
    if spec.modelled:
        predict.check(spec, model)
    elif spec.fidelity not in TIMED:
        raise ValueError(
            f"fidelity = '{spec.fidelity}': training runs are {', '.join(TIMED)} or simulated; "
            "choose one"
        )
    else:
        kind, fidelity = ("wait", "emulated") if predict.waits(model) else ("compute", "measured")
        if spec.fidelity != fidelity:
            raise ValueError(
                f"fidelity = '{spec.fidelity}': the layers of {spec.model} {kind}, so allowed is "
                f"'{fidelity}' or 'simulated'; set that"
            )
    spec.fit(len(model.layers))
    if spec.tensor_parallel is not None:
        try:
            refuse_indivisible(model.layers, spec.tensor_parallel)
        except ValueError as error:
            raise ValueError(f"model = '{spec.model}' with {error}") from None


def rehearse(specs: Iterable[RunSpec], device: str) -> None:
    """Pass one micro-batch through the model of each run; errors as of `check`."""
    last: Counter | None = None
    for spec in specs:
        last = _pass(spec, build(spec.model, **spec.arguments), device, last)


def _pass(spec: RunSpec, model: Model, device: str, like: Counter | None) -> Counter | None:
    """Pass one micro-batch through layers and loss; returns the counter for the next model."""
    examples = sizes(spec.N // spec.D, spec.M)[0]
    try:
        inputs, targets = (
            micro_batch(mini_batch(few, examples), examples) for few in model.batch(1, 0)
        )
        counter = Counter(model.layers, model.loss, like=like)
        counter.head(inputs, targets, graph=False)
    except Exception as error:
        if spec.modelled:  # such a run uses fake tensors alone
            kind = "" if isinstance(error, ValueError) else f"{type(error).__name__}: "
            raise ValueError(f"model = {short(spec.model)}: {kind}{message(error)}") from error
        # Fake tensors have no values, which a layer may need. Real tensors decide.
        _pass_real_tensors(spec, model, device)
        return like
    return counter


def _pass_real_tensors(spec: RunSpec, model: Model, device: str) -> None:
    """Pass the first micro-batch through the model, with one layer in memory at a time.

    Raises:
        ValueError: one line that names the layer that fails.
    """
    where = "batch"
    try:
        with torch.random.fork_rng(), torch.no_grad():
            inputs, targets = (
                unwrapped(split(split(tree, spec.D)[0], spec.M)[0])
                for tree in model.batch(spec.N, spec.seed)
            )
            value: Any = _moved(inputs, device)
            for index, layer in enumerate(model.layers):
                where = f"layers[{index}] ({_name(layer)})"
                # A copy, since a pass would change the statistics of a ready-made layer.
                module = deepcopy(layer) if isinstance(layer, nn.Module) else layer()
                value = module.to(device)(value)
            where = "loss"
            model.loss(value, _moved(targets, device))
    except (MemoryError, torch.OutOfMemoryError):
        return  # there may be enough for one stage of it
    except Exception as error:
        raise ValueError(
            f"model = {short(spec.model)}, {where}, on a micro-batch of "
            f"{sizes(spec.N // spec.D, spec.M)[0]}: {type(error).__name__}: "
            f"{short(message(error), 200, quote=False)}"
        ) from error


def _moved(tree: Any, device: str) -> Any:
    return map_leaves(torch.Tensor, lambda tensor: tensor.to(device), tree)


def _name(layer: Any) -> str:
    return getattr(getattr(layer, "func", layer), "__name__", type(layer).__name__)
