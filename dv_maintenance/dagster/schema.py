"""The JSON schema by which ``dg check yaml`` validates a component's file.

Dagster offers every value as text as well, for templates. Its check then says of a whole list "is not valid under any
of the given schemas". Here only text with a template passes for text: the check descends into everything else, and
names the key and its line.

A schema compares texts and can't add. A deadline that the retention beside it leaves no time for is therefore refused
by a ladder of durations. What the rungs miss, loading the definitions finds.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

from pydantic import BaseModel, create_model

from dv_maintenance.service.policies import MARGIN
from dv_maintenance.service.tables_file import WatchConfig
from dv_maintenance.units import DAY

_TEMPLATE: Final = {"type": "string", "pattern": r"\{\{"}
_NULL: Final = {"type": "null"}
_SCALARS: Final = frozenset({"string", "integer", "number", "boolean", "null"})
# Days of a retention.
_RUNGS: Final = (*range(9), 10, 14, 21, 28, 30, 45, 60, 90, 180, 365)
_MARGIN_DAYS: Final = MARGIN // DAY
_HOURS: Final = {"w": 168, "d": 24, "h": 1}


@lru_cache
def with_precise_schema(model: type[BaseModel]) -> type[BaseModel]:
    """The same model with a schema whose errors are those of single keys."""
    return create_model(model.__name__, __base__=(_Precise, model))


class _Precise(BaseModel):
    @classmethod
    def model_json_schema(cls, *args: Any, **options: Any) -> dict[str, Any]:
        """With the keys of a tables file, whose values may be templates."""
        schema: dict[str, Any] = _precise(super().model_json_schema(*args, **options))
        keys = _with_templates(WatchConfig.model_json_schema())
        parts = {part: {**schema.get(part, {}), **keys[part]} for part in ("properties", "$defs")}
        return _with_deadlines({**schema, **parts})


def _with_templates(schema: Any) -> Any:
    """The schema, where a template may take the place of any value, and null that of a default."""
    if isinstance(schema, list):
        return [_with_templates(each) for each in schema]
    if not isinstance(schema, Mapping):
        return schema
    made = {key: _with_templates(each) for key, each in schema.items()}
    if "properties" in made:
        optional = made["properties"].keys() - set(made.get("required", ()))
        made["properties"] = {key: _or_template(each, null=key in optional) for key, each in made["properties"].items()}
    return made


def _or_template(schema: Mapping[str, Any], *, null: bool) -> Mapping[str, Any]:
    rest = dict(schema)
    said = {key: rest.pop(key) for key in ("title", "description", "default") if key in schema}
    choices = [each for each in rest.get("anyOf", []) if each != _NULL]
    if len(choices) == 1:
        rest = choices[0]
    # The errors of `else` are its own; those of `anyOf` are summed up in one.
    return {**said, "if": {"anyOf": [_TEMPLATE, *([_NULL] if null else [])]}, "then": {}, "else": rest}


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


def _with_deadlines(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Rules for the policies of a file, by the steps after a purge that each names or leaves to the defaults."""
    every = {"required": ["vacuum_every"]}
    in_defaults = {"required": ["policy"], "properties": {"policy": every}}
    ladders = {
        "Deadline": _longer_than(_MARGIN_DAYS),
        "DailyDeadline": _longer_than(_MARGIN_DAYS + 1, "a daily vacuum"),
    }
    own, daily = ({"$ref": f"#/$defs/{name}"} for name in ladders)
    return {
        **schema,
        "$defs": {**schema["$defs"], **ladders},
        "if": {"required": ["defaults"], "properties": {"defaults": in_defaults}},
        "then": _of_policies(own),
        "else": _of_policies({"if": every, "then": own, "else": daily}),
    }


def _of_policies(rule: Mapping[str, Any]) -> dict[str, Any]:
    entry = {"properties": {"policy": rule}}
    return {"properties": {"defaults": entry, "tables": {"items": entry}, "folders": {"items": entry}}}


def _longer_than(more: int, *others: str) -> dict[str, Any]:
    """Refuses ``erase_within`` if the retention, or the longest rung below it, and these days take as long."""
    made: dict[str, Any] = {}
    for days in _RUNGS:
        steps = " and ".join([*([f"a retention of {days}d"] if days else []), *others, f"a margin of {_MARGIN_DAYS}d"])
        said = f"more than {days + more}d, which is what {steps} take"
        short = {"type": "string", "pattern": _at_most(days + more)}
        rule = {"properties": {"erase_within": {"if": short, "then": {"const": said}}}}
        if not days:
            made = rule
            continue
        any_length = _durations(dict.fromkeys(_HOURS, r"\d+"))
        retention = {"type": "string", "pattern": any_length, "not": {"pattern": _at_most(days, strictly=True)}}
        made = {"if": {"properties": {"retention": retention}, "required": ["retention"]}, "then": rule, "else": made}
    return made


def _at_most(days: int, *, strictly: bool = False) -> str:
    """A pattern of the durations, in one unit, that are at most so long, or are shorter."""
    most = days * _HOURS["d"] - strictly
    return _durations({unit: _up_to(most // hours) for unit, hours in _HOURS.items()})


def _durations(numbers: Mapping[str, str]) -> str:
    choices = (rf"{number}\s*[{unit}{unit.upper()}]" for unit, number in numbers.items())
    return rf"^\s*(?:{'|'.join(choices)})\s*$"


def _up_to(most: int) -> str:
    """A pattern of the whole numbers from 0 to this one."""
    digits = str(most)
    lower = [
        f"{digits[:at]}[0-{int(digit) - 1}]" + r"\d" * (len(digits) - at - 1)
        for at, digit in enumerate(digits)
        if int(digit) > 0
    ]
    shorter = [rf"\d{{1,{len(digits) - 1}}}"] if len(digits) > 1 else []
    return f"0*(?:{'|'.join([*shorter, *lower, digits])})"
