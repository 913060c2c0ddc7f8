"""Which fields of a `RunSpec` go together: one-line mistakes that no field alone shows."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from repro.harness.spec import RunSpec


def check(spec: "RunSpec") -> None:
    """Raise a one-line ValueError for fields that do not go together."""
    if spec.library != "repro":
        _peer(spec)
    _fit(spec)
    _modelled(spec)


def _peer(spec: "RunSpec") -> None:
    """What the peer libraries are not asked to do."""
    wanted = {"D": (1,), "schedule": ("gpipe",), "checkpoint": ("always", "never")}
    wanted |= {"trace": (False,), "transport": ("auto",), "link": (None,)}
    for field, allowed in wanted.items():
        if (value := getattr(spec, field)) not in allowed:
            words = " or ".join(repr(one) for one in allowed)
            raise ValueError(
                f"{field} = {value!r} with library = '{spec.library}': allowed is {words}; set that, or library='repro'"
            )


def _fit(spec: "RunSpec") -> None:
    """Only some of what makes up a search for the largest model."""
    fits, simulated = spec.task == "fit", spec.fidelity == "simulated"
    wanted = {
        "balance": (spec.balance == "memory") == fits,
        "memory": (spec.memory is None) != fits or simulated,
        "fidelity": spec.fidelity in ("counted", "measured") if fits else spec.fidelity != "counted",
        "D": spec.D == 1 or not fits,
        "library": spec.library == "repro" or not fits,
    }
    if wrong := [field for field, fine in wanted.items() if not fine]:
        raise ValueError(
            f"{wrong[0]} = {getattr(spec, wrong[0])!r} with task = '{spec.task}': a fit has a memory in bytes, "
            "balance='memory', D=1 and library='repro' and is counted or measured, and nothing else has; set that"
        )


def _modelled(spec: "RunSpec") -> None:
    """What the cost models have no part in."""
    simulated, emulated = spec.fidelity == "simulated", spec.fidelity == "emulated"
    if spec.modelled and spec.N % spec.M:
        raise ValueError(
            f"N = {spec.N} with fidelity = '{spec.fidelity}': micro-batches are modelled alike, so N must be a "
            f"multiple of M = {spec.M}; try N={spec.N - spec.N % spec.M}"
        )
    timing = spec.task == "calibrate"
    wanted = {
        "profile": (spec.profile is None or simulated or emulated, "only simulated and emulated runs have one"),
        "memory": (
            not simulated or spec.memory is None or spec.profile is not None,
            "only simulated runs with a device's profile, and fits, have one",
        ),
        "stretch": (spec.stretch is None or (emulated and spec.profile), "only emulated runs with a profile have one"),
        "task": (spec.task == "train" or not (simulated or spec.profile), "task='train' alone can be modelled"),
        "fidelity": (spec.fidelity == "measured" or not timing, "task='calibrate' is measured"),
        "link": (spec.link is None or spec.task == "train", "only task='train' has one"),
        "D": (spec.D == 1 or not (simulated or spec.profile or timing), "one replica is modelled, or timed for it"),
        "library": (
            spec.library == "repro" or not (simulated or spec.profile or timing),
            "'repro' alone is modelled, or timed for it",
        ),
    }
    for field, (fine, words) in wanted.items():
        if not fine:
            raise ValueError(
                f"{field} = {getattr(spec, field)!r} with fidelity = '{spec.fidelity}': {words}; leave it out"
            )
