"""A pydantic error as one line: field, value, what is allowed and what to try."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from repro.io.untrusted import did_you_mean, short

# pydantic's words, and shorter ones.
_WORDS = {
    "greater than or equal to": "at least",
    "less than or equal to": "at most",
    "a valid integer": "a whole number",
    "a valid number": "a number",
    "a valid boolean": "true or false",
    "a valid string": "a text",
}


class Frozen(BaseModel):
    """Base of settings: immutable, no unknown fields, mistakes reported as one line."""

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())

    def __init__(self, /, **data: Any) -> None:
        try:
            super().__init__(**data)
        except ValidationError as error:
            raise ValueError(explain(error, type(self))) from None


def explain(error: ValidationError, model: type[BaseModel]) -> str:
    """The first mistake of a pydantic error that was raised while `model` was built."""
    # A misspelt name is both unknown and missing: of the two, the unknown one is the mistake.
    mistakes = sorted(error.errors(), key=lambda mistake: mistake["type"] != "extra_forbidden")
    mistake: dict[str, Any] = {**mistakes[0]}
    kind, path, value = mistake["type"], _path(mistake["loc"]), mistake["input"]
    where = ".".join(map(str, path))
    if kind == "missing":
        return f"the field {where} is missing; add it"
    if kind == "extra_forbidden":
        *outer, name = map(str, mistake["loc"])
        known = list(_model_at(model, outer).model_fields)
        given = f"{short('.'.join([*outer, name]))} (given: {short(value)})"
        return f"no field {given}: allowed are {', '.join(known)}{did_you_mean(name, known)}"
    if kind in ("model_type", "model_attributes_type", "dict_type"):
        return f"{where or 'the file'} holds {short(value)}: allowed is an object in braces"
    given = where if isinstance(value, Mapping) else f"{where} = {short(value)}"
    if kind == "value_error":
        text = str(mistake["ctx"]["error"])
        return text if text.startswith(where) else f"{given}: {text}"
    # A text for each type of a union, such as "Input should be greater than or equal to 1".
    must = demand(each for each in mistakes if _path(each["loc"])[: len(path)] == path)
    hint = did_you_mean(short(value, quote=False), re.findall(r"'([^']*)'", must))
    return f"{given}: must {must}{hint}"


def demand(mistakes: Iterable[Mapping[str, Any]]) -> str:
    """What a value must do, by the errors of all types of a union: `be at least 1 or be 'time'`."""
    texts = [each["msg"].partition(", unable to")[0] for each in mistakes]
    demanded = " or ".join(dict.fromkeys(text.partition(" should ")[2] or text for text in texts))
    for words, shorter in _WORDS.items():
        demanded = demanded.replace(words, shorter)
    return demanded


def _path(place: Sequence[str | int]) -> list[str | int]:
    """The place of a mistake without the types of a union, such as `literal['a','b']`."""
    return [part for part in place if isinstance(part, int) or part.isidentifier()]


def _model_at(model: type[BaseModel], path: Sequence[str]) -> type[BaseModel]:
    for name in path:
        field = model.model_fields.get(name)
        if field and isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            model = field.annotation
    return model
