"""A pydantic error of a spec as one line: field, value, what is allowed and what to try."""

import re
from typing import Any

from pydantic import BaseModel, ValidationError

from repro.gpipe.errors import did_you_mean
from repro.harness.outside import short


def one_line(error: ValidationError, model: type[BaseModel], data: dict[str, Any]) -> str:
    """The first mistake of a pydantic error as one line.

    Args:
        error: as pydantic raised it.
        model: the class that was to be built.
        data: its fields, as they were given.
    """
    first = error.errors()[0]
    field = str(first["loc"][0]) if first["loc"] else ""
    if first["type"] == "value_error":
        return str(first.get("ctx", {})["error"])
    if first["type"] == "extra_forbidden":
        known = ", ".join(model.model_fields)
        hint = did_you_mean(field, model.model_fields) or "; take it out"
        given = f"{short(field)} (given: {short(data[field])})"
        return f"{model.__name__} has no field {given}, only {known}{hint}"
    if first["type"] == "missing":
        return f"{model.__name__} needs the field '{field}', which was not given; add {field}=..."
    value = data.get(field)
    allowed, choices = _allowed(error, field)
    hint = did_you_mean(short(value, quote=False), choices) or f"; change {field}"
    return f"{field} = {short(value)}: allowed is {', or '.join(allowed)}{hint}"


def _allowed(error: ValidationError, field: str) -> tuple[list[str], list[str]]:
    """What is allowed in a field, one text for each alternative, and the words to choose from."""
    texts: list[str] = []
    choices: list[str] = []
    # A field of a union type has an error for each of its types.
    for part in error.errors():
        if str(part["loc"][0]) != field:
            continue
        context = part.get("ctx", {})
        match part["type"]:
            case "literal_error":
                choices = re.findall(r"'([^']*)'", context["expected"])
                texts.append(f"one of {', '.join(choices)}")
            case "greater_than_equal":
                texts.append(f"{context['ge']} or more")
            case "less_than_equal":
                texts.append(f"at most {context['le']}")
            case "greater_than":
                texts.append(f"more than {context['gt']}")
            case "string_pattern_mismatch":
                texts.append("lower-case letters, digits, '.', '_' and '-'")
            case "too_short":
                texts.append("at least one entry")
            case "tuple_type":
                texts.append("one layer count per stage")
            case "string_too_long":
                texts.append(f"at most {context['max_length']} characters")
            case _:
                texts.append(part["msg"].removeprefix("Input should be ").lower())
    return list(dict.fromkeys(texts)), choices
