"""A pydantic error as one line: field, value, what is allowed and what to try."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from repro.io.untrusted import did_you_mean, short


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
    texts = [each["msg"] for each in mistakes if _path(each["loc"])[: len(path)] == path]
    allowed = dict.fromkeys(text.partition(" should ")[2] or text for text in texts)
    must = " or ".join(text.partition(", unable to")[0] for text in allowed)
    hint = did_you_mean(short(value, quote=False), re.findall(r"'([^']*)'", must))
    return f"{given}: must {must}{hint}"


def _path(place: Sequence[str | int]) -> list[str | int]:
    """The place of a mistake without the types of a union, such as `literal['a','b']`."""
    return [part for part in place if isinstance(part, int) or part.isidentifier()]


def _model_at(model: type[BaseModel], path: Sequence[str]) -> type[BaseModel]:
    for name in path:
        field = model.model_fields.get(name)
        if field and isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            model = field.annotation
    return model
