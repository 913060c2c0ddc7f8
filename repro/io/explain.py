"""A pydantic error as one line: field, value, what is allowed and what to try."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ValidationError

from repro.io.untrusted import did_you_mean, short

_LIMITS = {
    "greater_than_equal": "{ge} or more",
    "less_than_equal": "at most {le}",
    "greater_than": "more than {gt}",
    "less_than": "less than {lt}",
    "too_short": "at least {min_length} entry",
    "tuple_type": "one number for each stage",
    "string_pattern_mismatch": "a text that matches {pattern}",
    "string_too_long": "at most {max_length} characters",
}


def explain(error: ValidationError, model: type[BaseModel]) -> str:
    """The first mistake of a pydantic error.

    Args:
        error: as pydantic raised it.
        model: the class that was to be built.
    """
    # A misspelt name is both unknown and missing: of the two, the unknown one is the mistake.
    mistakes = sorted(error.errors(), key=lambda mistake: mistake["type"] != "extra_forbidden")
    mistake: dict[str, Any] = {**mistakes[0]}
    kind, path, value = mistake["type"], _path(mistake["loc"]), mistake["input"]
    where = ".".join(map(str, path))
    if kind == "missing":
        return f"the field {where} is missing; add it"
    if kind == "extra_forbidden":
        *inside, name = mistake["loc"]
        known = list(_model_at(model, inside).model_fields)
        hint = did_you_mean(str(name), known) or "; is it written correctly?"
        given = f"{short('.'.join(map(str, mistake['loc'])))} (given: {short(value)})"
        return f"no field {given}: allowed are {', '.join(known)}{hint}"
    if kind in ("model_type", "model_attributes_type", "dict_type"):
        what = where or "the file"
        return f"{what} holds {short(value)}: allowed is an object; put its fields into braces"
    given = where if isinstance(value, Mapping) else f"{where} = {short(value)}"
    if kind == "value_error":
        text = str(mistake["ctx"]["error"])
        return text if text.startswith(where) else f"{given}: {text}"
    here = [each for each in mistakes if _path(each["loc"])[: len(path)] == path]
    allowed, words = _allowed(here)
    hint = did_you_mean(short(value, quote=False), words) or f"; change {where}"
    return f"{given}: allowed is {', or '.join(allowed)}{hint}"


def _path(place: Sequence[str | int]) -> list[str | int]:
    """The place of a mistake without the types of a union, such as `literal['a','b']`."""
    return [part for part in place if isinstance(part, int) or part.isidentifier()]


def _model_at(model: type[BaseModel], path: Sequence[str | int]) -> type[BaseModel]:
    """The class of an object inside of another."""
    for name in path:
        field = model.model_fields.get(str(name))
        if field and isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            model = field.annotation
    return model


def _allowed(mistakes: Sequence[Any]) -> tuple[list[str], list[str]]:
    """What is allowed in a field, a text for each type of a union, and the words to choose from."""
    texts: list[str] = []
    words: list[str] = []
    for mistake in mistakes:
        context = mistake.get("ctx", {})
        if mistake["type"] == "literal_error":
            words = re.findall(r"'([^']*)'", context["expected"]) or [context["expected"]]
            texts.append(f"one of {', '.join(words)}")
        elif mistake["type"] in _LIMITS:
            texts.append(_LIMITS[mistake["type"]].format(**context))
        else:
            texts.append(mistake["msg"].removeprefix("Input should be ").lower())
    return list(dict.fromkeys(texts)), words
