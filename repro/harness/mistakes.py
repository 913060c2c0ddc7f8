"""What pydantic finds wrong with a spec, as one line: field, value, what is allowed and what to try."""

import difflib
import re
from collections.abc import Iterable
from typing import Any

from pydantic import BaseModel, ValidationError

from repro.harness.outside import short


def near(word: str, known: Iterable[str]) -> str:
    """`; did you mean 'x'?`, or nothing where no known word is close."""
    words = list(known)
    match = [other for other in words if other.lower() == word.lower()]
    match = match or difflib.get_close_matches(word[:80], words, n=1)
    return f"; did you mean '{match[0]}'?" if match else ""


def one_line(error: ValidationError, model: type[BaseModel], data: dict[str, Any]) -> str:
    """The first mistake of a pydantic error as one line: field, value, what is allowed, what to try."""
    first = error.errors()[0]
    field = str(first["loc"][0]) if first["loc"] else ""
    if first["type"] == "value_error":
        return str(first.get("ctx", {})["error"])
    if first["type"] == "extra_forbidden":
        known = ", ".join(model.model_fields)
        hint = near(field, model.model_fields) or "; take it out"
        given = f"{short(field)} (given: {short(data[field])})"
        return f"{model.__name__} has no field {given}, only {known}{hint}"
    if first["type"] == "missing":
        return f"{model.__name__} needs the field '{field}', which was not given; add {field}=..."
    return f"{field} = {short(data.get(field))}: {_allowed(error, field, data.get(field))}"


def _allowed(error: ValidationError, field: str, value: object) -> str:
    """What may stand in `field`, from the parts of the pydantic error that concern it, and what to try."""
    words: list[str] = []
    choices: list[str] = []
    for part in error.errors():
        if str(part["loc"][0]) != field:
            continue
        context = part.get("ctx", {})
        match part["type"]:
            case "literal_error":
                choices = re.findall(r"'([^']*)'", context["expected"])
                words.append(f"one of {', '.join(choices)}")
            case "greater_than_equal":
                words.append(f"{context['ge']} or more")
            case "less_than_equal":
                words.append(f"at most {context['le']}")
            case "greater_than":
                words.append(f"more than {context['gt']}")
            case "string_pattern_mismatch":
                words.append("lower-case letters, digits, '.', '_' and '-'")
            case "too_short":
                words.append("at least one entry")
            case "tuple_type":
                words.append("one layer count per stage")
            case "string_too_long":
                words.append(f"at most {context['max_length']} characters")
            case _:
                words.append(part["msg"].removeprefix("Input should be ").lower())
    return f"allowed is {', or '.join(dict.fromkeys(words))}" + (
        near(short(value, quote=False), choices) or f"; change {field}"
    )
