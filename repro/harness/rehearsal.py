"""Checks runs against their models before workers start: names, arguments, numbers of layers."""

from collections.abc import Iterable, Sequence

from repro.costs import device as devices
from repro.costs.size_ladder import size_ladders
from repro.harness.plan import Plan
from repro.harness.predict import waits
from repro.harness.spec import RunSpec, canonical
from repro.io.redact import tilde_to_home
from repro.methods.divided import refuse_indivisible
from repro.methods.named import COUNTED
from repro.models import Model, build

# What replaces tasks that runs no longer have.
_OLD_TASKS = {
    "roofline": "'calibrate' times layers",
    "check": "`repro run consistency` compares trainings with other K",
}


def check_plans(plans: Sequence[Plan]) -> None:
    """Raise a one-line ValueError if a run does not fit its model.

    Only missing runs and newly skipped ones are checked, so that a second start builds no model.
    """
    for plan in plans:
        known = {run.id for run in plan.runs if plan.journal.status(run.id).word == "skipped"}
        skipped = {run.id for run in plan.runs if run.obstacle} - known
        check(run.spec for run in plan.runs if run.missing or run.id in skipped)


def check(specs: Iterable[RunSpec]) -> None:
    """Raise a one-line ValueError for the first run that cannot work with its model."""
    built: dict[str, Model] = {}
    for spec in specs:
        if spec.task == "fit":  # builds models of many sizes
            _check_fit(spec)
            continue
        key = canonical([spec.model, spec.model_args])
        model = built.get(key) or build(spec.model, **spec.arguments)
        check_model(spec, model)
        built[key] = model


def _check_fit(spec: RunSpec) -> None:
    ladders = size_ladders(spec.model, spec.arguments)
    build(spec.model, **ladders[0][0])
    if spec.fidelity == "measured" and [*map(len, ladders)] != [1]:
        raise ValueError(
            f"model_args = {spec.model_args} of {spec.model}: a measured fit trains one size; give "
            "its arguments, such as L"
        )


def check_model(spec: RunSpec, model: Model) -> None:
    """Raise a one-line ValueError unless a run fits its model, of which no layer is built."""
    verb, fidelity = ("wait", "emulated") if waits(model) else ("compute", "measured")
    if spec.task in _OLD_TASKS:
        raise ValueError(f"task = '{spec.task}': only old records have it; {_OLD_TASKS[spec.task]}")
    if spec.task == "calibrate" and waits(model):
        raise ValueError(
            f"model = '{spec.model}' with task = '{spec.task}': its layers wait for fixed "
            f"times, and none is timed; `repro predict {spec.model} --K 2` needs no device"
        )
    if spec.fidelity == "simulated" and waits(model) == (spec.profile is not None):
        raise ValueError(
            f"profile = {spec.profile!r} with fidelity = '{spec.fidelity}': layers that compute "
            f"need a device; one of {', '.join(devices.names())}, or the path of a profile; layers "
            "that wait have fixed times"
        )
    if spec.profile is not None:
        devices.load(tilde_to_home(spec.profile))
    counts = spec.fidelity == "counted" and not waits(model)
    if not (spec.fidelity == "simulated" or counts) and spec.fidelity != fidelity:
        raise ValueError(
            f"fidelity = '{spec.fidelity}': the layers of {spec.model} {verb}, so allowed is "
            f"'{fidelity}' or 'simulated'; set that"
        )
    spec.check_depth(len(model.layers))
    if spec.library == "torchgpipe":
        raise ValueError("library = 'torchgpipe': only old records have it; use library='torch'")
    if spec.library in COUNTED:
        if spec.task != "traffic" or not spec.model.startswith("amoebanet"):
            raise ValueError(
                f"library = '{spec.library}': convolutions are not divided; what those of "
                "AmoebaNet would send is counted; set task='traffic' and model='amoebanet-d'"
            )
    elif spec.tensor_parallel is not None:
        if spec.library == "repro":
            raise ValueError(
                f"tensor_parallel = {spec.tensor_parallel}: our pipeline divides no layer; use "
                "library='tensor'"
            )
        try:
            refuse_indivisible(model.layers, spec.tensor_parallel)
        except ValueError as error:
            raise ValueError(f"model = '{spec.model}' with {error}") from None
