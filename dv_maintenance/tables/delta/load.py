"""Read a Delta table at one version: the log's files, replayed and checked."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from dv_maintenance.errors import DamagedTableError, DvMaintenanceError, RefusedError
from dv_maintenance.files.arrays import bools
from dv_maintenance.storage import Storage
from dv_maintenance.tables.delta.features import UNSTAMPED, check_readable, stamps
from dv_maintenance.tables.delta.log.actions import Metadata, Protocol, Transaction
from dv_maintenance.tables.delta.log.checksum import contradicted, read_checksum
from dv_maintenance.tables.delta.log.ratified import RatifiedStorage
from dv_maintenance.tables.delta.log.replay import TOMBSTONE_COLUMNS, State, first_of_each, replay, tombstone_table
from dv_maintenance.tables.delta.log.segment import LogSegment, read_commit, segment
from dv_maintenance.tables.delta.rows.files import ADD_COLUMNS, duplicate_paths, files_table, unchecked_files
from dv_maintenance.tables.delta.rows.schema import arrow_schema
from dv_maintenance.tables.delta.snapshot import DeltaSnapshot
from dv_maintenance.tables.model import left_to
from dv_maintenance.tables.partition_spec import by_columns
from dv_maintenance.units import count

REPEATS: Final = "names a file twice"
PRINTS: Final = "prints"
"""In ``Snapshot.derived``: ``log.fingerprints`` of the paths."""


def load_snapshot(storage: Storage, version: int | None = None) -> DeltaSnapshot:
    """The table at a version, the newest by default.

    ``timestamp`` is the version's in-commit timestamp if the table has the feature. Otherwise it is the modification
    time of the version's commit file.

    Raises
    ------
    TableNotFoundError : there is no log.
    UsageError : no such version.
    UnsupportedFeatureError : the table needs reader features that this release does not know.
    DamagedTableError : names the file that cannot be trusted.
    """
    return _snapshot(storage, *replayed(storage, version))


def load_to_leave(storage: Storage) -> DeltaSnapshot:
    """The newest version, for a restore that replaces it: as :func:`load_snapshot`, but its adds and its schema may be
    wrong. Of such a version, ``files`` has only what removes need, and ``schema`` is empty.

    Raises as :func:`load_snapshot`, if the log itself can't be read.
    """
    try:
        return load_snapshot(storage)
    except (DamagedTableError, RefusedError) as error:
        damage: DvMaintenanceError = error
    files, state, warnings = replayed(storage, None)
    if state.protocol is None or state.metadata is None:
        raise damage
    check_readable(state.protocol, table=storage.uri, managed=isinstance(storage, RatifiedStorage))
    return snapshot_of(
        storage,
        files,
        unchecked_files(state.adds),
        protocol=state.protocol,
        metadata=state.metadata,
        domains=state.domains,
        transactions=state.transactions,
        schema=pa.schema([]),
        warnings=(*warnings, damage.message),
    )


def load_with_tombstones(storage: Storage) -> tuple[DeltaSnapshot, pa.Table]:
    """The table at its newest version and its tombstones (``replay.tombstone_table``), from one reading of the log.
    Raises as :func:`load_snapshot`.
    """
    files, state, warnings = replayed(storage, None, removes=TOMBSTONE_COLUMNS)
    return _snapshot(storage, files, state, warnings), tombstone_table(state.removes)


def _snapshot(storage: Storage, files: LogSegment, state: State, warnings: tuple[str, ...]) -> DeltaSnapshot:
    checkpoint = files.checkpoint_version
    for name, action in (("protocol", state.protocol), ("metaData", state.metadata)):
        # As Spark, whatever older files of the log say. Without a checkpoint, files can be counted without a schema.
        if action is None and (checkpoint is not None or name == "protocol"):
            where = "the log" if checkpoint is None else f"the checkpoint of version {checkpoint}"
            raise DamagedTableError(
                f"{where} has no {name}",
                table=storage.uri,
                version=files.version,
                next_step="restore the missing files of the log from a backup; if all commits up to the checkpoint are "
                "there, readers can do without it"
                if checkpoint is not None
                else "restore the missing commits from a backup",
            )
    assert state.protocol is not None
    check_readable(state.protocol, table=storage.uri, managed=isinstance(storage, RatifiedStorage))
    metadata = state.metadata or Metadata(id="", schema_string="")
    try:
        rows = files_table(state.adds, metadata)
    except DvMaintenanceError as error:
        error.table, error.version = storage.uri, files.version
        raise
    prints, twice = state.prints, duplicate_paths(rows["path"], state.prints)
    if twice and not (firsts := first_of_each(state.adds)).all():
        again = rows["path"].filter(bools(~firsts))[0].as_py()
        warnings = (*warnings, f"the checkpoint of version {files.checkpoint_version} {REPEATS}: {again}")
        rows, prints = rows.filter(bools(firsts)), prints[firsts]
        twice = duplicate_paths(rows["path"], prints)
    found = snapshot_of(
        storage,
        files,
        rows,
        protocol=state.protocol,
        metadata=metadata,
        domains=state.domains,
        transactions=state.transactions,
        duplicates=twice,
        warnings=warnings,
    )
    found.derived[PRINTS] = prints
    return found


def snapshot_of(
    storage: Storage,
    files: LogSegment,
    rows: pa.Table,
    *,
    protocol: Protocol,
    metadata: Metadata,
    domains: Mapping[str, str],
    transactions: Mapping[str, Transaction],
    schema: pa.Schema | None = None,
    duplicates: tuple[str, ...] = (),
    warnings: tuple[str, ...] = (),
) -> DeltaSnapshot:
    """The snapshot of a version, built from its live files and the rest of its state. ``schema``: instead of the one in
    the metadata. Raises DamagedTableError.
    """
    try:
        # Without a schema the files can still be counted; operations that need it refuse.
        if schema is None:
            schema = arrow_schema(metadata) if metadata.schema_string else pa.schema([])
    except DvMaintenanceError as error:
        error.table, error.version = storage.uri, files.version
        raise
    if not metadata.schema_string:
        warnings = (*warnings, "the log has no schema: the table can be counted, but neither read nor changed")
    if duplicates:
        warnings = (*warnings, f"{duplicates[0]} is live more than once: its rows are read more than once")
    uncounted = pc.sum(pc.and_(rows["dv_id"].is_valid(), rows["physical_rows"].is_null())).as_py()
    if uncounted:
        which = f"{count(uncounted, 'file')} with deletion vectors"
        warnings = (*warnings, f"no valid numRecords in the statistics of {which}")
    optimizer = storage.catalog.optimizer() if isinstance(storage, RatifiedStorage) else ""
    notes = (left_to(optimizer),) if optimizer else ()
    in_commit = _in_commit_timestamp(storage, files, metadata)
    if in_commit is None and files.commit and stamps(metadata):
        warnings = (*warnings, UNSTAMPED)
    return DeltaSnapshot(
        table=storage.uri,
        format="delta",
        version=files.version,
        timestamp=files.modified if in_commit is None else in_commit,
        schema=schema,
        specs=by_columns(*metadata.partition_columns),
        properties=metadata.configuration,
        files=rows,
        warnings=(*warnings, *_checksum_warnings(storage, files, rows, metadata, protocol), *notes),
        protocol=protocol,
        metadata=metadata,
        domains=domains,
        transactions=transactions,
        in_commit_timestamp=in_commit,
        segment=files,
        duplicate_paths=duplicates,
        optimizer=optimizer,
        notes=notes,
    )


def replayed(
    storage: Storage, version: int | None, adds: Sequence[str] = ADD_COLUMNS, removes: Sequence[str] = ()
) -> tuple[LogSegment, State, tuple[str, ...]]:
    """The state of a version with these columns of its adds and removes, and warnings. If a checkpoint or compacted
    file is damaged, the files that it summarizes are read instead.
    """
    files = segment(storage, version)
    try:
        return files, replay(storage, files, adds=adds, removes=removes), files.warnings
    except DamagedTableError as damage:
        for others, warning in _other_ways(files):
            try:
                older = segment(storage, files.version, **others)
                state = replay(storage, older, adds=adds, removes=removes)
            except DvMaintenanceError:
                continue
            return older, state, (*files.warnings, f"{warning}: {damage.message}")
        raise


def _other_ways(files: LogSegment) -> Iterator[tuple[dict[str, Any], str]]:
    """Other log files for the same version, and the warnings about the files that were skipped."""
    if files.compacted:
        yield {"compacted": False}, "a compacted log file is damaged; the commits that it sums up were read instead"
    if files.checkpoint_version is None:
        return
    below = {"checkpoint_below": files.checkpoint_version}
    damaged = f"the checkpoint of version {files.checkpoint_version} is damaged; older files were read instead"
    yield below, damaged
    yield {**below, "compacted": False}, damaged


@dataclass(frozen=True, slots=True)
class PassedOver:
    """Files of the log that are damaged, and that a version was read without.

    checkpoint : version of the checkpoint; ``None``: they are compacted commits.
    """

    paths: tuple[str, ...]
    checkpoint: int | None
    damage: str


def passed_over(storage: Storage, snapshot: DeltaSnapshot) -> PassedOver | None:
    """What :func:`replayed` did without for this snapshot. It is read again, to be sure of the damage."""
    used, files = snapshot.segment, segment(storage, snapshot.version)
    if (files.checkpoint_version, files.compacted) == (used.checkpoint_version, used.compacted):
        return None
    try:
        replay(storage, files, adds=("path",))
    except DamagedTableError as damage:
        if files.checkpoint_version != used.checkpoint_version:
            return PassedOver(
                tuple(each.path for each in files.checkpoint_files), files.checkpoint_version, damage.message
            )
        compacted = tuple(each.path for each in files.commits if each.start < each.end)
        return PassedOver(compacted, None, damage.message)
    return None


def _in_commit_timestamp(storage: Storage, files: LogSegment, metadata: Metadata) -> int | None:
    """Protocol: In-Commit Timestamps. ``None`` if the feature is off, or the commit lacks its timestamp."""
    if not stamps(metadata):
        return None
    if not files.commit:
        stamp = read_checksum(storage, files.checksum).get("inCommitTimestampOpt")
        return stamp if type(stamp) is int else None
    first = next(iter(read_commit(storage, files.version)), {}).get("commitInfo")
    stamp = first.get("inCommitTimestamp") if isinstance(first, dict) else None
    return stamp if type(stamp) is int else None


def _checksum_warnings(
    storage: Storage, files: LogSegment, rows: pa.Table, metadata: Metadata, protocol: Protocol
) -> list[str]:
    """The fields in which a checksum disagrees with the log (protocol: Version Checksum File)."""
    checksum = read_checksum(storage, files.checksum)
    ours = {
        "numFiles": rows.num_rows,
        "tableSizeBytes": pc.sum(rows["size"]).as_py() or 0,
        "numDeletedRecordsOpt": pc.sum(rows["deleted_rows"]).as_py() or 0,
    }
    which = f"the checksum file of version {files.version}"
    return [
        *(
            f"{which} says {name} {checksum[name]}, the log says {value}"
            for name, value in ours.items()
            if type(checksum.get(name)) is int and checksum[name] != value
        ),
        *(f"{which} contradicts the {name} of the log" for name in contradicted(checksum, metadata, protocol)),
    ]
