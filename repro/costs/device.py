"""Device profiles: the peak and attainable rates of an accelerator, each with its source.

A profile is a JSON object with the fields of `Device`. Nothing in it is fitted to the tables of the
paper. A source begins with "assumption" where nobody has published the number, and is "not looked
up" where the number was written down from memory.
"""

from dataclasses import replace
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, BaseModel, Field, StrictBool, StrictStr, ValidationError

from repro.costs.error_bars import DATA_SHEET, ErrorBar, step_error
from repro.costs.links import Links
from repro.gpipe.partition.layer_costs import LinkSpeed
from repro.io.explain import explain
from repro.io.untrusted import did_you_mean, from_json, read_text, short

_BUILT_IN = Path(__file__).with_name("devices")
_LARGEST = 2**16  # bytes of a file


def _check_line(text: str) -> str:
    if not text.strip() or not text.isprintable() or len(text) > 2000:
        raise ValueError("allowed is one line of 1 to 2000 characters; write it so")
    return text


Line = Annotated[StrictStr, AfterValidator(_check_line)]
Number = Annotated[float, Field(strict=True, allow_inf_nan=False)]


class _Sourced(BaseModel, frozen=True, extra="forbid"):
    source: Line


class Amount(_Sourced, frozen=True):
    """A number as its source gives it."""

    value: Annotated[Number, Field(ge=0, le=2.0**60)]


class Tile(_Sourced, frozen=True):
    """Rows and columns of a tile of a matrix unit; 1 without a matrix unit."""

    value: Annotated[Number, Field(ge=1, le=4096)]


class Switch(_Sourced, frozen=True):
    """Whether something holds."""

    value: StrictBool


class Rate(_Sourced, frozen=True):
    """Operations, elements or bytes per second."""

    peak: Annotated[Number, Field(ge=1, le=1e19)]  # what the maker promises
    attainable: Annotated[Number, Field(ge=1e-6, le=1.0)]  # fraction of it that programs attain
    attainable_source: Line

    @property
    def value(self) -> float:
        return self.peak * self.attainable


class Nodes(BaseModel, frozen=True, extra="forbid"):
    """Devices in nodes; without it all devices are in one node."""

    devices: Amount  # of a node
    bytes_per_second: Rate  # from a node to others, one way; its devices share it
    latency_s: Amount  # seconds of a message to another node besides its transfer


class Validation(_Sourced, frozen=True):
    """How far off steps by a profile were that are not in its fit, nine of ten of them."""

    factor: Annotated[Number, Field(ge=1, le=100)]
    steps: Annotated[int, Field(strict=True, ge=1)]


_NO_HALF = Amount(value=0, source="assumption: rates do not depend on the work")
_HOST_IS_FREE = Amount(value=0, source="assumption: the device never waits for its host")
_FLOAT32 = Amount(value=4, source="float32, in which our models store")


class Device(BaseModel, frozen=True, extra="forbid"):
    """One accelerator and its link to a neighbouring stage; made by `load` or `of`."""

    name: Line
    title: Line
    precision: Line  # of multiplication and of storage
    date: Line  # when the numbers were looked up or measured, such as "2026-11-21"
    matmul_flops: Rate  # of matrix products and convolutions; a multiply-add counts as two
    other_flops: Rate  # elements per second of every other operator
    bytes_per_second: Rate  # of its memory
    link_bytes_per_second: Rate  # to another device of its node, one way
    launch_s: Amount  # seconds that each operator takes besides its work
    memory: Amount  # bytes
    tile: Tile
    setup_s: Amount  # seconds of a step before its first action
    link_latency_s: Amount  # seconds of a message besides its transfer
    link_overlap: Switch  # whether the device can compute while it sends
    # Work at which an operator of a class attains half of its rate, w / (w + half) of it: FLOPs of
    # matrix products and of convolutions, bytes of norms and of all others.
    product_half: Amount = _NO_HALF
    convolution_half: Amount = _NO_HALF
    norm_half: Amount = _NO_HALF
    elementwise_half: Amount = _NO_HALF
    # Seconds for which the host is busy with one operator. A layer takes as long as the longer of
    # host and device, which work at the same time.
    host_s: Amount = _HOST_IS_FREE
    # Of what operators move and messages carry; memory and updates are counted in float32.
    element_bytes: Amount = _FLOAT32
    nodes: Nodes | None = None
    validation: Validation | None = None

    @classmethod
    def of(cls, value: object) -> "Device":
        try:
            return cls.model_validate(value)
        except ValidationError as error:
            raise ValueError(explain(error, cls)) from None

    @property
    def error(self) -> ErrorBar | None:
        """Of a step by this profile; None where no such step was compared with a measured one."""
        if self.validation is not None:
            return ErrorBar(
                self.validation.factor, f"{self.validation.steps:,} {self.validation.source}"
            )
        is_fitted = "fitted to" in self.matmul_flops.attainable_source
        return None if is_fitted else step_error(DATA_SHEET)

    @property
    def link(self) -> LinkSpeed:
        """To another device of its node, one way."""
        return LinkSpeed(
            latency=self.link_latency_s.value,
            bytes_per_second=self.link_bytes_per_second.value,
            overlap=self.link_overlap.value,
        )

    def links(self, node: int | None = None) -> Links:
        """Links of devices in nodes of `node` devices; by default as the profile has them."""
        if self.nodes is None:
            if node is not None:
                raise ValueError(
                    f"node={node}: the profile {self.name} has no link between nodes; try a100, or "
                    "a .json file with 'nodes'"
                )
            return Links(self.link)
        node = node or round(self.nodes.devices.value)
        share = self.nodes.bytes_per_second.value / node
        latency = self.nodes.latency_s.value
        between = replace(self.link, latency=latency, bytes_per_second=share)
        return Links(self.link, between, node)


def names() -> list[str]:
    return sorted(path.stem for path in _BUILT_IN.glob("*.json"))


def load(name_or_path: str | Path) -> Device:
    """Load a built-in profile by its name, or a profile from the path of a .json file."""
    path = Path(name_or_path)
    if name_or_path in names():
        path = _BUILT_IN / f"{name_or_path}.json"
    elif path.suffix.lower() != ".json":
        word = str(name_or_path).lower()
        # `V100-32G` is a V100, however near another name is.
        begun = max((name for name in names() if word.startswith(name)), key=len, default=word)
        hint = did_you_mean(begun, names()) or "; is it written correctly?"
        raise ValueError(
            f"device={short(str(name_or_path))}: allowed are {', '.join(names())} and the path of "
            f"a .json file{hint}"
        )
    try:
        return Device.of(from_json(read_text(path, _LARGEST)))
    except ValueError as error:
        raise ValueError(" ".join(f"{path}: {error}".split())) from None
