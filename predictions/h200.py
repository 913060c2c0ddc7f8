"""Fit the profile h200-torch to single layers that were timed on one H200.

    .venv/bin/python -m predictions.h200   # also writes predictions/2026-11-26-layers.json

The profile is repro/costs/devices/h200-torch.json. The fit sees every second size of the
micro-batch. The other file has the seconds of all sizes by this profile and by the data sheet's,
since counting so large a model takes as long as the whole report.
"""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from predictions import curve
from repro.costs import device as devices
from repro.costs.device import Device
from repro.gpipe.partition.layer_costs import LinkSpeed
from repro.harness.predict import Roofline
from repro.harness.results import load
from repro.harness.schema import CalibrateRound
from repro.models import Model, build
from repro.simulate.calibration import Calibration

ROOT = Path(__file__).parents[1]
MACHINE, NAME, DATE = "1x-h200", "h200-torch", "2026-11-26"
SOURCE = "fitted to layers of AmoebaNet-D and a Transformer, timed on one H200, predictions/h200.py"


def main() -> None:
    """Fit the profile and write it."""
    sheet = devices.load("h200")
    timed = [
        (run.spec, round_.record.calibration)
        for run in load(ROOT / "results/reference").runs
        for round_ in run.rounds
        if run.machine == MACHINE and isinstance(round_.record, CalibrateRound)
    ]
    models = [(build(spec.model, **spec.arguments), spec.optimizer) for spec, _ in timed]

    texts: dict[str, Any] = {"name": NAME, "title": f"{sheet.title}, as PyTorch attains it"}
    texts |= {"precision": sheet.precision, "date": DATE, "memory": sheet.memory.value}
    timed_layers = [times for _, times in timed]
    fitted = fit_to_layers(SOURCE, sheet.link, models, timed_layers, every=2, **texts)
    # What no layer shows is as on the data sheet.
    kept = {
        name: getattr(sheet, name)
        for name in Device.model_fields
        if name not in curve.FITTED and (name not in texts or name == "memory")
    }
    fitted = fitted.model_copy(update=kept)
    text = json.dumps(fitted.model_dump(), indent=2, allow_nan=False)
    (ROOT / f"repro/costs/devices/{NAME}.json").write_text(text + "\n", encoding="utf-8")
    profiles = {NAME: fitted, sheet.name: sheet}
    seconds = {
        spec.model: {
            n: {name: _total(Roofline(of, *model), n) for name, of in profiles.items()}
            for n in times.sizes
        }
        for model, (spec, times) in zip(models, timed, strict=True)
    }
    path = Path(__file__).with_name(f"{DATE}-layers.json")
    path.write_text(json.dumps({MACHINE: seconds}) + "\n", encoding="utf-8")


def fit_to_layers(
    text: str,
    link: LinkSpeed,
    models: Sequence[tuple[Model, str]],
    timed: Sequence[Calibration],
    every: int = 1,
    **about: Any,
) -> Device:
    """A device fitted to F, R and B of each layer of each model, in every `every`-th size.

    A model has the name of its optimizer beside it.
    """

    def predict(tried: Device) -> list[float]:
        tables = []
        for model, times in zip(models, timed, strict=True):
            source = Roofline(tried, *model)
            tables += [source.layers(n, "always") for n in times.sizes[::every]]
        return _flat((each.forward, each.recompute, each.backward) for each in tables)

    real = [
        of_size
        for times in timed
        for of_size in [*zip(times.forward, times.recompute, times.backward, strict=True)][::every]
    ]
    return curve.of_layers(text, link, predict, _flat(real), **about)


def _flat(sizes: Iterable[Sequence[Sequence[float]]]) -> list[float]:
    return [seconds for of_size in sizes for layers in of_size for seconds in layers]


def _total(source: Roofline, n: int) -> float:
    """Seconds of F, R and B over all layers."""
    of = source.layers(n, "always")
    return round(sum((*of.forward, *of.recompute, *of.backward)), 6)


if __name__ == "__main__":
    main()
