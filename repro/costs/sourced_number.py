"""The numbers of a device profile: each with its allowed range and the source that it comes from.

A source begins with "assumption" where nobody has published the number, and says "not looked up"
where the number was written down from memory.
"""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, BeforeValidator, ValidationInfo, field_validator

from repro.gpipe.errors import within

# "fraction assumed": the peak has a source, the attainable fraction of it has none.
Basis = Literal["sourced", "fraction assumed", "not looked up", "assumption"]
_LONGEST = 2000  # characters of a text


def _check_line_of_text(text: Any) -> str:
    is_line = isinstance(text, str) and text.strip() and text.isprintable()
    if not is_line or len(text) > _LONGEST:
        raise ValueError(f"allowed is one line of 1 to {_LONGEST} characters; write it so")
    return text


def _check_boolean(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError("allowed is true or false; correct it")
    return value


def _check_range(value: Any, least: float, most: float) -> float:
    if not within(value, least, most):
        raise ValueError(f"allowed is a finite number from {least:g} to {most:g}; correct it")
    return float(value)


LineOfText = Annotated[str, BeforeValidator(_check_line_of_text)]


class Amount(BaseModel, frozen=True, extra="forbid"):
    """A number as its source gives it; from `least` to `most`."""

    # The ranges go from what is easily computed by hand to far beyond what will be built, so that
    # everything that is computed from these numbers is finite.
    least: ClassVar[float] = 0.0
    most: ClassVar[float]

    value: float
    source: LineOfText

    @field_validator("value", mode="before")
    @classmethod
    def _check_value(cls, value: Any) -> float:
        return _check_range(value, cls.least, cls.most)

    @property
    def basis(self) -> Basis:
        """What the number rests on."""
        return _basis(self.source)

    def times(self, factor: float) -> "Amount":
        """This number multiplied by a factor, but kept in its range."""
        value = min(self.most, max(self.least, factor * self.value))
        return self.model_copy(update={"value": value})


class LaunchTime(Amount, frozen=True):
    """Seconds that each operator takes besides its work."""

    most = 1.0


class SetupTime(Amount, frozen=True):
    """Seconds of a step before its first action."""

    most = 3600.0


class Tile(Amount, frozen=True):
    """Rows and columns that a matrix unit multiplies at once, a whole number; 1: it has none."""

    least = 1.0
    most = 4096.0

    @field_validator("value", mode="after")
    @classmethod
    def _check_whole(cls, value: float) -> float:
        if value != int(value):
            raise ValueError(
                f"allowed is a whole number from {cls.least:g} to {cls.most:g}; correct it"
            )
        return value


class Latency(Amount, frozen=True):
    """Seconds of a message besides its transfer."""

    most = 60.0


class Memory(Amount, frozen=True):
    """Bytes of memory."""

    least = 1.0
    most = 2.0**60


class Rate(BaseModel, frozen=True, extra="forbid"):
    """Operations, elements or bytes per second; peak and attainable rate from `least` to `most`.

    Attributes:
        peak: what the maker promises.
        attainable: fraction of the peak that programs attain, in (0, 1].
        source: of the peak.
        attainable_source: of the fraction.
    """

    least: ClassVar[float] = 1.0
    most: ClassVar[float] = 1e19

    peak: float
    attainable: float
    source: LineOfText
    attainable_source: LineOfText

    @field_validator("peak", mode="before")
    @classmethod
    def _check_peak(cls, peak: Any) -> float:
        return _check_range(peak, cls.least, cls.most)

    @field_validator("attainable", mode="before")
    @classmethod
    def _check_attainable(cls, fraction: Any, others: ValidationInfo) -> float:
        if not (within(fraction, 0, 1) and fraction > 0):
            raise ValueError("allowed is a fraction in (0, 1]; try 1.0")
        rate = fraction * others.data.get("peak", cls.most)
        if rate < cls.least:
            raise ValueError(
                f"leaves {rate:g} of the peak, allowed is {cls.least:g} or more; correct it"
            )
        return float(fraction)

    @property
    def value(self) -> float:
        """The attainable rate."""
        return self.peak * self.attainable

    @property
    def basis(self) -> Basis:
        """What the attainable rate rests on."""
        return _basis(self.source, self.attainable_source)

    def times(self, factor: float) -> "Rate":
        """This rate with its peak multiplied by a factor, but kept in its range."""
        peak = min(self.most, max(self.least / self.attainable, factor * self.peak))
        return self.model_copy(update={"peak": peak})


class LinkRate(Rate, frozen=True):
    """Bytes per second over a link."""

    most = 1e15


class Switch(BaseModel, frozen=True, extra="forbid"):
    """Whether something holds."""

    value: Annotated[bool, BeforeValidator(_check_boolean)]
    source: LineOfText

    @property
    def basis(self) -> Basis:
        """What the statement rests on."""
        return _basis(self.source)


def _basis(source: str, fraction_source: str = "") -> Basis:
    if source.startswith("assumption"):
        return "assumption"
    if "not looked up" in source + fraction_source:
        return "not looked up"
    return "fraction assumed" if fraction_source.startswith("assumption") else "sourced"
