"""Tables of calibrated layer times for the terminal, beside the roofline of their machine."""

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
    from repro.gpipe.partition.layer_costs import Profile

LETTERS = {"forward": "F", "recompute": "R", "backward": "B"}


def tables(spec: RunSpec, record: CalibrateRound, profile: Path) -> list["RenderableType"]:
    """A table each for F, R and B, with a row per layer.

    The columns are milliseconds at every size, and for the largest size also the milliseconds of
    one process alone and the ratio to the roofline.

    Args:
        spec: of the calibration.
        record: of the calibration.
        profile: path of this machine's device profile; without that file there is no roofline.
    """
    from repro.costs import device

    calibration = record.calibration
    sizes = calibration.sizes
    missing = f"no {profile}, so no roofline; `repro calibrate` without a model makes it"
    limits = None
    if profile.exists():
        try:
            limits = roofline(spec, sizes[-1], device.load(profile))
        except ValueError as error:  # the measured times are shown all the same
            missing = f"no roofline: {error}"
    columns = ["layer", *(f"n={n}" for n in sizes), f"n={sizes[-1]} alone"]
    if limits is not None:
        columns.append("over roofline")
    L = len(calibration.update)
    layers = {str(index): slice(index, index + 1) for index in range(L)} | {"all": slice(None)}
    parts: list[RenderableType] = []
    for kind in KINDS:
        rows = []
        for name, part in layers.items():
            times = [sum(row[part]) for row in getattr(calibration, kind)]
            alone = sum(getattr(calibration.alone, kind)[-1][part])
            cells = [name, *(_milliseconds(seconds) for seconds in [*times, alone])]
            if limits is not None:
                limit = sum(getattr(limits, kind)[part])
                cells.append(f"{times[-1] / limit:.2f}" if limit else "-")
            rows.append(cells)
        examples = record.unit.partition("/")[0]
        title = f"{LETTERS[kind]} of each layer (ms), micro-batches of n {examples}, measured"
        parts.append(table_of(columns, rows, ("layer",), title))
    if limits is None:
        parts.append(missing)
    else:
        parts.append(
            f"over roofline: measured time over the time that the cost model gives on {profile}, "
            f"at n={sizes[-1]}"
        )
    return parts


def roofline(spec: RunSpec, n: int, device: "Device") -> "Profile":
    """Simulated times of each layer's counted operators on a device, for n examples."""
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


def _milliseconds(seconds: float) -> str:
    return f"{1e3 * seconds:,.2f}"
