"""What operators are given: values, or templates that become text while the task runs."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from dv_maintenance.config import parse_yaml
from dv_maintenance.errors import UsageError


def literal(*values: Any) -> bool:
    """Whether values are known while the DAG is parsed: no template, and no output of another task."""
    return all(
        "{{" not in value and "{%" not in value
        if isinstance(value, str)
        else literal(*value.values())
        if isinstance(value, Mapping)
        else literal(*value)
        if isinstance(value, list | tuple | set)
        else value is None or isinstance(value, bool | int | float)
        for value in values
    )


def known(value: Any, names: Collection[Any], what: str) -> None:
    """Raises UsageError for a value, or one of several, that is not among the names."""
    for each in value if isinstance(value, list | tuple) else (value,):
        if each not in names:
            raise UsageError(f"{what} can't be {each!r}", next_step=f"choose from {', '.join(map(str, names))}")


def is_true(value: bool | str, name: str) -> bool:
    """A template renders to text. Raises UsageError if that is neither true nor false: a guess could delete rows."""
    if isinstance(value, bool):
        return value
    text = value.strip().lower()
    if text not in {"true", "false"}:
        raise UsageError(f"{name} must be true or false, not {value!r}")
    return text == "true"


def check_flags(task: Any, *names: str) -> None:
    """Raises UsageError for an attribute that is neither true nor false, nor a template."""
    for name in names:
        if literal(value := getattr(task, name)):
            is_true(value, name)


def texts(value: str | Sequence[str]) -> list[str]:
    """A template renders to one text: that of one name, or of a list."""
    if not isinstance(value, str):
        return list(value)
    if not value.lstrip().startswith("["):
        return [value]
    return [str(each) for each in parse_yaml(value, source="a template").data]


def keys_of(value: Mapping[str, Any] | str | None) -> dict[str, Any]:
    """Keys of a policy; those without a value are left out. Raises UsageError for text that is not a mapping."""
    found = parse_yaml(value, source="a template").data if isinstance(value, str) else value
    if not isinstance(found or {}, Mapping):
        raise UsageError(f"keys of a policy are a mapping, not {value!r}")
    return {key: each for key, each in (found or {}).items() if each not in (None, "", [], ())}
