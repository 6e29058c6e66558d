"""What every kind of setting shares: how it is checked, and how a mistake in it is told in one line."""

from __future__ import annotations

import reprlib
from collections.abc import Callable
from functools import cache
from typing import Annotated, Any, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    TypeAdapter,
    ValidationError,
    ValidationInfo,
    field_validator,
)

from scope_lite.store.errors import ScopeError, closest
from scope_lite.store.paths import name_fault, place_fault


def _without(fault: Callable[[str], str]) -> AfterValidator:
    def checked(text: str) -> str:
        if told := fault(text):
            raise ValueError(told)
        return text

    return AfterValidator(checked)


Name = Annotated[str, _without(name_fault)]
"""of a method, a world or a simulator"""
Place = Annotated[str, _without(place_fault)]
"""a model's name that may be a folder or an endpoint"""


class Settings(BaseModel):
    """A frozen list of documented numbers; a key it does not know is an error.

    Upper bounds lie far above what is useful. They stop a slip of the hand before memory is asked for.
    """

    model_config = ConfigDict(
        frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False, str_max_length=1024
    )

    @field_validator("*", mode="before")
    @classmethod
    def _true_is_no_number(cls, value: Any, info: ValidationInfo) -> Any:
        wanted = cls.model_fields[info.field_name or ""].annotation
        given = value if isinstance(value, list | tuple) else [value]
        if bool in (wanted, *get_args(wanted)):
            if not isinstance(value, bool | None):
                raise ValueError("write true or false")
        elif any(isinstance(one, bool) for one in given):
            raise ValueError("true and false (yes, no, on, off) are no text and no number")
        return value


def merged(*layers: dict[str, Any]) -> dict[str, Any]:
    """Mappings laid over each other, later ones above; ``simulator`` and ``text`` key by key."""
    whole: dict[str, Any] = {}
    for layer in layers:
        for key, value in layer.items():
            below = whole.get(key)
            whole[key] = {**below, **value} if isinstance(below, dict) and isinstance(value, dict) else value
    return whole


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def checked(kind: Any, content: Any, where: str) -> Any:
    """``content`` as ``kind`` (a kind of Settings, or a list of entries), converted.

    Raises:
        ScopeError: one line that names the key and what is wrong with it.
    """
    try:
        return _adapter(kind).validate_python(content)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        *above, key = first["loc"] or ("",)
        told = first["msg"].removeprefix("Value error, ")
        if first["type"] == "extra_forbidden" and isinstance(kind, type):
            fields = kind.model_fields  # type: ignore[attr-defined]
            for part in above:
                fields = fields[part].annotation.model_fields
            told = closest(str(key), list(fields), "key")
        elif first["loc"]:
            told = f"{'.'.join(map(str, first['loc']))}: {told} (got {reprlib.repr(first['input'])})"
        raise ScopeError(f"{where}: {told}") from None
