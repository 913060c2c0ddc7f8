"""One number of a device's profile: what the maker promises, what programs attain, and on whose word."""

from dataclasses import dataclass

from repro.gpipe.errors import shown, within

RATES = ("matmul_flops", "other_flops", "bytes_per_second", "link_bytes_per_second")
AMOUNTS = ("launch_s", "memory", "link_latency_s")
SWITCHES = ("link_overlap",)
# fraction: of a sourced peak
BASES = ("sourced", "fraction assumed", "not looked up", "assumption")
TEXTS = ("name", "title", "precision", "date")
# From what is easily calculated by hand to far beyond what will be built; what is made of such
# numbers stays finite.
RANGES = {
    "matmul_flops": (1.0, 1e19),  # operations a second
    "other_flops": (1.0, 1e19),  # elements a second
    "bytes_per_second": (1.0, 1e19),
    "link_bytes_per_second": (1.0, 1e15),
    "launch_s": (0.0, 1.0),
    "link_latency_s": (0.0, 60.0),
    "memory": (1.0, 2.0**60),  # bytes
    **dict.fromkeys(SWITCHES, (0.0, 1.0)),
}
_LONGEST = 2000  # characters of a text in it


@dataclass(frozen=True)
class Figure:
    """One number of a profile.

    Attributes:
        peak: of a rate what the maker promises; else the number itself, of a switch 0 or 1.
        source: who says so.
        attainable: the fraction of the peak that programs attain, in (0, 1].
        attainable_source: who says so; empty for what is no rate.
    """

    peak: float
    source: str
    attainable: float = 1.0
    attainable_source: str = ""

    @property
    def value(self) -> float:
        """What programs attain."""
        return self.peak * self.attainable

    @property
    def basis(self) -> str:
        """What it rests on, one of `BASES`, by how its sources begin and what they admit."""
        if self.source.startswith("assumption"):
            return "assumption"
        if "not looked up" in self.source + self.attainable_source:
            return "not looked up"
        return "fraction assumed" if self.attainable_source.startswith("assumption") else "sourced"


def check_text(where: str, text: object) -> None:
    """Raise a one-line ValueError unless it is one line of text."""
    if not (
        isinstance(text, str) and text.strip() and text.isprintable() and len(text) <= _LONGEST
    ):
        raise ValueError(
            f"{where} = {shown(text)}: allowed is one line of 1 to {_LONGEST} characters; write it "
            "so"
        )


def check_figure(name: str, figure: Figure) -> None:
    """Raise a one-line ValueError unless a figure of this name is a number in its range and says where it is from."""
    least, most = RANGES[name]
    if not (
        within(figure.peak, least, most) or (name in SWITCHES and isinstance(figure.peak, bool))
    ):
        part = "peak" if name in RATES else "value"
        raise ValueError(
            f"{name}.{part} = {shown(figure.peak)}: allowed is a finite number from {least:g} to "
            f"{most:g}; correct it"
        )
    if not (within(figure.attainable, 0, 1) and figure.attainable > 0):
        raise ValueError(
            f"{name}.attainable = {shown(figure.attainable)}: allowed is a fraction in (0, 1]; try "
            "1.0"
        )
    if figure.value < least:
        raise ValueError(
            f"{name}.attainable = {figure.attainable}: leaves {figure.value:g} of the peak, "
            f"allowed is {least:g} or more; correct it"
        )
    check_text(f"{name}.source", figure.source)
    if name in RATES:
        check_text(f"{name}.attainable_source", figure.attainable_source)
