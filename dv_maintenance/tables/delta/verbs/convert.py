"""The first version of a table whose data files already exist (delta-spark: CONVERT TO DELTA)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final
from uuid import uuid4

import pyarrow as pa

from dv_maintenance.errors import (
    DamagedTableError,
    RefusedError,
    StorageDeniedError,
    StorageError,
    TableNotFoundError,
)
from dv_maintenance.storage import FileExistsAlreadyError, RawName
from dv_maintenance.storage.rehearsal import Rehearsal
from dv_maintenance.tables.delta.commit.conflicts import Since
from dv_maintenance.tables.delta.commit.live_file import LiveFile
from dv_maintenance.tables.delta.commit.presence import listed, presence_of
from dv_maintenance.tables.delta.commit.publish import Draft, commit_body, commit_times, operation_info, publish
from dv_maintenance.tables.delta.load import load_snapshot
from dv_maintenance.tables.delta.log.actions import FEATURE_READER, FEATURE_WRITER, Action, Metadata, Protocol
from dv_maintenance.tables.delta.log.segment import commit_path, latest_version
from dv_maintenance.tables.delta.permissions import check_permitted
from dv_maintenance.tables.delta.rows.partitions import constant
from dv_maintenance.tables.delta.rows.schema_string import schema_string
from dv_maintenance.tables.delta.rows.stats import stats_json
from dv_maintenance.tables.delta.rows.tasks import log_path
from dv_maintenance.tables.model import FileKey, parse_partition
from dv_maintenance.tables.rows import AddedFile
from dv_maintenance.units import epoch_millis

if TYPE_CHECKING:
    from dv_maintenance.storage import Storage

# Characters that a column name may not contain unless columns are mapped (protocol: Column Mapping).
_FORBIDDEN: Final = re.compile(r"[ ,;{}()\n\t=]")
_BASE: Final = frozenset({"appendOnly", "invariants"})


def adopted(storage: Storage) -> int | None:
    """The newest version if the table exists, otherwise ``None``."""
    try:
        return latest_version(storage)
    except TableNotFoundError:
        return None


def adopt(
    storage: Storage,
    schema: pa.Schema,
    partition_columns: Sequence[str],
    files: Sequence[AddedFile],
    *,
    dry_run: bool = False,
) -> int | None:
    """Commit version 0 with ``files``, which keep their places; ``None`` if another writer created the table first.

    ``schema``: nullable columns, partition columns among them. Until a log exists, the owner of the folder may delete
    files. So the files are checked again after the commit, and a second commit removes the missing ones.

    Raises
    ------
    RefusedError : the format does not allow a column's name or a partition value; or files were deleted during the
        conversion: says so.
    UsageError : the schema has a type that Delta does not have.
    StorageError : says whether version 0 was committed, if that is known.
    """
    check_permitted(storage, "convert")
    if dry_run:
        storage = Rehearsal.of(storage)
    _check_names(storage, schema)
    text, _ = schema_string(schema)
    now = epoch_millis()
    metadata = Metadata(
        id=str(uuid4()), schema_string=text, partition_columns=tuple(partition_columns), created_time=now
    )
    protocol = _protocol(schema)
    parameters = {
        "numFiles": len(files),
        "partitionedBy": list(partition_columns),
        "collectStats": True,
        "sourceFormat": "parquet",
    }
    info = operation_info(None, "CONVERT", parameters, {"numConvertedFiles": len(files)}, blind=False)
    actions: list[Action] = [{"protocol": protocol.to_json()}, {"metaData": metadata.to_json()}]
    adds = [_add(storage, file, schema, metadata) for file in files]
    actions += adds
    times = commit_times(protocol, metadata, None, now)
    body = commit_body({**times, **info, "txnId": str(uuid4())}, actions)
    try:
        with _telling(storage, "it is not known whether version 0 was committed"):
            storage.create(commit_path(0), body)
    except StorageDeniedError as error:
        error.done = None
        raise
    except FileExistsAlreadyError:
        # Another writer's file, or our own: storage clients repeat a request if its answer was lost.
        with _telling(storage, "it is not known who committed version 0"):
            if storage.get(commit_path(0)) != body:
                return None
    with _telling(storage, "version 0 added all files to a new table; it was not checked whether they still exist"):
        _check_presence_after(storage, [LiveFile.from_add(add["add"]) for add in adds])
    return 0


@contextmanager
def _telling(storage: Storage, done: str) -> Iterator[None]:
    """Add ``done`` to a storage failure, since storage may also fail after the commit."""
    try:
        yield
    except StorageError as error:
        error.table, error.done = storage.uri, done
        raise


def _check_presence_after(storage: Storage, files: Sequence[LiveFile]) -> None:
    """Remove files from the table that no longer exist or were overwritten since they were read."""
    gone = set(presence_of(storage, files).unusable)
    lost = [file for file in files if storage.path_of(RawName(file.path)) in gone]
    if not lost:
        return
    base, now = load_snapshot(storage, 0), epoch_millis()
    info = operation_info(base, "DELETE", {"predicate": []}, {"numRemovedFiles": len(lost)}, blind=False)

    def compose(since: Since) -> Draft | None:
        still = [file for file in lost if FileKey(storage.path_of(RawName(file.path)), None) not in since.gone]
        return Draft(info, [file.remove(now, data_change=True) for file in still]) if still else None

    version = publish(storage, base, compose, writes="delete").version
    raise RefusedError(
        f"{len(lost)} of {len(files)} files were deleted or overwritten during the conversion: {listed(sorted(gone))}",
        table=storage.uri,
        version=version,
        done="version 0 added all of them to a new table"
        + ("" if version is None else f"; version {version} removed the lost files again and keeps the rest"),
        next_step="find out who writes to this folder; then delete its _delta_log and convert again, or keep the table",
    )


def _check_names(storage: Storage, schema: pa.Schema) -> None:
    folded: set[str] = set()
    for name in schema.names:
        problem = None
        if not name or _FORBIDDEN.search(name):
            problem = f"a column may not be called {name!r}"
        elif name.lower() in folded:
            problem = f"two columns are called {name!r}, ignoring upper and lower case"
        if problem:
            raise RefusedError(problem, table=storage.uri, next_step="rename it in the files first")
        folded.add(name.lower())


def _protocol(schema: pa.Schema) -> Protocol:
    if not any(map(_holds_ntz, schema.types)):
        return Protocol(1, 2)
    feature = frozenset({"timestampNtz"})
    return Protocol(FEATURE_READER, FEATURE_WRITER, feature, _BASE | feature)


def _holds_ntz(kind: pa.DataType) -> bool:
    if pa.types.is_timestamp(kind):
        return kind.tz is None
    return any(_holds_ntz(kind.field(at).type) for at in range(kind.num_fields))


def _add(storage: Storage, file: AddedFile, schema: pa.Schema, metadata: Metadata) -> Action:
    values = parse_partition(file.partition)
    for name, value in values.items():
        try:
            constant(value, schema.field(name).type)
        except DamagedTableError as error:
            raise RefusedError(
                f"{file.output.uri}: {error.message}",
                table=storage.uri,
                next_step=f"give {name} a type that all of its folders fit, or rename the folder",
            ) from None
    return {
        "add": {
            "path": log_path(storage, file.output.uri),
            "partitionValues": values,
            "size": file.output.size,
            "modificationTime": file.output.modified,
            "dataChange": True,
            "stats": stats_json(file.output, metadata),
        }
    }
