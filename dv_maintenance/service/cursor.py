"""The state that is kept between two evaluations of many tables, to and from JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import orjson

from dv_maintenance.errors import UsageError
from dv_maintenance.service.inspection import Inspection

if TYPE_CHECKING:
    from dv_maintenance.service.tables_file import Job

_LETTERS: Mapping[Job, str] = {"optimize": "o", "vacuum": "v", "manifest": "m"}
_FORM = 5


@dataclass(frozen=True, slots=True)
class TableState:
    """The state of one table.

    ``inspection`` : the last one that succeeded; the cursor keeps the part that the next inspection needs.
    ``data_version`` : ``None`` if data versions are not tracked.
    ``readable_since`` : since when the check ``readable`` passes, epoch milliseconds; 1: since its first evaluation;
        0: it fails; ``None``: it was not evaluated yet.
    ``checked_until`` : when a check crosses its next limit without a commit, epoch milliseconds; ``None``: never.
    ``lineage`` : distinguishes data versions of a table that was dropped and created again from those before; "" for
        the first table.
    """

    inspection: Inspection
    data_version: int | None = None
    readable_since: int | None = None
    checked_until: int | None = None
    lineage: str = ""

    @property
    def readable(self) -> bool | None:
        """The last result of the check ``readable``; ``None``: it was not evaluated yet."""
        return None if self.readable_since is None else self.readable_since > 0


@dataclass(frozen=True, slots=True)
class Cursor:
    """State by table name, and the table to begin with next time (``None``: the first one).

    As JSON about 75 bytes per table, since orchestrators store a cursor with every evaluation: a row
    ``[version, data version, due, vacuum checked, settings, readable since, next due, checked until, stamp, lineage]``
    by name; settings are indexes into a list, and an empty lineage is omitted.
    """

    tables: Mapping[str, TableState] = field(default_factory=dict)
    first: str | None = None

    def to_json(self) -> str:
        settings: dict[str, int] = {}
        rows = {
            name: [
                state.inspection.version,
                state.data_version,
                "".join(_LETTERS[job] for job in state.inspection.due),
                state.inspection.vacuum_checked,
                settings.setdefault(state.inspection.settings, len(settings)),
                state.readable_since,
                state.inspection.next_due_at,
                state.checked_until,
                state.inspection.stamp,
                *filter(None, [state.lineage]),
            ]
            for name, state in self.tables.items()
        }
        return orjson.dumps({"form": _FORM, "first": self.first, "settings": list(settings), "tables": rows}).decode()

    @classmethod
    def from_json(cls, text: str | None) -> Cursor:
        """A user can edit a cursor in a page. Raises UsageError for text that is not a cursor of this sensor."""
        if not text:
            return cls()
        try:
            body = orjson.loads(text)
            if body["form"] != _FORM:
                raise ValueError("form")
            tables = {name: _state(name, row, body["settings"]) for name, row in body["tables"].items()}
            first = body["first"]
            if not isinstance(first, str | None):
                raise TypeError("first")
        except (ValueError, TypeError, LookupError, AttributeError) as error:
            raise UsageError(
                "the cursor is not that of a sensor of this package",
                next_step="copy all of it from the page of the sensor",
            ) from error
        return cls(tables, first)


def _state(name: str, row: list[Any], settings: list[str]) -> TableState:
    version, data_version, due, checked, setting, readable, next_due, until, stamp, lineage = [*row, ""][:10]
    numbers = (version, data_version, checked, readable, next_due, until)
    if any(type(number) not in {int, type(None)} for number in numbers):
        raise TypeError(name)
    if not isinstance(stamp, str) or not isinstance(lineage, str):
        raise TypeError(name)
    jobs = {letter: job for job, letter in _LETTERS.items()}
    inspection = Inspection(
        name,
        version=version,
        due=tuple(jobs[letter] for letter in due),
        vacuum_checked=checked,
        next_due_at=next_due,
        settings=str(settings[setting]),
        stamp=stamp,
    )
    return TableState(inspection, data_version, readable, until, lineage)
