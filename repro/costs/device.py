"""Device profiles: the peak and attainable rates of an accelerator, each with its source.

A profile is a JSON object with the fields of `Device`. Nothing in it is fitted to the tables of the
paper.
"""

import json
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from repro.costs.sourced_number import (
    Amount,
    Latency,
    LaunchTime,
    LineOfText,
    LinkRate,
    Memory,
    Rate,
    SetupTime,
    Switch,
    Tile,
)
from repro.gpipe.partition.layer_costs import LinkSpeed
from repro.io.explain import explain
from repro.io.untrusted import did_you_mean, from_json, read_text, short

_BUILT_IN = Path(__file__).with_name("devices")
_LARGEST = 2**16  # bytes of a file
# Name of a link -> the profile that has its figures: NVLink 4, two NVLinks 2, PCI-E 3.0 between
# GPUs, and PCI-E 3.0 through the memory of the host.
LINKS = {"nvlink": "h100", "nvlink2": "v100", "pcie": "p40", "pcie-host": "p100-pcie"}


class Device(BaseModel, frozen=True, extra="forbid"):
    """One accelerator and its link to a neighbouring stage; made by `load`, `of` or `measured`.

    Attributes:
        name: the name of the profile.
        title: the full name.
        precision: of multiplication and of storage.
        date: when the numbers were looked up or measured, such as "2026-11-21".
        matmul_flops: FLOP/s of matrix multiplication and convolution; a multiply-add counts as two.
        other_flops: elements per second of every other operator.
        bytes_per_second: memory bandwidth.
        link_bytes_per_second: bandwidth to a neighbouring stage, one way.
        launch_s: seconds that each operator takes besides its work.
        memory: bytes.
        tile: rows and columns of a tile of its matrix unit, to which matrices are padded; 1 without
            a matrix unit.
        setup_s: seconds of a step before its first action.
        link_latency_s: seconds of a message besides its transfer.
        link_overlap: whether the device can compute while it sends.
    """

    name: LineOfText
    title: LineOfText
    precision: LineOfText
    date: LineOfText
    matmul_flops: Rate
    other_flops: Rate
    bytes_per_second: Rate
    link_bytes_per_second: LinkRate
    launch_s: LaunchTime
    memory: Memory
    tile: Tile
    setup_s: SetupTime
    link_latency_s: Latency
    link_overlap: Switch

    @classmethod
    def of(cls, value: object) -> "Device":
        """The device that a plain value describes, as it stands in a file.

        Raises:
            ValueError: one line, if a field is missing, unknown or out of range.
        """
        try:
            return cls.model_validate(value)
        except ValidationError as error:
            raise ValueError(explain(error, cls)) from None

    @classmethod
    def measured(
        cls,
        name: str,
        *,
        title: str,
        precision: str,
        date: str,
        source: str,
        matmul_flops: float,
        other_flops: float,
        bytes_per_second: float,
        launch_s: float,
        memory: int,
        link: LinkSpeed,
    ) -> "Device":
        """A device whose numbers were all measured by `source`; each rate is its own peak."""

        def rate(value: float) -> dict[str, Any]:
            return {
                "peak": value,
                "attainable": 1.0,
                "source": source,
                "attainable_source": source,
            }

        def amount(value: float) -> dict[str, Any]:
            return {"value": value, "source": source}

        return cls.of(
            {
                "name": name,
                "title": title,
                "precision": precision,
                "date": date,
                "matmul_flops": rate(matmul_flops),
                "other_flops": rate(other_flops),
                "bytes_per_second": rate(bytes_per_second),
                "link_bytes_per_second": rate(link.bytes_per_second),
                "launch_s": amount(launch_s),
                "memory": amount(memory),
                "tile": {"value": 1, "source": "assumption: the rate has no matrix unit's tiles"},
                "setup_s": {"value": 0, "source": "assumption: a step begins with its actions"},
                "link_latency_s": amount(link.latency),
                "link_overlap": amount(bool(link.overlap)),
            }
        )

    @property
    def link(self) -> LinkSpeed:
        """To a neighbouring stage, one way."""
        return LinkSpeed(
            self.link_latency_s.value, self.link_bytes_per_second.value, self.link_overlap.value
        )

    def with_scaled(self, name: str, factor: float) -> "Device":
        """The same device with one rate or amount multiplied by a factor, but kept in its range."""
        number: Rate | Amount = getattr(self, name)
        return self.model_copy(update={name: number.times(factor)})

    def save(self, path: Path | str) -> None:
        """Write the file that `load` reads."""
        text = json.dumps(self.model_dump(), indent=2, allow_nan=False)
        Path(path).write_text(text + "\n", encoding="utf-8")


def names() -> list[str]:
    """Names of the built-in profiles."""
    return sorted(path.stem for path in _BUILT_IN.glob("*.json"))


def load(name_or_path: str | Path) -> Device:
    """Load a built-in profile by its name, or a profile from the path of a .json file.

    Raises:
        ValueError: one line: the name is unknown, or what is wrong with the file.
    """
    if name_or_path in names():
        return _read(_BUILT_IN / f"{name_or_path}.json")
    if not isinstance(name_or_path, str | Path):
        hint = "; try 'v100'"
    elif Path(name_or_path).suffix.lower() == ".json":
        return _read(Path(name_or_path))
    elif Path(name_or_path).is_dir():
        folder = Path(name_or_path)
        file = min(folder.glob("*.json"), default=folder / "device.json")
        hint = f"; that is a folder, give a file in it, such as {file}"
    else:
        hint = did_you_mean(str(name_or_path), names()) or "; is it written correctly?"
    given = str(name_or_path) if isinstance(name_or_path, Path) else name_or_path
    raise ValueError(
        f"device={short(given)}: allowed are {', '.join(names())} and the path of a .json file"
        f"{hint}"
    )


def _read(path: Path) -> Device:
    try:
        return Device.of(from_json(read_text(path, _LARGEST)))
    except ValueError as error:
        raise ValueError(" ".join(f"{path}: {error}".split())) from None
