"""What calibrated layers took, as tables for the terminal, beside the roofline of the machine that they ran on."""

from pathlib import Path
from typing import TYPE_CHECKING

from repro.harness.schema import CalibrateRound
from repro.harness.spec import RunSpec
from repro.harness.tasks.calibrate import KINDS
from repro.harness.terminal import table_of
from repro.models import build

if TYPE_CHECKING:
    from rich.console import RenderableType

    from repro.costs import Device
    from repro.gpipe.partition.layer_profile import Profile

LETTERS = {"forward": "F", "recompute": "R", "backward": "B"}


def tables(spec: RunSpec, record: CalibrateRound, profile: Path) -> list["RenderableType"]:
    """One for F, R and B each: milliseconds of every layer at every size, then the largest alone and over the roofline.

    Args:
        spec: of the calibration.
        record: of the calibration.
        profile: where this machine's device profile would be; without it there is no roofline.
    """
    from repro.costs import device

    calibration = record.calibration
    sizes = calibration.sizes
    missing = (
        f"no {profile}: `repro calibrate` alone makes it, and the roofline's limits stand here then"
    )
    limits = None
    if profile.exists():
        try:
            limits = roofline(spec, sizes[-1], device.load(profile))
        except ValueError as error:  # what was timed is shown all the same
            missing = f"no roofline's limits: {error}"
    names = [f"{index}" for index in range(len(calibration.update))]
    parts: list[RenderableType] = []
    for kind in KINDS:
        columns = (
            "layer",
            *(f"n={n}" for n in sizes),
            f"n={sizes[-1]} alone",
            *(["over roofline"] if limits else []),
        )
        rows = []
        for index, name in enumerate([*names, "all"]):
            pick = slice(index, index + 1) if index < len(names) else slice(None)
            took = [sum(row[pick]) for row in getattr(calibration, kind)]
            cells = [name, *map(_ms, took), _ms(sum(getattr(calibration.alone, kind)[-1][pick]))]
            if limits is not None:
                least = sum(getattr(limits, kind)[pick])
                cells.append(f"{took[-1] / least:.2f}" if least else "-")
            rows.append(tuple(cells))
        title = (
            f"{LETTERS[kind]} of each layer (ms), micro-batches of n "
            f"{record.unit.partition('/')[0]}, measured"
        )
        parts.append(table_of(columns, rows, ("layer",), title))
    if limits is None:
        parts.append(missing)
    else:
        parts.append(
            f"over roofline: over the layer's counted operators on {profile}, simulated, at "
            f"n={sizes[-1]}"
        )
    return parts


def roofline(spec: RunSpec, n: int, device: "Device") -> "Profile":
    """What the counted operators of each layer would take on a device at its attainable rates."""
    from repro.costs import Counter
    from repro.costs import roofline as costs
    from repro.costs.stage_memory import micro_batch

    model = build(spec.model, **spec.arguments)
    counter = Counter(model.layers, model.loss)
    inputs, targets = (micro_batch(few, n) for few in model.batch(1, 0))
    return costs.profile(
        costs.layers(counter, inputs, device),
        costs.head(counter, inputs, targets, device),
        recompute=True,
    )


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:,.2f}"
