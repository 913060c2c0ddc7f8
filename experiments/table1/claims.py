"""Ours for the claims about Table 1: counted at the paper's own sizes, by every reading."""

from experiments.table1.accountings import READINGS, Reading
from experiments.table1.cells import setting_name
from experiments.table1.fits import (
    BYTES_PER_PARAMETER,
    MODELS,
    Fit,
    activations,
    printed_fit,
    recorded_fits,
    unit,
)
from experiments.table1.laws import Judged, activation_points, law_fits
from experiments.table1.runs import (
    ACCOUNTINGS,
    DECIMAL_16G,
    DROPOUT,
    MEMORY,
    N_OF,
    NAME,
    OPTIMIZER,
    M,
)
from repro.claims.cells import cell_id
from repro.claims.claim import Evidence
from repro.harness.results import Results
from repro.paper import Size, table1, table1_claims
from repro.paper.theory import MEMORY_LAWS

FAVOURED = Reading(OPTIMIZER, M)  # what everything else of Table 1 is counted with


def evidence(results: Results) -> dict[str, Evidence]:
    fits = recorded_fits(results, fidelity="counted")
    ours: dict[str, Evidence] = {}
    for size in table1():
        fit = printed_fit(fits, size)
        if fit is not None:
            ours |= _printed_size(size, fit, fits)
        largest = _largest(size, fits)
        if largest is not None:
            ours[cell_id(NAME, size.model, size.name, "largest")] = largest
    return ours | _multiples(fits) | _laws(results)


def _counted(value: float, *fits: Fit) -> Evidence:
    return Evidence(value, "counted", tuple(fit.run.id for fit in fits), papers_size=True)


def _printed_size(size: Size, fit: Fit, fits: list[Fit]) -> dict[str, Evidence]:
    """Parameters, their 12 bytes and the activations of a printed size."""
    parameters, (_, bytes_per_unit) = fit.cut.parameters, unit(size.model)
    by_setting = {FAVOURED.name: activations(fit) / bytes_per_unit}
    runs = {fit.run.id: None}
    for reading in READINGS:
        for changed in ({}, DROPOUT):
            other = printed_fit(fits, size, *reading, changed)
            if other is None or other is fit:
                continue
            name = reading.name
            if changed:
                name += f" and dropout {DROPOUT['attention_dropout']:g} of attention weights"
            by_setting[name] = activations(other) / bytes_per_unit
            runs[other.run.id] = None
    value = by_setting.pop(FAVOURED.name)
    column = (NAME, size.model, size.name)
    return {
        cell_id(*column, "parameters"): _counted(parameters, fit),
        cell_id(*column, "parameter memory"): _counted(
            BYTES_PER_PARAMETER * parameters / bytes_per_unit, fit
        ),
        cell_id(*column, "activations"): Evidence(
            value,
            "counted",
            tuple(runs),
            papers_size=True,
            setting=FAVOURED.name,
            others=by_setting,
            fitted="two slots and M=32 were chosen by these cells",
        ),
    }


def _largest(size: Size, fits: list[Fit]) -> Evidence | None:
    """Parameters of the largest size that fits; 0 where none does."""
    model = size.model
    searches: dict[str, Fit] = {}
    favoured = ""
    for fit in fits:
        spec = fit.spec
        if (fit.model, fit.column) != (model, size.name) or fit.fixed_size:
            continue
        if N_OF[model] != spec.N or spec.memory not in (MEMORY[model], DECIMAL_16G):
            continue
        name = _setting(fit)
        searches.setdefault(name, fit)
        usual = not set(spec.model_args) and spec.memory == MEMORY[model]
        if usual and spec.optimizer == OPTIMIZER and (fit.naive or spec.M == M):
            favoured = name
    if favoured not in searches:
        return None
    values = {
        name: float(fit.largest.parameters) if fit.largest else 0.0
        for name, fit in searches.items()
    }
    return Evidence(
        values.pop(favoured),
        "counted",
        tuple(fit.run.id for fit in searches.values()),
        papers_size=True,
        setting=favoured,
        others=values,
    )


def _setting(fit: Fit) -> str:
    """`two slots, M=32, fused attention`: what the paper does not print."""
    # N is printed.
    _, *parts = setting_name(fit).split(", ")
    slots = ACCOUNTINGS[fit.spec.optimizer]
    return ", ".join([slots, *(part for part in parts if part != slots)])


def _multiples(fits: list[Fit]) -> dict[str, Evidence]:
    """How many times the parameters of Naive-1 a printed size has."""
    sizes = {(size.model, size.name): size for size in table1()}
    ours = {}
    for row in table1_claims():
        large = printed_fit(fits, sizes[row.model, f"Pipeline-{row.accelerators}"])
        small = printed_fit(fits, sizes[row.model, row.over])
        if large and small:
            times = large.cut.parameters / small.cut.parameters
            identity = cell_id(NAME, row.model, row.accelerators, "times")
            ours[identity] = _counted(times, large, small)
    return ours


def _laws(results: Results) -> dict[str, Evidence]:
    """Percent by which the paper's law is off at worst, over M, K or N."""
    law = MEMORY_LAWS[0]
    ours = {}
    for model in MODELS:
        points = activation_points(results, model, "always")
        if points:
            worst = 100 * float(max(Judged(model, law, points).worst.values()))
            runs = tuple(fit.run.id for fit in law_fits(results, model, "always"))
            ours[cell_id(NAME, model, "memory law")] = Evidence(worst, "counted", runs)
    return ours
