"""Devices as data: what each attains, by which file and on whose word; nothing here is fitted to the paper's tables.

A profile is a JSON object. A rate (matrix multiplication, other operators, memory, link) has a
peak, the fraction of it that programs attain, and a source for each; any other figure has a value
and a source. Where nobody has published a fraction its source begins with the word "assumption";
what was written down from memory says "not looked up".
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from repro.costs.sourced_number import (
    AMOUNTS,
    RANGES,
    RATES,
    SWITCHES,
    TEXTS,
    Figure,
    check_figure,
    check_text,
)
from repro.gpipe.errors import shown
from repro.gpipe.partition.layer_profile import LinkSpeed
from repro.io.untrusted import read_text

_BUILT_IN = Path(__file__).with_name("devices")
_LARGEST = 2**16  # bytes of a file
_PARTS = {
    **dict.fromkeys(RATES, ("peak", "attainable", "source", "attainable_source")),
    **dict.fromkeys((*AMOUNTS, *SWITCHES), ("value", "source")),
}


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
            check_text(name, getattr(self, name))
        _check_names("", self.figures, _PARTS)
        for name, figure in self.figures.items():
            check_figure(name, figure)

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
        figures = {
            key: Figure(value, source, 1.0, source * (key in RATES))
            for key, value in values.items()
        }
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
            self.figures[key].value
            for key in ("link_latency_s", "link_bytes_per_second", "link_overlap")
        )
        return LinkSpeed(latency, speed, bool(overlap))

    def with_figure(self, name: str, factor: float) -> "Device":
        """The same device with one of `RATES` or `AMOUNTS` that many times as large, to see what depends on it.

        No farther than its range goes.
        """
        assert name not in SWITCHES, name
        figure, (least, most) = self.figures[name], RANGES[name]
        peak = min(most, max(least / figure.attainable, factor * figure.peak))
        return replace(self, figures={**self.figures, name: replace(figure, peak=peak)})

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
        f"device={shown(str(path) if named else name_or_path)}: allowed are {', '.join(known)} and "
        f"the path of a .json file{hint}"
    )


def _read(path: Path) -> Device:
    """A file as a device; it is only data, and what is wrong with it is one line."""
    try:
        return _from_json(_plain(read_text(path, _LARGEST)))
    except ValueError as error:
        raise ValueError(" ".join(f"{path}: {error}".split())) from None


def _plain(text: str) -> Any:
    """The value of a JSON text, all of its numbers as floats."""
    try:
        return json.loads(text, object_pairs_hook=_object, parse_int=float)
    except json.JSONDecodeError as error:
        raise ValueError(f"not readable as JSON ({error}); correct it") from None
    except RecursionError:
        raise ValueError(
            "not readable as JSON (too many lists and objects in each other)"
        ) from None


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
            raise ValueError(
                f"{name}.{key} = {shown(parts[key])}: allowed is {allowed}; correct it"
            )
    if name in RATES:
        return Figure(
            parts["peak"], parts["source"], parts["attainable"], parts["attainable_source"]
        )
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
        raise ValueError(
            f"{where} holds {shown(value)}: allowed is an object; put its fields into braces"
        )
    return value


def _check_names(where: str, given: Iterable[str], known: Iterable[str]) -> None:
    """Raise a ValueError unless these are the very names."""
    given, known = list(given), list(known)
    for name in given:
        if name not in known:
            raise ValueError(
                f"no field {shown(where + name)}: allowed are "
                f"{', '.join(known)}{_near(name, known)}"
            )
    for name in known:
        if name not in given:
            raise ValueError(f"the field {where}{name} is missing; add it")


def _near(word: str, known: Iterable[str]) -> str:
    match = get_close_matches(word[:80], list(known), n=1)
    return f"; did you mean {match[0]!r}?" if match else "; is it written correctly?"
