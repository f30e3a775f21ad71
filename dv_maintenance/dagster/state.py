"""What the sensor remembers between two ticks, and which version of a table counts as its data version."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import dagster as dg
import orjson

from dv_maintenance.errors import UsageError

if TYPE_CHECKING:
    from dv_maintenance.maintenance.tables_file import Job
    from dv_maintenance.maintenance.watch import Look
    from dv_maintenance.tables.model import Table

__all__ = ["Seen", "SensorState", "last_data_version", "observed_before"]

# Commits to read before reading them all: maintenance rarely makes more in a row.
_WINDOW = 50
_LETTERS: Mapping[Job, str] = {"optimize": "o", "vacuum": "v", "manifest": "m"}
_FORM = 2


@dataclass(frozen=True, slots=True)
class Seen:
    """What is known of one table. ``look``: the last one that succeeded, of which the cursor keeps what the next look
    builds on. ``data_version``: ``None`` where the sensor does not observe. ``readable``: what the check said last.
    """

    look: Look
    data_version: int | None = None
    readable: bool | None = None


@dataclass(frozen=True, slots=True)
class SensorState:
    """The cursor: what was seen, by table, and the table that comes first in the next tick (``None``: the first one).

    As JSON about 45 bytes per table, since Dagster stores a cursor with every tick: a row
    ``[version, data version, due, vacuum checked, settings, readable]`` by name; settings are numbers of a list.
    """

    seen: Mapping[str, Seen] = field(default_factory=dict)
    first: str | None = None

    def to_json(self) -> str:
        settings: dict[str, int] = {}
        rows = {
            name: [
                seen.look.version,
                seen.data_version,
                "".join(_LETTERS[job] for job in seen.look.due),
                seen.look.vacuum_checked,
                settings.setdefault(seen.look.settings, len(settings)),
                None if seen.readable is None else int(seen.readable),
            ]
            for name, seen in self.seen.items()
        }
        return orjson.dumps({"form": _FORM, "first": self.first, "settings": list(settings), "tables": rows}).decode()

    @classmethod
    def from_json(cls, text: str | None) -> SensorState:
        """Anybody can edit a cursor in the UI. Raises UsageError for what is none of ours."""
        if not text:
            return cls()
        try:
            body = orjson.loads(text)
            if body["form"] != _FORM:
                raise ValueError("form")
            seen = {name: _seen(name, row, body["settings"]) for name, row in body["tables"].items()}
            first = body["first"]
            if not isinstance(first, str | None):
                raise TypeError("first")
        except (ValueError, TypeError, LookupError, AttributeError) as error:
            raise UsageError(f"not a cursor of this sensor: {type(error).__name__}") from error
        return cls(seen, first)


def _seen(name: str, row: list[Any], settings: list[str]) -> Seen:
    from dv_maintenance.maintenance.watch import Look

    version, data_version, due, checked, setting, readable = row
    if any(type(number) not in {int, type(None)} for number in (version, data_version, checked, readable)):
        raise TypeError(name)
    jobs = {letter: job for job, letter in _LETTERS.items()}
    look = Look(
        name,
        version=version,
        due=tuple(jobs[letter] for letter in due),
        vacuum_checked=checked,
        settings=str(settings[setting]),
    )
    return Seen(look, data_version, None if readable is None else bool(readable))


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


def observed_before(instance: dg.DagsterInstance, key: dg.AssetKey) -> tuple[int, int] | None:
    """The version and the data version that the table was last observed with: where :func:`last_data_version` goes on.
    ``None``: it never was, or the data version is for somebody else to say.

    Without it a history would have to be read to its beginning, and of one that a vacuum shortened nobody can tell
    which version was the last to change data.
    """
    for record in instance.fetch_observations(key, limit=1).records:
        observation = record.asset_observation
        version = observation.metadata.get("version") if observation is not None else None
        data_version = observation.tags.get("dagster/data_version", "") if observation is not None else ""
        if version is not None and isinstance(version.value, int) and data_version.isdecimal():
            return version.value, int(data_version)
    return None
