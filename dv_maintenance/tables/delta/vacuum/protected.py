"""Files that a vacuum of a Delta table keeps on request: of pinned versions, streaming readers and shallow clones.

The table's log records none of these. A stream records its progress in its checkpoint folder (Structured Streaming:
``offsets/N`` before batch N, ``commits/N`` after it; delta-spark's ``DeltaSourceOffset``). The offset of a batch is
where the next batch begins. A batch without its commit runs again, from the offset of the previous batch.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import orjson
import pyarrow as pa

from dv_maintenance.dv.descriptor import DvDescriptor
from dv_maintenance.errors import DvMaintenanceError, RefusedError
from dv_maintenance.remedies import Remedy, setting
from dv_maintenance.storage import RawName, Storage
from dv_maintenance.tables.delta.load import load_snapshot
from dv_maintenance.tables.delta.log.replay import tombstones
from dv_maintenance.tables.delta.log.segment import commit_files, read_commits
from dv_maintenance.tables.delta.snapshot import DeltaSnapshot
from dv_maintenance.tables.delta.vacuum.expired import Protected, dv_paths, paths_of

if TYPE_CHECKING:
    from dv_maintenance.tables.guard import VacuumGuard

__all__ = ["StreamOffset", "is_clone", "protected_files", "stream_offset"]

_NUMBER: Final = re.compile(r"[0-9]{1,18}")


def protected_files(
    storage: Storage, snapshot: DeltaSnapshot, guard: VacuumGuard, clones: Sequence[str] = ()
) -> Protected:
    """Every file that ``guard`` and ``clones`` protect, with the reason.

    Raises
    ------
    RefusedError : a version, checkpoint or clone can't be read, or a stream does not read this table.
    StorageError : reading failed.
    """
    paths: dict[str, str] = {}
    names: dict[str, str] = {}
    reasons: list[str] = []

    def take(reason: str, found: Iterable[str], elsewhere: Iterable[str]) -> None:
        reasons.append(reason)
        for path in found:
            if "://" not in path:  # otherwise the file is outside the table
                paths.setdefault(path, reason)
        for name in elsewhere:
            names.setdefault(name, reason)

    for version in dict.fromkeys(guard.versions):
        elsewhere: set[str] = set()
        take(f"in version {version}, which is pinned", _version(storage, snapshot, version, elsewhere), elsewhere)
    for place in dict.fromkeys(guard.streams):
        elsewhere = set()
        reason, found = _stream(storage, snapshot, place, elsewhere)
        take(reason, found, elsewhere)
    for place in dict.fromkeys(clones):
        elsewhere = set()
        take(f"of the clone {place}", _clone(storage, snapshot, place, elsewhere), elsewhere)
    return Protected(paths, names, tuple(reasons))


def _refused(snapshot: DeltaSnapshot, problem: str, next_step: str | Remedy) -> RefusedError:
    return RefusedError(problem, table=snapshot.table, version=snapshot.version, next_step=next_step)


# -- versions ----------------------------------------------------------------------------------------------------------


def _version(storage: Storage, snapshot: DeltaSnapshot, version: int, elsewhere: set[str]) -> set[str]:
    try:
        old = snapshot if version == snapshot.version else load_snapshot(storage, version)
    except DvMaintenanceError as error:
        raise _refused(
            snapshot,
            f"version {version} is to be protected, but can't be read: {error.message}",
            Remedy("remove it from {} if it is no longer needed", (setting("protected_versions"),)),
        ) from error
    return paths_of(storage, old.files["path"], elsewhere) | dv_paths(storage, old.files, elsewhere)


# -- streams -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StreamOffset:
    """Where a stream continues.

    version : the version to read next, whose files may have been read in part; -1 if only the first batch was planned,
        so that its start is unknown.
    initial : whether the stream still reads the initial snapshot, that is, all files of that version.
    """

    version: int
    initial: bool


def stream_offset(checkpoint: Storage, table_id: str) -> StreamOffset | None:
    """The offset in a checkpoint folder for the table with this id; ``None`` before the stream has begun.

    Raises
    ------
    RefusedError : the folder is not a checkpoint folder, is damaged, or its stream does not read this table.
    """
    offsets, commits = (_numbers(checkpoint, folder) for folder in ("offsets", "commits"))
    if not offsets:
        if commits or not checkpoint.exists("metadata"):
            raise _no_checkpoint(checkpoint, "it has no offsets")
        return None
    done = [number for number in offsets if commits and number <= max(commits)]
    # Old offsets are deleted: the oldest remaining one belongs to a finished batch.
    first = max(done) if done else min(offsets)
    found = list(_delta_offsets(checkpoint, first))
    mine = [each for each in found if each.get("reservoirId") == table_id]
    if not mine:
        raise _no_checkpoint(
            checkpoint, "the stream reads another table" if found else "the stream reads no Delta table"
        )
    at = [
        StreamOffset(each["reservoirVersion"], bool(each.get("isStartingVersion", each.get("isInitialSnapshot"))))
        for each in mine
    ]
    whole = [each for each in at if each.initial]
    if not done and not whole:
        return StreamOffset(-1, initial=False)
    # One query may read the table more than once.
    return StreamOffset(min(each.version for each in at), initial=bool(whole))


def _numbers(checkpoint: Storage, folder: str) -> list[int]:
    names = (info.path.rpartition("/")[2] for info in checkpoint.list(folder))
    return sorted(int(name) for name in names if _NUMBER.fullmatch(name))


def _delta_offsets(checkpoint: Storage, number: int) -> Iterator[Mapping[str, Any]]:
    lines = checkpoint.get(f"offsets/{number}").split(b"\n")
    if lines[0].strip() != b"v1":
        raise _no_checkpoint(checkpoint, f"offsets/{number} has an unknown version")
    for line in lines[2:]:
        try:
            body = orjson.loads(line) if line.strip() not in {b"", b"-"} else None
        except orjson.JSONDecodeError:
            continue  # the offset of another kind of source
        if isinstance(body, dict) and type(body.get("reservoirVersion")) is int:
            yield body


def _no_checkpoint(checkpoint: Storage, problem: str) -> RefusedError:
    return RefusedError(
        f"{checkpoint.uri} is not the checkpoint folder of a stream that reads this table: {problem}",
        table=checkpoint.uri,
        next_step=Remedy(
            "give the folder that the query uses as checkpointLocation as {}, or leave it out if the stream is no "
            "longer used",
            (setting("protected_streams"),),
        ),
    )


def _stream(storage: Storage, snapshot: DeltaSnapshot, place: str, elsewhere: set[str]) -> tuple[str, set[str]]:
    """The reason, and the files that the stream may read; a change feed also reads removed files."""
    at = stream_offset(Storage(place, storage.options), snapshot.metadata.id)
    if at is None:
        return f"for the stream {place}, which has not started", set()
    files = [file for file in commit_files(storage)[0] if file.end >= at.version]
    wanted = at.version + 1 if at.initial else max(at.version, 0)
    if at.version >= 0 and wanted <= snapshot.version and (not files or min(file.start for file in files) > wanted):
        raise _refused(
            snapshot,
            f"the stream {place} continues at version {at.version}, whose commit is no longer in the log",
            Remedy(
                "start that stream with a new checkpoint, and remove the old one from {}",
                (setting("protected_streams"),),
            ),
        )
    found = _version(storage, snapshot, at.version, elsewhere) if at.initial else set()
    bodies = (
        body
        for _, actions in read_commits(storage, files)
        for action in actions
        for body in (action.get(kind) for kind in ("add", "remove", "cdc"))
        if isinstance(body, dict)
    )
    for body in bodies:
        found |= _named(storage, body, elsewhere)
    where = f"continues at version {at.version}" if at.version >= 0 else "has not finished a batch yet"
    return f"for the stream {place}, which {where}", found


def _named(storage: Storage, body: Mapping[str, Any], elsewhere: set[str]) -> set[str]:
    found = paths_of(storage, pa.array([body["path"]], pa.string()), elsewhere)
    if (dv := body.get("deletionVector")) is not None:
        descriptor = DvDescriptor.from_json(dv)
        if descriptor.storage_type == "u":
            found.add(posixpath.normpath(descriptor.relative_path()))
        elif descriptor.storage_type == "p":
            found |= paths_of(storage, pa.array([descriptor.path_or_inline], pa.string()), elsewhere)
    return found


# -- clones ------------------------------------------------------------------------------------------------------------


def _clone(storage: Storage, snapshot: DeltaSnapshot, place: str, elsewhere: set[str]) -> set[str]:
    """Files of this table that the clone names, in its newest version or in a tombstone."""
    clone = Storage(place, storage.options)
    if clone.uri == storage.uri:
        raise _refused(snapshot, f"{place} is the table itself, not a clone of it", "name its clones only")
    try:
        absolute = _absolute_names(clone)
    except DvMaintenanceError as error:
        raise _refused(
            snapshot,
            f"the clone {place} can't be read: {error.message}",
            Remedy("correct its path in {}, or leave it out if the clone was deleted", (setting("clones"),)),
        ) from error
    return paths_of(storage, pa.array(absolute, pa.string()), elsewhere)


def is_clone(place: Storage) -> bool:
    """Whether the table at ``place`` names files by absolute path, as shallow clones do. Does not check which table
    owns the files, since a location may have several spellings. Raises as ``load_snapshot``.
    """
    return bool(_absolute_names(place))


def _absolute_names(clone: Storage) -> list[str]:
    """The absolute names in a clone's log. Relative names are files of the clone itself."""
    newest = load_snapshot(clone)
    tables = (newest.files, tombstones(clone, newest))
    names = {name for table in tables for name in table["path"].to_pylist()}
    for table in tables:
        for dv in table["dv"].combine_chunks().drop_null().to_pylist():
            if dv["storage_type"] == "p":
                names.add(dv["path_or_inline"])
    return [name for name in names if "://" in clone.path_of(RawName(name))]
