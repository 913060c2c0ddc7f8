"""What differs between runs, and which runs are each other's baselines."""

from collections.abc import Mapping, Sequence
from typing import Any

from repro.harness.spec import BASELINES, PLAIN, RunSpec, canonical
from repro.io.untrusted import short

# Fields that `differences` names where runs of the same model and fidelity differ in them.
_NAMED = (
    "balance", "partitioner", "optimizer", "lr", "seed", "warmup", "steps", "transport",
    "stages_per_rank", "tensor_parallel", "profile", "link", "memory", "figures",
)  # fmt: skip


def differences(runs: Mapping[str, RunSpec]) -> dict[str, str]:
    """Run id -> the settings that distinguish the run, such as `width=64, lr=0.1`.

    These are arguments of the model and the fields of `_NAMED` in which runs of the same model and
    fidelity differ; of an arm of trainings its name and the seed. K, M and the library are part of
    the id; other fields have columns of their own.
    """
    alike: dict[tuple[str, str], list[str]] = {}
    for run, spec in runs.items():
        alike.setdefault((spec.model, spec.fidelity), []).append(run)
    texts = {}
    for members in alike.values():
        specs = [runs[run] for run in members]
        usual = [spec for spec in specs if spec.control is None] or specs
        # `D` of a model is not a run's `D`.
        arguments = _varied([spec.model_args for spec in usual])
        named = _varied([{name: getattr(spec, name) for name in _NAMED} for spec in usual])
        for run in members:
            settings = _settings(runs[run], arguments, named)
            texts[run] = ", ".join(
                f"{name}={short(value, 60, quote=False)}" for name, value in settings.items()
            )
    return texts


def _varied(settings: Sequence[Mapping[str, Any]]) -> list[str]:
    """Names whose values differ."""
    names = dict.fromkeys(name for each in settings for name in each)
    return [n for n in names if any(each.get(n) != settings[0].get(n) for each in settings)]


def _settings(spec: RunSpec, arguments: Sequence[str], named: Sequence[str]) -> dict[str, Any]:
    training = spec.training
    if training and training.arm:
        rate = {"tried rate": training.recipe["lr"]} if training.tuning else {}
        return {"arm": training.arm, "seed": spec.seed, **rate}
    settings = {name: spec.model_args[name] for name in arguments if name in spec.model_args}
    fields = {name: getattr(spec, name) for name in (*named, "control")}
    return settings | {name: value for name, value in fields.items() if value is not None}


def compared(spec: RunSpec, **changed: Any) -> str:
    """A dictionary key that is equal for a spec and its baseline, with `changed` fields.

    Both are cut by the same rule, but for K=1, where nothing is cut. A list of layer counts fits
    one K alone, so a baseline of another K is cut by time.
    """
    fields = spec.plain() | changed
    if fields["K"] == 1:
        fields |= {"balance": None, "partitioner": None}
    elif fields["K"] != spec.K and not isinstance(fields["balance"], str):
        fields["balance"] = "time"
    return canonical({name: value for name, value in fields.items() if value is not None})


def baselines(spec: RunSpec) -> list[dict[str, Any]]:
    """What a run is divided by, as the fields in which that run differs.

    It is plain training and, of K > 1, the same run at K=1, and at K=2 and M=1; of another library
    the same by ours, over the default transport and over gloo; of a control the run that it
    measures again. Only steps of runs are divided.
    """
    if spec.control:
        return [{"control": None, "seed": spec.seed - 1}]
    if spec.task != "train":
        return []
    ours = {"library": "repro"}
    beside = [] if spec.library == "repro" else [ours, ours | {"transport": "gloo"}]
    return [*([PLAIN] if spec.K == 1 else BASELINES.values()), *beside]
