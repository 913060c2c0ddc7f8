"""What only the models can tell, before any process is started: their names, arguments, layers and shapes.

Each distinct model that is not our own passes one micro-batch through its layers and its loss,
once, on fake tensors: these have shapes and no memory, so a model of any size takes a second or
two. That happens in a process of its own: a layer that hangs, or ends its process, must not do so
to the one that starts and watches all others.
"""

import json
import subprocess
import sys
import tempfile
import warnings
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
from repro.gpipe.runtime.processes import how
from repro.harness.outside import short
from repro.harness.plan import Plan
from repro.harness.spec import TIMED, RunSpec, canonical
from repro.harness.tasks import simulate
from repro.io.untrusted import message
from repro.models import BUILDERS, Model, build

_LONGEST = 120.0  # seconds; imports take most of what is usual
# around the answer: the user's code may print before and after it
_MARK, _END = "\x1erefused:", "\x1e"


def check_plans(plans: Sequence[Plan]) -> None:
    """Raise a one-line ValueError for what only the models can tell, before any process is started.

    What is done was checked when it was measured, what is skipped when it was first said to be: a
    second start looks at no model.
    """
    asked = [
        run.spec
        for plan in plans
        for run in plan.runs
        if run.missing
        or (run.status == "skipped" and plan.folder.status(run.id).status != "skipped")
    ]
    if asked:
        check(asked, plans[0].machine.device)


def check(specs: Iterable[RunSpec], device: str) -> None:
    """Hold runs against their models.

    Args:
        specs: the runs.
        device: "cpu" or "cuda", what measured runs compute on.

    Raises:
        ValueError: one line, for the first run that cannot be: an unknown model, arguments that it
            does not take, code of the user's that cannot be imported or that fails, too few layers,
            shapes that do not fit together.
    """
    built: dict[str, Model] = {}
    distinct: list[RunSpec] = []
    for spec in specs:
        if spec.task == "fit":  # which builds models of many sizes
            suits(spec)
            continue
        key = canonical([spec.model, spec.model_args])
        if key in built:
            suits(spec, built[key])
            continue
        model = built[key] = build(spec.model, **spec.arguments)
        suits(spec, model)
        # Our own models are held against their arguments by their builders, and layers that wait
        # would really wait.
        if spec.model not in BUILDERS and not simulate.waits(model):
            distinct.append(spec)
    if distinct and (told := _told_apart(distinct, device)):
        raise ValueError(told)


def suits(spec: RunSpec, model: Model | None = None) -> None:
    """Raise a one-line ValueError for what only the model can tell: its name, arguments, L, and whether it computes.

    Builds the list of layers but no layer; `model` is that of the spec, where it was built before.
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
    if spec.task == "calibrate" and simulate.waits(model):
        raise ValueError(
            f"model = '{spec.model}' with task = 'calibrate': its layers wait as long as they say, "
            f"so there is nothing to time; `repro simulate {spec.model}` takes what they say"
        )
    if spec.modelled:
        simulate.check(spec, model)
    elif spec.fidelity not in TIMED:
        raise ValueError(
            f"fidelity = '{spec.fidelity}': training runs are {', '.join(TIMED)} or simulated; "
            "choose one"
        )
    elif (waits := simulate.waits(model)) != (spec.fidelity == "emulated"):
        raise ValueError(
            f"fidelity = '{spec.fidelity}': the layers of {spec.model} "
            f"{'wait' if waits else 'compute'}, so allowed is "
            f"'{'emulated' if waits else 'measured'}' or 'simulated'; set that"
        )
    spec.fit(len(model.layers))


def rehearse(specs: Iterable[RunSpec], device: str) -> None:
    """Pass one micro-batch through the model of each of these runs, in this process; errors as of `check`."""
    last: Counter | None = None
    for spec in specs:
        last = _pass(spec, build(spec.model, **spec.arguments), device, last)


def _told_apart(specs: list[RunSpec], device: str) -> str:
    """What `rehearse` refuses in a process of its own.

    Nothing, and one warning, where that process ends without an answer or hangs: the run will tell.
    """
    task = {"path": sys.path, "specs": [spec.plain() for spec in specs], "device": device}
    command = [sys.executable, "-m", "repro.harness.rehearsal"]
    # Files, not pipes: a process that the user's code starts may hold a pipe for as long as it
    # likes.
    with (
        tempfile.TemporaryFile("w+") as asked,
        tempfile.TemporaryFile("w+", errors="replace") as answered,
    ):
        json.dump(task, asked)
        asked.seek(0)
        try:
            code = subprocess.run(
                command,
                stdin=asked,
                stdout=answered,
                stderr=subprocess.DEVNULL,
                timeout=_LONGEST,
                check=False,
            ).returncode
            ended = f"the process in which it ran ended with {how(code)}"
        except subprocess.TimeoutExpired:
            ended = f"it took more than {_LONGEST:.0f} s"
        answered.seek(0)
        answer = answered.read().rpartition(_MARK)[2].partition(_END)
    if not answer[1]:
        models = ", ".join(dict.fromkeys(short(spec.model) for spec in specs))
        warnings.warn(
            f"model = {models}: not tried before the start, since {ended}; the run will tell",
            stacklevel=1,
        )
        return ""
    return json.loads(answer[0])


def _main() -> None:
    """The process of its own: a task on standard input, the refusal as JSON behind a mark on standard output."""
    task = json.load(sys.stdin)
    sys.path[:] = task["path"]
    told = ""
    try:
        rehearse([RunSpec(**spec) for spec in task["specs"]], task["device"])
    except ValueError as error:
        told = message(error)
    print(_MARK + json.dumps(told) + _END, flush=True)


def _pass(spec: RunSpec, model: Model, device: str, like: Counter | None) -> Counter | None:
    """One micro-batch through layers and loss; returns the counter, whose traces the next model may use."""
    examples = sizes(spec.N // spec.D, spec.M)[0]
    try:
        inputs, targets = (
            micro_batch(mini_batch(few, examples), examples) for few in model.batch(1, 0)
        )
        counter = Counter(model.layers, model.loss, like=like)
        counter.head(inputs, targets, graph=False)
    except Exception as error:
        if spec.modelled:  # there is nothing but fake tensors
            told = "" if isinstance(error, ValueError) else f"{type(error).__name__}: "
            told += message(error)
            raise ValueError(f"model = {short(spec.model)}: {told}") from error
        # Fake tensors have no values, and no layer is obliged to do without: what counts are real
        # ones.
        _really(spec, model, device)
        return like
    return counter


def _really(spec: RunSpec, model: Model, device: str) -> None:
    """The first micro-batch on real tensors, one layer in memory at a time; ValueError names what fails."""
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
                # A ready-made layer keeps what it is: its statistics would change.
                module = deepcopy(layer) if isinstance(layer, nn.Module) else layer()
                value = module.to(device)(value)
            where = "loss"
            model.loss(value, _moved(targets, device))
    except (MemoryError, torch.OutOfMemoryError):
        return  # of one process here; its stages may have room
    except Exception as error:
        raise ValueError(
            f"model = {short(spec.model)}, {where}, on a micro-batch of "
            f"{sizes(spec.N // spec.D, spec.M)[0]}: {type(error).__name__}: "
            f"{short(message(error), 200, quote=False)}"
        ) from error


def _moved(tree: Any, device: str) -> Any:
    """The same tree with its tensors on the device."""
    return map_leaves(torch.Tensor, lambda tensor: tensor.to(device), tree)


def _name(layer: Any) -> str:
    return getattr(getattr(layer, "func", layer), "__name__", type(layer).__name__)


if __name__ == "__main__":
    _main()
