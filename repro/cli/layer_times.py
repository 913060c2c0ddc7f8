"""Tables of calibrated layer times for the terminal, beside the roofline of their machine."""

from pathlib import Path
from typing import TYPE_CHECKING

from repro.harness.predict import Roofline
from repro.harness.schema import CalibrateRound
from repro.harness.spec import RunSpec
from repro.harness.tasks.calibrate import KINDS
from repro.harness.terminal import table_of
from repro.models import build

if TYPE_CHECKING:
    from rich.console import RenderableType


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

    calibration, n = record.calibration, record.calibration.sizes[-1]
    assert calibration.alone is not None
    limits = None
    end = f"no {profile}, so no roofline; `repro calibrate` without a model makes it"
    if profile.exists():
        end = (
            f"over roofline: measured time over the time that the cost model gives on {profile}, "
            f"at n={n}"
        )
        try:
            model = build(spec.model, **spec.arguments)
            limits = Roofline(device.load(profile), model).layers(n, "always")
        except ValueError as error:  # the measured times are shown all the same
            end = f"no roofline: {error}"
    columns = ["layer", *(f"n={size}" for size in calibration.sizes), f"n={n} alone"]
    L = len(calibration.update)
    layers = {str(index): slice(index, index + 1) for index in range(L)} | {"all": slice(None)}
    parts: list[RenderableType] = []
    for kind, letter in zip(KINDS, "FRB", strict=True):
        rows = []
        for name, part in layers.items():
            times = [sum(row[part]) for row in getattr(calibration, kind)]
            alone = sum(getattr(calibration.alone, kind)[-1][part])
            cells = [name, *(f"{1e3 * seconds:,.2f}" for seconds in [*times, alone])]
            if limits is not None:
                limit = sum(getattr(limits, kind)[part])
                cells.append(f"{times[-1] / limit:.2f}" if limit else "-")
            rows.append(cells)
        examples = record.unit.partition("/")[0]
        title = f"{letter} of each layer (ms), micro-batches of n {examples}, measured"
        over = [] if limits is None else ["over roofline"]
        parts.append(table_of([*columns, *over], rows, ("layer",), title))
    return [*parts, end]
