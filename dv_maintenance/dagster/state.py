"""What the sensor remembers between two ticks, and which version of a table counts as its data version."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import orjson

from dv_maintenance.errors import UsageError

if TYPE_CHECKING:
    from dv_maintenance.maintenance.watch import Look
    from dv_maintenance.tables.model import Table

__all__ = ["SensorState", "last_data_version"]

# Commits to read before reading them all: maintenance rarely makes more in a row.
_WINDOW = 50


@dataclass(frozen=True, slots=True)
class SensorState:
    """The cursor: the last look at each table, the data version of each, and the table whose turn it was when the time
    of the last tick ran out.
    """

    looks: Mapping[str, Look] = field(default_factory=dict)
    data_versions: Mapping[str, int] = field(default_factory=dict)
    first: str | None = None

    def to_json(self) -> str:
        body: dict[str, Any] = {
            "looks": {name: look.to_json() for name, look in self.looks.items()},
            "data_versions": dict(self.data_versions),
            "first": self.first,
        }
        return orjson.dumps(body).decode()

    @classmethod
    def from_json(cls, text: str | None) -> SensorState:
        """Anybody can edit a cursor in the UI. Raises UsageError for what is none of ours."""
        from dv_maintenance.maintenance.watch import read_state

        if not text:
            return cls()
        try:
            body = orjson.loads(text)
            versions = {str(name): int(version) for name, version in body["data_versions"].items()}
            looks, first = body["looks"], body["first"]
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise UsageError(f"not a cursor of this sensor: {type(error).__name__}") from error
        return cls(read_state(looks), versions, first)


def last_data_version(table: Table, since: tuple[int, int] | None = None) -> int:
    """The newest version that changed what a query returns. ``since``: (version, data version) of an earlier look, from
    which on alone the log is read.
    """
    if since is not None:
        try:
            changes = table.changes_since(since[0])
        except UsageError:  # another table at the same place: younger than the last look
            return last_data_version(table)
        return since[1] if changes.data_version is None else changes.data_version
    for entry in table.history(_WINDOW):
        if entry.data_changed:
            return entry.version
    found = table.changes_since(-1).data_version
    return table.version() if found is None else found
