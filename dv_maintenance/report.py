"""What a verb returns to Python: a dataclass that also reads well in a terminal and in a notebook."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields, is_dataclass, replace
from html import escape
from typing import Any, Final, Protocol, Self

from dv_maintenance.units import first_few, format_duration, format_instant, format_size

_INSTANTS: Final = frozenset({"timestamp", "cutoff", "waits_until", "next_due_at"})
_DURATIONS: Final = frozenset({"retention"})
_SHOWN: Final = 5


class _Named(Protocol):
    @property
    def uri(self) -> str: ...
    @property
    def format(self) -> str: ...


@dataclass(frozen=True, slots=True, repr=False)
class Report:
    """Base of what verbs return. ``repr`` and notebooks show the facts that say something, one a line.

    table, format : the table's URI and format. A format's own report has neither until the verb returns it.
    """

    table: str = field(default="", kw_only=True)
    format: str = field(default="", kw_only=True)

    def of(self, table: _Named) -> Self:
        """The report as one of this table."""
        return replace(self, table=table.uri, format=table.format)

    def facts(self) -> dict[str, Any]:
        """What ``repr`` shows, by name."""
        return {each.name: getattr(self, each.name) for each in fields(self)}

    def to_json(self) -> dict[str, Any]:
        """As the command line prints it with ``--json``."""
        return {name: list(each) if isinstance(each, tuple) else each for name, each in asdict(self).items()}

    def __repr__(self) -> str:
        rows = list(_rows(self.facts()))
        width = max((len(name) for name, _ in rows), default=0)
        lines = (f"  {name:<{width}}  {text}" for name, text in rows)
        return "\n".join([_title(self), *lines])

    def _repr_html_(self) -> str:
        rows = (f"<tr><th>{escape(name)}</th><td>{escape(text)}</td></tr>" for name, text in _rows(self.facts()))
        return f"<b>{escape(_title(self))}</b><table>{''.join(rows)}</table>"


def _title(report: Report) -> str:
    return f"{type(report).__name__} of {report.table}" if report.table else type(report).__name__


def _rows(facts: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Names and texts of the facts; those of a nested dataclass stand in its place."""
    for name, value in facts.items():
        if name == "table" or value is None or value == () or value == {}:
            continue
        if is_dataclass(value):
            yield from _rows({each.name: getattr(value, each.name) for each in fields(value)})
        elif isinstance(value, tuple | list):
            yield name, _listed(value)
        elif isinstance(value, Mapping):
            yield name, "; ".join(f"{key}: {_text('', each)}" for key, each in value.items())
        else:
            yield name, _text(name, value)


def _listed(values: tuple[Any, ...] | list[Any]) -> str:
    if any(map(is_dataclass, values)):
        return f"{len(values):,}"
    return first_few([*map(str, values)], _SHOWN)


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
