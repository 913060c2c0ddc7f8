"""What differs between runs, and which runs are each other's baselines."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from repro.harness.spec import BASELINES, PLAIN, RunSpec, canonical
from repro.io.untrusted import short

# Fields that `differences` names where runs of the same model and fidelity differ in them.
_NAMED = (
    "balance", "partitioner", "optimizer", "lr", "seed", "warmup", "steps", "transport",
    "stages_per_rank", "tensor_parallel", "zero", "figures",
)  # fmt: skip


def varied(specs: Sequence[RunSpec], fields: Iterable[str]) -> list[str]:
    return [
        name for name in fields if any(getattr(s, name) != getattr(specs[0], name) for s in specs)
    ]


def _varied_arguments(specs: Sequence[RunSpec]) -> list[str]:
    """The arguments of models in which runs differ; `D` of a model is not a run's `D`."""
    names = {name: None for spec in specs for name in spec.model_args}
    first = specs[0].model_args
    return [n for n in names if any(s.model_args.get(n) != first.get(n) for s in specs)]


def differences(runs: Mapping[str, RunSpec]) -> dict[str, str]:
    """Run id -> the settings that tell the run from the others, such as `width=64, lr=0.1`.

    These are arguments of the model, the fields of `_NAMED` and the data of a training in which
    runs of the same model and fidelity differ; of an arm of trainings its name and the seed. K, M
    and the library are part of the id; other fields have columns of their own.
    """
    alike: dict[tuple[str, str], list[str]] = {}
    for run, spec in runs.items():
        alike.setdefault((spec.model, spec.fidelity), []).append(run)
    texts = {}
    for members in alike.values():
        specs = [runs[run] for run in members]
        usual = [spec for spec in specs if spec.control is None] or specs
        arguments, named = _varied_arguments(usual), varied(usual, _NAMED)
        data = [", ".join(spec.training.data) if spec.training else "" for spec in specs]
        differ = len(set(data)) > 1
        for run, spec, trained_on in zip(members, specs, data, strict=True):
            settings = {n: value for n, value in spec.model_args.items() if n in arguments}
            values = {name: getattr(spec, name) for name in named}
            settings |= {name: value for name, value in values.items() if value is not None}
            if spec.control:
                settings["control"] = spec.control
            if spec.training and spec.training.arm:
                settings = {"arm": spec.training.arm, "seed": spec.seed}
                if spec.training.tuning:
                    settings["tried rate"] = spec.training.recipe["lr"]
            elif differ:
                settings["data"] = trained_on
            texts[run] = ", ".join(
                f"{name}={short(value, 40, quote=False)}" for name, value in settings.items()
            )
    return texts


def compared(spec: RunSpec, **changed: Any) -> str:
    """A dictionary key that is equal for a spec and its baseline, with `changed` fields.

    Both are cut by the same rule, but for K=1, where nothing is cut. A list of layer counts fits
    one K alone, so a baseline of another K is cut by time. The seconds of an emulated run are
    divided by its stretch, which may differ.
    """
    fields = spec.plain() | changed | {"stretch": None}
    if fields["K"] == 1:
        fields |= {"balance": None, "partitioner": None}
    elif fields["K"] != spec.K and not isinstance(fields["balance"], str):
        fields["balance"] = "time"
    return canonical({name: value for name, value in fields.items() if value is not None})


def baselines(spec: RunSpec) -> list[dict[str, Any]]:
    """What a run is divided by, as the fields in which that run differs.

    It is plain training and, of K > 1, the same run at K=1, and at K=2 and M=1; of another library
    the same by ours too, over the default transport and over gloo. Only steps of runs are divided.
    """
    if spec.task != "train":
        return []
    if spec.K == 1:
        return [PLAIN]
    ours = {"library": "repro"}
    beside = [] if spec.library == "repro" else [ours, ours | {"transport": "gloo"}]
    return [*BASELINES.values(), *beside]
