"""Protocol, metadata and the other small actions of a Delta log. Adds and removes come in bulk: see ``bulk``.

What a log says is untrusted: every parser here checks types and raises DamagedTableError naming the file it read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from dv_maintenance.errors import DamagedTableError

Action = dict[str, Any]
_T = TypeVar("_T")

# Features that a protocol version below the table-feature versions implies (protocol: Valid Feature Names).
_LEGACY_READER = {2: ("columnMapping",)}
_LEGACY_WRITER = {
    2: ("appendOnly", "invariants"),
    3: ("checkConstraints",),
    4: ("changeDataFeed", "generatedColumns"),
    5: ("columnMapping",),
    6: ("identityColumns",),
}
FEATURE_READER = 3
FEATURE_WRITER = 7


@dataclass(frozen=True, slots=True)
class Protocol:
    """What a reader or writer must understand. Feature sets are ``None`` where the log has none, which is not the same
    as empty.
    """

    min_reader: int
    min_writer: int
    reader_features: frozenset[str] | None = None
    writer_features: frozenset[str] | None = None

    def features(self, kind: Literal["reader", "writer"]) -> frozenset[str]:
        """Names of the features in force for readers or writers, including those that legacy versions imply."""
        listed, legacy, version = (
            (self.reader_features, _LEGACY_READER, self.min_reader)
            if kind == "reader"
            else (self.writer_features, _LEGACY_WRITER, self.min_writer)
        )
        if listed is not None:
            return listed
        return frozenset(name for level, names in legacy.items() if level <= version for name in names)

    @classmethod
    def from_json(cls, body: object, *, where: str) -> Protocol:
        """Raises DamagedTableError if a field has the wrong type; ``where`` names the file."""
        fields = _object(body, "protocol", where)
        return cls(
            min_reader=_take(fields, "minReaderVersion", int, "protocol", where),
            min_writer=_take(fields, "minWriterVersion", int, "protocol", where),
            reader_features=_names(fields, "readerFeatures", "protocol", where),
            writer_features=_names(fields, "writerFeatures", "protocol", where),
        )

    def to_json(self) -> dict[str, Any]:
        body: dict[str, Any] = {"minReaderVersion": self.min_reader, "minWriterVersion": self.min_writer}
        if self.reader_features is not None:
            body["readerFeatures"] = sorted(self.reader_features)
        if self.writer_features is not None:
            body["writerFeatures"] = sorted(self.writer_features)
        return body


@dataclass(frozen=True, slots=True, kw_only=True)
class Metadata:
    """A ``metaData`` action: everything needed to write it back unchanged.

    ``schema_string`` is empty if the log has no schema: such a table's files can be counted, nothing more.
    """

    id: str
    schema_string: str
    partition_columns: tuple[str, ...] = ()
    configuration: Mapping[str, str] = field(default_factory=dict)
    name: str | None = None
    description: str | None = None
    created_time: int | None = None  # epoch milliseconds
    format_provider: str = "parquet"
    format_options: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def from_json(cls, body: object, *, where: str) -> Metadata:
        """Raises DamagedTableError if a field is missing or has the wrong type; ``where`` names the file."""
        what = "metaData"
        fields = _object(body, what, where)
        columns = _optional(fields, "partitionColumns", list, what, where) or []
        if not all(isinstance(column, str) for column in columns):
            raise _damaged(what, "partitionColumns", where)
        source = _optional(fields, "format", dict, what, where) or {}
        return cls(
            id=_take(fields, "id", str, what, where),
            schema_string=_optional(fields, "schemaString", str, what, where) or "",
            partition_columns=tuple(dict.fromkeys(columns)),  # each once, so that the next checkpoint mends it
            configuration=_strings(fields, "configuration", what, where),
            name=_optional(fields, "name", str, what, where),
            description=_optional(fields, "description", str, what, where),
            created_time=_optional(fields, "createdTime", int, what, where),
            format_provider=_optional(source, "provider", str, what, where) or "parquet",
            format_options=_strings(source, "options", what, where),
        )

    def to_json(self) -> dict[str, Any]:
        optional = {"name": self.name, "description": self.description, "createdTime": self.created_time}
        return {
            "id": self.id,
            "format": {"provider": self.format_provider, "options": dict(self.format_options)},
            "schemaString": self.schema_string,
            "partitionColumns": list(self.partition_columns),
            "configuration": dict(self.configuration),
            **{key: value for key, value in optional.items() if value is not None},
        }


@dataclass(frozen=True, slots=True)
class Transaction:
    """A ``txn`` action: the progress of an application. ``last_updated`` in epoch milliseconds."""

    version: int
    last_updated: int | None = None


def parse_transaction(body: object, *, where: str) -> tuple[str, Transaction]:
    """Application id and its transaction."""
    fields = _object(body, "txn", where)
    return _take(fields, "appId", str, "txn", where), Transaction(
        _take(fields, "version", int, "txn", where), _optional(fields, "lastUpdated", int, "txn", where)
    )


def parse_domain(body: object, *, where: str) -> tuple[str, str | None]:
    """A domain and its configuration; ``None`` if the action removes the domain."""
    what = "domainMetadata"
    fields = _object(body, what, where)
    removed = _take(fields, "removed", bool, what, where)
    configuration = _optional(fields, "configuration", str, what, where) or ""
    return _take(fields, "domain", str, what, where), None if removed else configuration


def _object(body: object, what: str, where: str) -> dict[str, Any]:
    if not isinstance(body, dict):
        raise DamagedTableError(f"{where}: {what} is not a JSON object")
    return body


def _take(fields: Mapping[str, Any], key: str, kind: type[_T], what: str, where: str) -> _T:
    value = _optional(fields, key, kind, what, where)
    if value is None:
        raise DamagedTableError(f"{where}: {what} has no {key}")
    return value


def _optional(fields: Mapping[str, Any], key: str, kind: type[_T], what: str, where: str) -> _T | None:
    value = fields.get(key)
    # bool is an int to Python, not to JSON.
    if value is None or (isinstance(value, kind) and not (kind is int and isinstance(value, bool))):
        return value
    raise _damaged(what, key, where)


def _names(fields: Mapping[str, Any], key: str, what: str, where: str) -> frozenset[str] | None:
    names = _optional(fields, key, list, what, where)
    if names is None:
        return None
    if not all(isinstance(name, str) for name in names):
        raise _damaged(what, key, where)
    return frozenset(names)


def _strings(fields: Mapping[str, Any], key: str, what: str, where: str) -> dict[str, str]:
    body: dict[str, Any] = _optional(fields, key, dict, what, where) or {}
    if not all(value is None or isinstance(value, str) for value in body.values()):
        raise _damaged(what, key, where)
    return {name: value for name, value in body.items() if value is not None}


def _damaged(what: str, key: str, where: str) -> DamagedTableError:
    return DamagedTableError(f"{where}: {what}.{key} has the wrong type")
