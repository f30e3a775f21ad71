"""Versions of a table: the ids of its snapshots, which are random. Their order is that of parents."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from dv_maintenance.errors import DamagedTableError, RefusedError, UsageError
from dv_maintenance.tables.iceberg.layout import Layout
from dv_maintenance.tables.iceberg.log.metadata import NO_SNAPSHOT, Ref, load_metadata
from dv_maintenance.tables.table import Probe

if TYPE_CHECKING:
    from dv_maintenance.tables.iceberg.snapshot import IcebergSnapshot

MAX_AGE: Final = "history.expire.max-snapshot-age-ms"
_DEFAULT_AGE: Final = 432_000_000


def version(layout: Layout, known: int | None = None) -> int:
    """The id of the newest snapshot, ``NO_SNAPSHOT`` before the first one. Reads the metadata file: a rollback may have
    made an older snapshot the newest, so ``known`` is of no use. Raises as ``metadata.load_metadata``.
    """
    return probe(layout, known).version


def probe(layout: Layout, known: int | None = None) -> Probe:
    """As :func:`version`, with the table's UUID as stamp."""
    del known
    metadata = load_metadata(layout)
    return Probe(metadata.version, metadata.uuid)


def stamp(layout: Layout, version: int) -> str | None:
    metadata = load_metadata(layout)
    known = version in metadata.snapshots or version == metadata.version
    return metadata.uuid if known else None


def parent_of(layout: Layout, version: int) -> int:
    metadata = load_metadata(layout)
    if version not in metadata.snapshots:
        raise UsageError(f"there is no snapshot {version}", table=layout.uri)
    parent = metadata.snapshots[version].parent
    return NO_SNAPSHOT if parent is None else parent


def follows(layout: Layout, version: int, earlier: int) -> bool:
    """Whether ``earlier`` is an ancestor of ``version``; the parent of the oldest one that exists counts, too."""
    metadata = load_metadata(layout)
    if version not in metadata.snapshots:
        return False
    known = [each.id for each in metadata.ancestors(version)]
    oldest = metadata.snapshots[known[-1]].parent
    return earlier != version and (earlier in known or earlier == (NO_SNAPSHOT if oldest is None else oldest))


def version_at(layout: Layout, snapshot: IcebergSnapshot, timestamp: int) -> int:
    """See ``QueryableTable``. What was the newest version at a time is in the snapshot log: a rollback is not a parent.

    Raises UsageError if the log does not go back that far, DamagedTableError if it is none.
    """
    metadata = snapshot.metadata
    try:
        log = metadata.body.get("snapshot-log") or []
        times = [(int(each["timestamp-ms"]), int(each["snapshot-id"])) for each in log]
    except (ValueError, KeyError, TypeError, OverflowError) as error:
        raise DamagedTableError(f"the snapshot-log is damaged: {error!r}", at=snapshot) from None
    if layout.branch != "main" or not times:
        times = [(each.timestamp, each.id) for each in metadata.ancestors(snapshot.version)][::-1]
    found = [number for at, number in times if at <= timestamp and number in metadata.snapshots]
    if not found:
        raise UsageError(
            f"the history does not go back to {timestamp}",
            table=layout.uri,
            next_step="choose a later time: the snapshots of that time have expired, or the table did not exist",
        )
    return found[-1]


def tags(layout: Layout) -> dict[str, Ref]:
    """By name. Raises as ``metadata.load_metadata``."""
    return {name: each for name, each in load_metadata(layout).refs.items() if not each.is_branch}


def branches(layout: Layout) -> dict[str, Ref]:
    """By name, without ``main``. Raises as ``metadata.load_metadata``."""
    return {name: each for name, each in load_metadata(layout).refs.items() if each.is_branch and name != "main"}


def retention(snapshot: IcebergSnapshot) -> int:
    """How long snapshots are kept, milliseconds. Raises RefusedError if the property is not a number."""
    text = snapshot.properties.get(MAX_AGE)
    if text is None:
        return _DEFAULT_AGE
    if not text.strip().isdigit():
        raise RefusedError(
            f"the table property {MAX_AGE} is {text!r}, which is not a number of milliseconds",
            at=snapshot,
            next_step="correct the property with the table's engine",
        )
    return int(text)
