"""The state of a restored table: decisions only, no storage.

The content comes back from the old version: files, schema, properties. Everything that describes the log itself stays
as it is now. The protocol never loses a feature, identity columns and column ids never reuse a value, in-commit
timestamps continue, and protected checkpoints stay protected.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

import orjson

from dv_maintenance.tables.delta.log.actions import FEATURE_READER, FEATURE_WRITER, Action, Metadata, Protocol
from dv_maintenance.tables.delta.rows.clustering import CLUSTERING
from dv_maintenance.units import parse_count

# Properties about reading or writing the log, not about the table's content.
_OF_THE_LOG: Final = (
    "delta.enableInCommitTimestamps",
    "delta.inCommitTimestampEnablementTimestamp",
    "delta.inCommitTimestampEnablementVersion",
    "delta.requireCheckpointProtectionBeforeVersion",
)
_MAX_COLUMN_ID: Final = "delta.columnMapping.maxColumnId"
_MARK: Final = "delta.identity.highWaterMark"
_STEP: Final = "delta.identity.step"

# Features that require more of a data file, or of its actions, than files written before the feature have.
_DEMANDING: Final = {
    "materializePartitionColumns": "files must store their partition columns",
    "rowTracking": "its rows have no ids",
}
# The only domain that describes content: how files are clustered. Others hold counters, or are not ours to revert.


def unrestorable(old: Protocol, now: Protocol) -> str | None:
    """Why files of a version with the protocol ``old`` don't fit a table with the protocol ``now``."""
    for feature in sorted((now.features("writer") - old.features("writer")) & _DEMANDING.keys()):
        return f"that version is older than the feature {feature}: {_DEMANDING[feature]}"
    return None


def restored_protocol(old: Protocol, now: Protocol) -> Protocol:
    """Every feature of either protocol: a downgrade would make versions in between unreadable."""
    readers = old.features("reader") | now.features("reader")
    writers = old.features("writer") | now.features("writer") | readers
    if readers == now.features("reader") and writers == now.features("writer"):
        return now
    if not readers:
        return Protocol(1, FEATURE_WRITER, None, writers)
    return Protocol(FEATURE_READER, FEATURE_WRITER, readers, writers)


def restored_metadata(old: Metadata, now: Metadata) -> Metadata:
    """Schema, partitioning and properties of ``old``; identity and properties of the log from ``now``."""
    configuration = {key: value for key, value in old.configuration.items() if key not in _OF_THE_LOG}
    configuration |= {key: now.configuration[key] for key in _OF_THE_LOG if key in now.configuration}
    ids = [parse_count(each.configuration.get(_MAX_COLUMN_ID, "")) for each in (old, now)]
    if None not in ids:
        configuration[_MAX_COLUMN_ID] = str(max(filter(None, ids), default=0))
    return replace(
        old,
        id=now.id,
        created_time=now.created_time,
        configuration=configuration,
        schema_string=_with_marks(old.schema_string, now.schema_string),
    )


def same_schema(one: Metadata, other: Metadata) -> bool:
    """Whether two versions have the same schema, however its JSON is spelled."""
    if one.schema_string == other.schema_string:
        return True
    try:
        return bool(orjson.loads(one.schema_string) == orjson.loads(other.schema_string))
    except orjson.JSONDecodeError:  # a restore may leave such a version
        return False


def restored_domains(old: Mapping[str, str], now: Mapping[str, str]) -> list[Action]:
    """``domainMetadata`` actions that restore the clustering columns."""
    before, after = now.get(CLUSTERING), old.get(CLUSTERING)
    if before == after:
        return []
    removed = after is None
    configuration = before if removed else after
    return [{"domainMetadata": {"domain": CLUSTERING, "configuration": configuration, "removed": removed}}]


def _with_marks(old: str, now: str) -> str:
    """The schema ``old``, where each identity column has the later of the two high-water marks."""
    if _MARK not in now:
        return old
    schema = orjson.loads(old)
    try:
        later = {field["name"]: field.get("metadata", {}) for field in orjson.loads(now)["fields"]}
    except (orjson.JSONDecodeError, TypeError, KeyError):
        return old  # nobody can have written rows under such a schema
    for field in schema["fields"]:
        notes = field.get("metadata", {})
        mark = _later(notes, later.get(field["name"], {}))
        if _STEP in notes and mark is not None:
            notes[_MARK] = mark
    text: str = orjson.dumps(schema).decode()
    return text


def _later(old: Mapping[str, Any], now: Mapping[str, Any]) -> int | None:
    marks: list[int] = [notes[_MARK] for notes in (old, now) if type(notes.get(_MARK)) is int]
    if not marks:
        return None
    return min(marks) if old.get(_STEP, 1) < 0 else max(marks)
