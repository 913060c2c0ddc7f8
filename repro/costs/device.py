"""Devices as data: what each attains, by which file and on whose word; nothing here is fitted to the paper's tables.

A profile is a JSON object. A rate (matrix multiplication, other operators, memory, link) has a peak, the fraction of it
that programs attain, and a source for each; any other figure has a value and a source. Where nobody has published
a fraction its source begins with the word "assumption"; what was written down from memory says "not looked up".
"""

import json
import os
import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from repro.gpipe.errors import shown, within
from repro.gpipe.profile import LinkSpeed

RATES = ("matmul_flops", "other_flops", "bytes_per_second", "link_bytes_per_second")
AMOUNTS = ("launch_s", "memory", "link_latency_s")
SWITCHES = ("link_overlap",)
BASES = ("sourced", "fraction assumed", "not looked up", "assumption")  # fraction: of a sourced peak
TEXTS = ("name", "title", "precision", "date")
# What anything that computes lies within, from one embedded core to far beyond what will be built: beside what is
# slower or faster a step would take absurdly long, or no time.
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
_BUILT_IN = Path(__file__).with_name("devices")
_LARGEST = 2**16  # bytes of a file
_LONGEST = 2000  # characters of a text in it
_PARTS = {
    **dict.fromkeys(RATES, ("peak", "attainable", "source", "attainable_source")),
    **dict.fromkeys((*AMOUNTS, *SWITCHES), ("value", "source")),
}


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


@dataclass(frozen=True)
class Device:
    """One accelerator and its link to a neighbouring stage.

    Attributes:
        name: a word.
        title: what it is, for readers.
        precision: of multiplication and of storage.
        date: on which its figures were read or measured, such as "2026-11-21".
        figures: one for each of `RATES`, `AMOUNTS` and `SWITCHES`.

    Raises:
        ValueError: one line, if a figure is missing, unknown or out of range.
    """

    name: str
    title: str
    precision: str
    date: str
    figures: Mapping[str, Figure] = field(hash=False)

    def __post_init__(self) -> None:
        for name in TEXTS:
            _check_text(name, getattr(self, name))
        _check_names("", self.figures, _PARTS)
        for name, figure in self.figures.items():
            _check_figure(name, figure)

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
        """A device whose figures were all measured in one place, which is their source; so each is its own peak."""
        values = {
            "matmul_flops": matmul_flops,
            "other_flops": other_flops,
            "bytes_per_second": bytes_per_second,
            "launch_s": launch_s,
            "memory": memory,
            "link_latency_s": link.latency,
            "link_bytes_per_second": link.bytes_per_second,
            "link_overlap": link.overlap,
        }
        figures = {key: Figure(value, source, 1.0, source * (key in RATES)) for key, value in values.items()}
        return cls(name, title, precision, date, figures)

    @property
    def matmul_flops(self) -> float:
        """Attainable operations per second of matrix multiplication and convolution, a multiply-add being two."""
        return self.figures["matmul_flops"].value

    @property
    def other_flops(self) -> float:
        """Attainable elements per second of every other operator."""
        return self.figures["other_flops"].value

    @property
    def bytes_per_second(self) -> float:
        """Attainable memory bandwidth."""
        return self.figures["bytes_per_second"].value

    @property
    def launch_s(self) -> float:
        """Seconds that each operator takes besides its work."""
        return self.figures["launch_s"].value

    @property
    def memory(self) -> int:
        """Bytes."""
        return int(self.figures["memory"].value)

    @property
    def link(self) -> LinkSpeed:
        """To a neighbouring stage, one way."""
        latency, speed, overlap = (
            self.figures[key].value for key in ("link_latency_s", "link_bytes_per_second", "link_overlap")
        )
        return LinkSpeed(latency, speed, bool(overlap))

    def with_figure(self, name: str, factor: float) -> "Device":
        """The same device with one of `RATES` or `AMOUNTS` that many times as large, to see what depends on it."""
        assert name not in SWITCHES, name
        figure = self.figures[name]
        return replace(self, figures={**self.figures, name: replace(figure, peak=factor * figure.peak)})

    def to_json(self) -> dict[str, Any]:
        """As it stands in a file."""
        return {name: getattr(self, name) for name in TEXTS} | {
            name: _written(name, self.figures[name]) for name in _PARTS
        }

    def save(self, path: Path | str) -> None:
        """Write the file that `load` reads."""
        text = json.dumps(self.to_json(), indent=2, allow_nan=False)
        Path(path).write_text(text + "\n", encoding="utf-8")


def names() -> list[str]:
    """Of the built-in profiles."""
    return sorted(path.stem for path in _BUILT_IN.glob("*.json"))


def load(name_or_path: str | Path) -> Device:
    """A built-in profile by its name, or a file of one's own that ends in .json.

    Raises:
        ValueError: one line: an unknown name, or what is wrong with the file.
    """
    known = names()
    if name_or_path in known:
        return _read(_BUILT_IN / f"{name_or_path}.json")
    named = isinstance(name_or_path, str | Path)
    path = Path(name_or_path) if named else None
    if path is not None and path.suffix.lower() == ".json":
        return _read(path)
    if path is not None and path.is_dir():
        file = min(path.glob("*.json"), default=path / "device.json")
        hint = f"; that is a folder, give a file in it, such as {file}"
    else:
        hint = _near(str(path), known) if named else "; try 'v100'"
    raise ValueError(
        f"device={shown(str(path) if named else name_or_path)}: allowed are {', '.join(known)} and the path of a "
        f".json file{hint}"
    )


def _read(path: Path) -> Device:
    """A file as a device; it is only data, and what is wrong with it is one line."""
    try:
        return _from_json(_plain(_text(path)))
    except ValueError as error:
        raise ValueError(" ".join(f"{path}: {error}".split())) from None


def _text(path: Path) -> str:
    """Of a regular file that is not too large: a pipe or a device may never end."""
    try:
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK | os.O_NOCTTY)) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise ValueError("is no regular file; give the path of one")
            raw = file.read(_LARGEST + 1)
    except OSError as error:
        raise ValueError(f"not readable ({error.strerror or type(error).__name__}); check the path") from None
    if len(raw) > _LARGEST:
        raise ValueError(f"is larger than {_LARGEST} bytes, the most that is read; is it the right file?")
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"is no UTF-8 ({error.reason} at byte {error.start}); save it as UTF-8") from None


def _plain(text: str) -> Any:
    """The value of a JSON text, all of its numbers as floats."""
    try:
        return json.loads(text, object_pairs_hook=_object, parse_int=float)
    except json.JSONDecodeError as error:
        raise ValueError(f"not readable as JSON ({error}); correct it") from None
    except RecursionError:
        raise ValueError("not readable as JSON (too many lists and objects in each other)") from None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError(f"a field of {shown(', '.join(found))} is there twice; take one out")
    return found


def _from_json(value: Any) -> Device:
    _check_names("", _fields("the file", value), (*TEXTS, *_PARTS))
    figures = {name: _figure(name, value[name]) for name in _PARTS}
    return Device(**{name: value[name] for name in TEXTS}, figures=figures)


def _figure(name: str, value: Any) -> Figure:
    """One number of a file, of which only the kinds of its parts are checked here."""
    parts = _fields(name, value)
    _check_names(f"{name}.", parts, _PARTS[name])
    kind = bool if name in SWITCHES else float
    for key in ("peak", "attainable", "value"):
        if key in parts and type(parts[key]) is not kind:
            allowed = "true or false" if kind is bool else "a number"
            raise ValueError(f"{name}.{key} = {shown(parts[key])}: allowed is {allowed}; correct it")
    if name in RATES:
        return Figure(parts["peak"], parts["source"], parts["attainable"], parts["attainable_source"])
    return Figure(parts["value"], parts["source"])


def _written(name: str, figure: Figure) -> dict[str, Any]:
    """A number as it stands in a file."""
    if name in RATES:
        values = (figure.peak, figure.attainable, figure.source, figure.attainable_source)
    else:
        values = (bool(figure.peak) if name in SWITCHES else figure.peak, figure.source)
    return dict(zip(_PARTS[name], values, strict=True))


def _fields(where: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{where} holds {shown(value)}: allowed is an object; put its fields into braces")
    return value


def _check_names(where: str, given: Iterable[str], known: Iterable[str]) -> None:
    """Raise a ValueError unless these are the very names."""
    given, known = list(given), list(known)
    for name in given:
        if name not in known:
            raise ValueError(f"no field {shown(where + name)}: allowed are {', '.join(known)}{_near(name, known)}")
    for name in known:
        if name not in given:
            raise ValueError(f"the field {where}{name} is missing; add it")


def _check_text(where: str, text: Any) -> None:
    if not (isinstance(text, str) and text.strip() and text.isprintable() and len(text) <= _LONGEST):
        raise ValueError(f"{where} = {shown(text)}: allowed is one line of 1 to {_LONGEST} characters; write it so")


def _check_figure(name: str, figure: Figure) -> None:
    least, most = RANGES[name]
    if not (within(figure.peak, least, most) or (name in SWITCHES and isinstance(figure.peak, bool))):
        part = "peak" if name in RATES else "value"
        raise ValueError(
            f"{name}.{part} = {shown(figure.peak)}: allowed is a finite number from {least:g} to {most:g}; correct it"
        )
    if not (within(figure.attainable, 0, 1) and figure.attainable > 0):
        raise ValueError(f"{name}.attainable = {shown(figure.attainable)}: allowed is a fraction in (0, 1]; try 1.0")
    if figure.value < least:
        raise ValueError(
            f"{name}.attainable = {figure.attainable}: leaves {figure.value:g} of the peak, allowed is {least:g} or "
            "more; correct it"
        )
    _check_text(f"{name}.source", figure.source)
    if name in RATES:
        _check_text(f"{name}.attainable_source", figure.attainable_source)


def _near(word: str, known: Iterable[str]) -> str:
    match = get_close_matches(word[:80], list(known), n=1)
    return f"; did you mean {match[0]!r}?" if match else "; is it written correctly?"
