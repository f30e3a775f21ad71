"""The metadata file of a table: schemas, partition specifications, properties, snapshots and references.

Format: Iceberg specification, Table Metadata. The parsed document is kept whole, since fields that are unknown here
must survive a commit.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from dv_maintenance.errors import DamagedTableError, UnsupportedFeatureError, located
from dv_maintenance.tables.iceberg.layout import Layout
from dv_maintenance.tables.iceberg.log.pointer import newest_metadata
from dv_maintenance.tables.iceberg.log.types import Schema, parse_schema
from dv_maintenance.tables.partition_spec import PartitionField, PartitionSpec
from dv_maintenance.tables.table import check_branch

MAIN: Final = "main"
NO_SNAPSHOT: Final = 0
"""The version of a table without a snapshot."""

_NEWEST_FORMAT: Final = 3
_NUMBERS: Final = {"last-sequence-number": 2, "next-row-id": 3}  # by the format version that requires them
_MAX_BYTES: Final = 1 << 30
_ATTEMPTS: Final = 3


@dataclass(frozen=True, slots=True)
class SnapshotEntry:
    """A snapshot as the metadata file has it.

    parent : its parent, which may have expired; ``None`` for a first snapshot.
    sequence : 0 in format version 1.
    timestamp : epoch milliseconds.
    manifest_list : as the file spells it; ``None`` for old snapshots of format version 1, which name ``manifests``.
    first_row_id, added_rows : of row lineage; ``None`` before format version 3.
    """

    id: int
    parent: int | None
    sequence: int
    timestamp: int
    manifest_list: str | None
    manifests: tuple[str, ...]
    schema_id: int | None
    summary: Mapping[str, str]
    first_row_id: int | None = None
    added_rows: int | None = None
    encrypted: bool = False

    @property
    def operation(self) -> str:
        """append, replace, overwrite or delete; unknown writers of format version 1 leave it out."""
        return self.summary.get("operation", "unknown")


@dataclass(frozen=True, slots=True)
class Ref:
    """A branch or a tag.

    body : as the file has it, with what it says of retention.
    """

    name: str
    snapshot: int
    is_branch: bool
    body: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class SpecField:
    """A field of a partition specification. ``id``: of its values in manifests."""

    id: int
    name: str
    transform: str
    source: int | None


@dataclass(frozen=True, slots=True)
class Metadata:
    """The content of a metadata file.

    path : of the file, in the storage.
    specs : fields by specification.
    snapshots : by id, in the file's order.
    current : the newest snapshot of the branch that was asked for; ``None`` before its first one.
    body : the whole JSON object.
    """

    path: str
    format_version: int
    uuid: str
    location: str
    schemas: Mapping[int, Schema]
    current_schema: int
    specs: Mapping[int, tuple[SpecField, ...]]
    default_spec: int
    properties: Mapping[str, str]
    snapshots: Mapping[int, SnapshotEntry]
    refs: Mapping[str, Ref]
    current: int | None
    body: Mapping[str, Any] = field(repr=False)

    @property
    def version(self) -> int:
        return NO_SNAPSHOT if self.current is None else self.current

    def schema_of(self, snapshot: SnapshotEntry | None) -> Schema:
        """The schema that was current when a snapshot was committed."""
        known = None if snapshot is None or snapshot.schema_id is None else self.schemas.get(snapshot.schema_id)
        return self.schemas[self.current_schema] if known is None else known

    def partition_specs(self, schema: Schema) -> tuple[PartitionSpec, ...]:
        """See ``Snapshot.specs``. Sources are called as in ``schema``."""
        order = sorted(self.specs, key=lambda number: (number == self.default_spec, number))
        return tuple(
            PartitionSpec(
                number,
                tuple(
                    PartitionField(each.name, schema.names.get(each.source or -1, ""), each.transform)
                    for each in self.specs[number]
                ),
            )
            for number in order
        )

    def ancestors(self, snapshot: int | None) -> Iterator[SnapshotEntry]:
        """The snapshot and those that it was committed on, newest first, as far back as they exist."""
        seen: set[int] = set()
        while snapshot is not None and snapshot in self.snapshots and snapshot not in seen:
            seen.add(snapshot)
            yield self.snapshots[snapshot]
            snapshot = self.snapshots[snapshot].parent


def load_metadata(layout: Layout) -> Metadata:
    """Read the newest metadata file.

    Raises
    ------
    As ``pointer.newest_metadata``, and
    DamagedTableError : the file can't be read; the message names it.
    UnsupportedFeatureError : the table has a newer format version.
    UsageError : it has no such branch.
    """
    path = ""
    for _ in range(_ATTEMPTS):
        path = newest_metadata(layout)
        try:
            return parse_metadata(layout, path, layout.storage.get(path))
        except FileNotFoundError:
            # A commit may have deleted it in the meantime (write.metadata.delete-after-commit.enabled).
            continue
    raise DamagedTableError(
        f"{path} does not exist", table=layout.uri, next_step="check the path; restore the file from a backup"
    )


def parse_metadata(layout: Layout, path: str, data: bytes) -> Metadata:
    """Parse the bytes of a metadata file. Raises as :func:`load_metadata`."""
    with located(layout.uri, file=path):
        return _Parser(layout, path, document(data)).metadata()


def document(data: bytes) -> Mapping[str, Any]:
    """The JSON object in the bytes of a metadata file. Raises DamagedTableError."""
    if data[:2] == b"\x1f\x8b":
        unpacker = zlib.decompressobj(zlib.MAX_WBITS | 16)
        try:
            data = unpacker.decompress(data, _MAX_BYTES)
        except zlib.error as error:
            raise DamagedTableError(f"it is not valid gzip: {error}") from error
        if not unpacker.eof:
            raise DamagedTableError("it is truncated, or unpacks to more than 1 GiB")
    try:
        body = json.loads(data)
    except (ValueError, RecursionError):
        raise DamagedTableError("it is not JSON") from None
    if not isinstance(body, dict):
        raise DamagedTableError("it is not a JSON object")
    return body


class _Parser:
    """Parses one document. Values have the types that the specification gives them, or the table is damaged."""

    def __init__(self, layout: Layout, path: str, body: Mapping[str, Any]) -> None:
        self.layout, self.path, self.body = layout, path, body

    def metadata(self) -> Metadata:
        body = self.body
        version = self.value(body, "format-version", int)
        if not 1 <= version <= _NEWEST_FORMAT:
            raise UnsupportedFeatureError(
                f"the table has format version {version}; this release reads up to {_NEWEST_FORMAT}",
                features=(f"format version {version}",),
                table=self.layout.uri,
                next_step="use a newer release of this tool",
            )
        if body.get("encryption-keys"):
            raise encrypted("the table is encrypted", self.layout)
        schemas = [parse_schema(each) for each in self.objects(body, "schemas")]
        if not schemas:
            schemas = [parse_schema(body.get("schema"))]
        current_schema = body.get("current-schema-id", schemas[0].id if len(schemas) == 1 else None)
        specs = {self.value(each, "spec-id", int): self.spec(each) for each in self.objects(body, "partition-specs")}
        if not specs:
            specs = {0: self.spec({"fields": body.get("partition-spec") or []})}
        default_spec = body.get("default-spec-id", 0)
        by_id = {each.id: each for each in schemas}
        if current_schema not in by_id or default_spec not in specs:
            raise DamagedTableError("its current schema or partition specification does not exist")
        snapshots = {each.id: each for each in map(self.snapshot, self.objects(body, "snapshots"))}
        for name, since in _NUMBERS.items():
            self.value(body, name, int, optional=version < since)
        refs = self.refs(snapshots)
        return Metadata(
            path=self.path,
            format_version=version,
            uuid=self.value(body, "table-uuid", str, optional=version == 1) or "",
            location=self.value(body, "location", str),
            schemas=by_id,
            current_schema=current_schema,
            specs=specs,
            default_spec=default_spec,
            properties={str(name): str(value) for name, value in self.object(body, "properties").items()},
            snapshots=snapshots,
            refs=refs,
            current=self.current(refs),
            body=body,
        )

    def spec(self, body: Mapping[str, Any]) -> tuple[SpecField, ...]:
        found = []
        for at, each in enumerate(self.objects(body, "fields")):
            sources = each.get("source-ids")
            source = each.get("source-id", sources[0] if isinstance(sources, list) and len(sources) == 1 else None)
            found.append(
                SpecField(
                    # Format version 1 numbers them by their places.
                    self.value(each, "field-id", int) if "field-id" in each else 1000 + at,
                    self.value(each, "name", str),
                    self.value(each, "transform", str),
                    source if type(source) is int else None,
                )
            )
        return tuple(found)

    def snapshot(self, body: Mapping[str, Any]) -> SnapshotEntry:
        return SnapshotEntry(
            id=self.value(body, "snapshot-id", int),
            parent=self.value(body, "parent-snapshot-id", int, optional=True),
            sequence=self.value(body, "sequence-number", int, optional=True) or 0,
            timestamp=self.value(body, "timestamp-ms", int),
            manifest_list=self.value(body, "manifest-list", str, optional=True),
            manifests=tuple(str(each) for each in body.get("manifests") or ()),
            schema_id=self.value(body, "schema-id", int, optional=True),
            summary={str(name): str(value) for name, value in self.object(body, "summary").items()},
            first_row_id=self.value(body, "first-row-id", int, optional=True),
            added_rows=self.value(body, "added-rows", int, optional=True),
            encrypted=body.get("key-id") is not None,
        )

    def refs(self, snapshots: Mapping[int, SnapshotEntry]) -> dict[str, Ref]:
        found = {}
        for name, each in self.object(self.body, "refs").items():
            if not isinstance(each, dict):
                raise DamagedTableError(f"the reference {name} is not an object")
            found[name] = Ref(name, self.value(each, "snapshot-id", int), each.get("type") == "branch", each)
        # Format version 1 has no references; -1 and null mean none.
        stated = self.value(self.body, "current-snapshot-id", int, optional=True)
        current = None if stated == -1 else stated
        main = found.get(MAIN)
        if main is None and current is not None:
            main = found[MAIN] = Ref(MAIN, current, is_branch=True, body={})
        for ref in found.values():
            if ref.snapshot not in snapshots:
                raise DamagedTableError(f"the reference {ref.name} names snapshot {ref.snapshot}, which does not exist")
        if main is not None and main.snapshot != current:
            # Readers differ in which of the two they follow, and a vacuum must not delete the files of either.
            raise DamagedTableError(f"current-snapshot-id is {stated}, but the branch {MAIN} is at {main.snapshot}")
        return found

    def current(self, refs: Mapping[str, Ref]) -> int | None:
        branch = self.layout.branch
        if branch != MAIN:
            check_branch(self.layout.uri, branch, [each.name for each in refs.values() if each.is_branch])
        return refs[branch].snapshot if branch in refs else None

    # -- values ------------------------------------------------------------------------------------------------------

    def value(self, body: Mapping[str, Any], name: str, kind: Callable[..., Any], *, optional: bool = False) -> Any:
        found = body.get(name)
        if found is None and optional:
            return None
        if type(found) is not kind:
            raise DamagedTableError(f"{name} is {'missing' if found is None else f'{found!r}'[:100]}")
        return found

    def object(self, body: Mapping[str, Any], name: str) -> Mapping[str, Any]:
        found = body.get(name) or {}
        if not isinstance(found, dict):
            raise DamagedTableError(f"{name} is not an object")
        return found

    def objects(self, body: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
        found = body.get(name) or []
        if not isinstance(found, list) or not all(isinstance(each, dict) for each in found):
            raise DamagedTableError(f"{name} is not a list of objects")
        return found


def encrypted(what: str, layout: Layout, version: int | None = None) -> UnsupportedFeatureError:
    return UnsupportedFeatureError(
        what,
        features=("encryption",),
        table=layout.uri,
        version=version,
        next_step="read and maintain it with its own engine",
    )
