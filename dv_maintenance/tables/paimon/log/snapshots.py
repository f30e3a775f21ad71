"""The snapshots of a table, and the content of each.

Format: snapshot of Paimon's specification. Ids count from 1 without gaps; the oldest may have expired. The hints
LATEST and EARLIEST may be stale or missing. A table without a commit has no snapshot; this package calls that version
0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from dv_maintenance.errors import DamagedTableError, TableNotFoundError, UnsupportedFeatureError, UsageError
from dv_maintenance.storage import stamp_of
from dv_maintenance.tables.not_found import not_found
from dv_maintenance.tables.paimon.layout import SNAPSHOT, Layout, numbered
from dv_maintenance.tables.paimon.log.documents import Document
from dv_maintenance.tables.table import Probe

USER: Final = "dv-maintenance-"
"""Prefix of this package's commit users."""

COMPACT: Final = "COMPACT"
BATCH: Final = 2**63 - 1
"""Commit identifier of all batch writers."""

LATEST: Final = "LATEST"
_EARLIEST: Final = "EARLIEST"
FORMAT: Final = 3
"""Format version of snapshots, the newest that is known."""

_NUMBERS: Final = ("totalRecordCount", "deltaRecordCount", "changelogRecordCount", "watermark", "nextRowId")
_MAX_HINT: Final = 64
# The newest snapshot never expires, but it may no longer be the newest by the time it is read.
_ATTEMPTS: Final = 3


@dataclass(frozen=True, slots=True)
class SnapshotFile:
    """The content of a snapshot file, or of the file of a tag or a changelog.

    kind : APPEND, COMPACT, OVERWRITE or ANALYZE.
    timestamp : epoch milliseconds.
    body : the whole JSON object. Its record counts are physical rows, regardless of deletion vectors.
    """

    id: int
    schema_id: int
    base_list: str
    delta_list: str
    changelog_list: str | None
    index_manifest: str | None
    commit_user: str
    commit_identifier: int
    kind: str
    timestamp: int
    body: Mapping[str, Any] = field(repr=False)


def latest_version(layout: Layout, known: int | None = None) -> int:
    """The id of the newest snapshot; 0 before the first commit.

    Costs one listing on local disk. Elsewhere it reads the hint and checks for a successor. It lists only if the hint
    is wrong.

    known : of no use. A rollback may have deleted that snapshot.

    Raises
    ------
    TableNotFoundError : there are neither snapshots nor schemas.
    StorageError : as :meth:`Layout.schemas`.
    DamagedTableError : there is a hint, but no snapshot.
    """
    del known
    return _newest(layout)[0]


def probe(layout: Layout, known: int | None = None) -> Probe:
    """As :func:`latest_version`, with the stamp of its snapshot file: in an object store from the same requests."""
    del known
    version, found = _newest(layout)
    return Probe(version, found or stamp(layout, version) or "")


def stamp(layout: Layout, version: int) -> str | None:
    """The stamp of a snapshot file; ``None`` if it expired, and before the first commit. Raises StorageError."""
    found = layout.storage.info(layout.snapshot(version))
    return None if found is None else stamp_of(found)


def _newest(layout: Layout) -> tuple[int, str | None]:
    """The newest snapshot, and its stamp, if it cost no request."""
    if not layout.storage.is_local:
        hint = _hint(layout, LATEST)
        found = None if hint is None else stamp(layout, hint)
        if hint is not None and found is not None and not layout.storage.exists(layout.snapshot(hint + 1)):
            return hint, found
    return max(all_versions(layout), default=0), None


def all_versions(layout: Layout) -> list[int]:
    """Ids of all existing snapshots, oldest first; empty before the first commit. Raises as :func:`latest_version`."""
    names = layout.names(SNAPSHOT)
    found = sorted(version for name in names if (version := numbered(name, "snapshot-")))
    if found:
        return found
    if LATEST in names or _EARLIEST in names:
        raise DamagedTableError(
            f"{layout.own}{SNAPSHOT} has a hint, but no snapshot",
            table=layout.uri,
            next_step="check the path; restore the snapshots from a backup if they were deleted",
        )
    if not layout.schemas():
        if not layout.own:
            raise not_found(layout.storage, format="paimon")
        raise TableNotFoundError(
            f"{layout.own} has neither snapshots nor schemas of Paimon",
            table=layout.uri,
            next_step="check the table's path",
        )
    return []


def _hint(layout: Layout, name: str) -> int | None:
    try:
        data = layout.storage.get_range(f"{layout.own}{SNAPSHOT}/{name}", 0, _MAX_HINT)
    except FileNotFoundError:
        return None
    return numbered(data.decode("ascii", "replace").strip(), "")


def load_snapshot_file(layout: Layout, version: int | None = None) -> SnapshotFile | None:
    """Read a snapshot by its id, by default the newest; ``None`` for version 0. Costs one listing and one read.

    Raises
    ------
    TableNotFoundError : as :func:`latest_version`.
    DamagedTableError : as :func:`latest_version`, or the file cannot be read.
    UsageError : there is no such snapshot.
    UnsupportedFeatureError : the snapshot has a newer format version.
    """
    newest = 0
    for _ in range(_ATTEMPTS):
        newest = latest_version(layout)
        wanted = newest if version is None else version
        if wanted == 0 == newest:
            return None
        try:
            if 0 < wanted <= newest:
                return read_snapshot_file(layout, wanted)
        except FileNotFoundError:
            pass
        if version is not None:
            raise no_such_version(layout, version)
    raise DamagedTableError(
        f"{layout.snapshot(newest)} is listed, but cannot be read",
        table=layout.uri,
        version=newest,
        next_step="run again; if the error persists, check the permissions and the storage",
    )


def no_such_version(layout: Layout, version: int) -> UsageError:
    versions = all_versions(layout)
    there = f"snapshots {versions[0]} to {versions[-1]} exist" if versions else "the table has no snapshot yet"
    return UsageError(f"there is no snapshot {version}", table=layout.uri, next_step=f"{there}, and those of tags")


def read_snapshot_file(layout: Layout, version: int) -> SnapshotFile:
    """Read a snapshot file. Raises FileNotFoundError, DamagedTableError, UnsupportedFeatureError."""
    path = layout.snapshot(version)
    found = parse_snapshot(Document.parse(layout.uri, path, layout.storage.get(path)))
    if found.id != version:
        raise DamagedTableError(f"{path} holds snapshot {found.id}", table=layout.uri, version=version)
    return found


def parse_snapshot(document: Document) -> SnapshotFile:
    """Parse the file of a snapshot, a tag or a changelog. Unknown fields are ignored.

    Raises
    ------
    DamagedTableError, UnsupportedFeatureError : the message names the file.
    """
    version = document.optional_integer("version") or 1
    if version > FORMAT:
        raise UnsupportedFeatureError(
            f"{document.path} has format version {version}; this release reads up to {FORMAT}",
            features=(f"snapshot version {version}",),
            table=document.table,
            next_step="use a newer release of this tool",
        )
    for name in _NUMBERS:  # which the next snapshot takes over or counts on
        document.optional_integer(name)
    return SnapshotFile(
        id=document.integer("id"),
        schema_id=document.integer("schemaId"),
        base_list=document.file_name("baseManifestList"),
        delta_list=document.file_name("deltaManifestList"),
        changelog_list=document.optional_file_name("changelogManifestList"),
        index_manifest=document.optional_file_name("indexManifest"),
        commit_user=document.optional_text("commitUser") or "",
        commit_identifier=document.optional_integer("commitIdentifier") or 0,
        kind=document.text("commitKind"),
        timestamp=document.integer("timeMillis"),
        body=document.body,
    )
