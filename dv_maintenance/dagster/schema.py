"""The JSON schema by which ``dg check yaml`` validates a component's file.

Dagster offers every value as text as well, for templates. Its check then says of a whole list "is not valid under any
of the given schemas". Here only text with a template passes for text: the check descends into everything else, and
names the key and its line.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

from pydantic import BaseModel, create_model

__all__ = ["with_precise_schema"]

_TEMPLATE: Final = {"type": "string", "pattern": r"\{\{"}
_SCALARS: Final = frozenset({"string", "integer", "number", "boolean", "null"})


@lru_cache
def with_precise_schema(model: type[BaseModel]) -> type[BaseModel]:
    """The same model with a schema whose errors are those of single keys."""
    return create_model(model.__name__, __base__=(_Precise, model))


class _Precise(BaseModel):
    @classmethod
    def model_json_schema(cls, *args: Any, **options: Any) -> dict[str, Any]:
        schema: dict[str, Any] = _precise(super().model_json_schema(*args, **options))
        return schema


def _precise(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_precise(each) for each in schema]
    if not isinstance(schema, Mapping):
        return schema
    made = {key: _precise(each) for key, each in schema.items()}
    choices = made.get("anyOf", [])
    of_parts = [each for each in choices if each.get("type") not in _SCALARS]
    texts = [each for each in choices if each == {"type": "string"}]
    if len(of_parts) != 1 or not texts:
        return made
    # The errors of `else` are its own; those of `anyOf` are summed up in one.
    others = [_TEMPLATE if each in texts else each for each in choices if each not in of_parts]
    rest = {key: value for key, value in made.items() if key != "anyOf"}
    return rest | {"if": {"anyOf": others}, "then": {}, "else": of_parts[0]}
