"""What a verb returns to Python: a dataclass that also reads well in a terminal and in a notebook."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from html import escape
from typing import Any, Final

from dv_maintenance.units import format_duration, format_instant, format_size

__all__ = ["Report"]

_INSTANTS: Final = frozenset({"timestamp", "cutoff", "waits_until", "next_due_at"})
_DURATIONS: Final = frozenset({"retention"})
_SHOWN: Final = 5


class Report:
    """Base of results. ``repr`` and notebooks show the fields that say something, one a line."""

    __slots__ = ()

    def __repr__(self) -> str:
        rows = list(_rows(self))
        width = max((len(name) for name, _ in rows), default=0)
        lines = (f"  {name:<{width}}  {text}" for name, text in rows)
        return "\n".join([_title(self), *lines])

    def _repr_html_(self) -> str:
        rows = (f"<tr><th>{escape(name)}</th><td>{escape(text)}</td></tr>" for name, text in _rows(self))
        return f"<b>{escape(_title(self))}</b><table>{''.join(rows)}</table>"


def _title(report: Any) -> str:
    place = getattr(report, "table", None)
    return type(report).__name__ if place is None else f"{type(report).__name__} of {place}"


def _rows(report: Any) -> Iterator[tuple[str, str]]:
    """Names and texts of the fields; those of a nested dataclass stand in its place."""
    for field in fields(report):
        value = getattr(report, field.name)
        if field.name == "table" or value is None or value == () or value == {}:
            continue
        if is_dataclass(value):
            yield from _rows(value)
        elif isinstance(value, tuple | list):
            yield field.name, _listed(value)
        elif isinstance(value, Mapping):
            yield field.name, "; ".join(f"{key}: {_text('', each)}" for key, each in value.items())
        else:
            yield field.name, _text(field.name, value)


def _listed(values: tuple[Any, ...] | list[Any]) -> str:
    if any(map(is_dataclass, values)):
        return f"{len(values):,}"
    more = f" and {len(values) - _SHOWN:,} more" if len(values) > _SHOWN else ""
    return ", ".join(map(str, values[:_SHOWN])) + more


def _text(name: str, value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    if name in _INSTANTS:
        return format_instant(int(value))
    if name in _DURATIONS:
        return format_duration(int(value))
    if "bytes" in name or name.endswith("size"):
        return format_size(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:,.4g}"
