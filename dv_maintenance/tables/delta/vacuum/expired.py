"""Decide which files of a Delta table nothing needs any more, without side effects.

Input: the files that the log names, a listing of the storage, and a cutoff. Output: the files that may be deleted. A
file is *kept* if any of these holds, in this order:

1. a live logical file names it, as its data file or as the file of its deletion vector (DV), whatever its age;
2. a tombstone inside the retention names it in the same way (``deletionTimestamp >= cutoff``), so that every version
   inside the retention stays readable (protocol: Remove File; the time is the writer's, which may be the start of a
   long job);
3. the log names a file of the same base name by an absolute path, which may or may not be this file (a symbolic link,
   another mount or endpoint of the same storage);
4. a pinned version, a stream or a clone needs it, so it is protected (see ``protected``);
5. it is hidden, foreign or part of another table, see :class:`Scope` and :func:`kind_of`;
6. it was modified at or after the cutoff: a writer may be about to commit it, or a change feed may be about to read
   it.

DV files are decided as a whole: one file holds many DVs, and is kept while any of them is needed. A replaced DV leaves
the tombstone (data path, old DV): the data path is still live, and only the DV file expires.

The state of a version never names change data (``_change_data``), so only its age protects it, as in the reference
implementation. A table does not record its shallow clones: their readers depend on a long enough retention.
"""

from __future__ import annotations

import posixpath
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc

from dv_maintenance.dv import z85
from dv_maintenance.dv.descriptor import DvDescriptor
from dv_maintenance.errors import DamagedDeletionVectorError, DamagedTableError
from dv_maintenance.files.arrays import combined, int64s, strings
from dv_maintenance.storage import NOT_PLAIN, RawName, staged_for
from dv_maintenance.tables.model import ExpiredFile
from dv_maintenance.units import count

if TYPE_CHECKING:
    from dv_maintenance.storage import FileInfo, Storage
    from dv_maintenance.tables.delta.snapshot import DeltaSnapshot

__all__ = [
    "Needed",
    "Protected",
    "Scope",
    "dv_paths",
    "find_expired",
    "kind_of",
    "needed_files",
    "path_of",
    "paths_of",
]

LIVE = "in the current version"
RECENT = "removed inside the retention"
ELSEWHERE = "of the same name as a file that the log places outside the table"
FOREIGN = "hidden, foreign or of another table"
YOUNG = "younger than the retention"

_CHANGE_DATA = "_change_data"
_LOG = "_delta_log"
# Files that writers put into the log, under their staging names on local disk (see ``storage.staged_for``).
_STAGED_LOG = re.compile(rf"{_LOG}/([0-9]{{20}}\.[^/]+|_last_checkpoint|_last_vacuum_info)#[0-9]+")
_UUID_TEXT = 20  # Z85 characters
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Protected:
    """Files that the caller wants to keep.

    paths : path in the table -> reason.
    names : base name of a file that may be in the table or elsewhere -> reason.
    reasons : the reasons to report, in order.
    """

    paths: Mapping[str, str] = field(default_factory=dict)
    names: Mapping[str, str] = field(default_factory=dict)
    reasons: tuple[str, ...] = ()

    def reason(self, path: str) -> str | None:
        found = self.paths.get(path)
        return self.names.get(path.rpartition("/")[2]) if found is None and self.names else found

    def summary(self, gone: AbstractSet[str] = frozenset()) -> tuple[str, ...]:
        """Each reason with its number of files. ``gone``: protected paths that no longer exist."""
        counts = Counter([*self.paths.values(), *self.names.values()])
        lost = Counter(self.paths[path] for path in gone)
        return tuple(
            f"{reason}: {count(counts[reason], 'file')}"
            + (f", {lost[reason]:,} of them gone already" if lost[reason] else "")
            for reason in self.reasons
        )


NOTHING_PROTECTED = Protected()


@dataclass(frozen=True, slots=True)
class Needed:
    """The files that the log names, as paths relative to the table.

    live : named by live logical files.
    recent : named by tombstones inside the retention.
    elsewhere : base names for rule 3.
    past : named by expired tombstones, so they belong to this table whatever their names look like.
    """

    live: AbstractSet[str]
    recent: AbstractSet[str]
    elsewhere: AbstractSet[str]
    past: AbstractSet[str]
    protected: Protected = NOTHING_PROTECTED

    def reason(self, path: str) -> str | None:
        """Why a file must be kept whatever its age; ``None`` if there is no such reason."""
        if path in self.live:
            return LIVE
        if path in self.recent:
            return RECENT
        if self.elsewhere and path.rpartition("/")[2] in self.elsewhere:
            return ELSEWHERE
        return self.protected.reason(path)


def needed_files(
    storage: Storage,
    snapshot: DeltaSnapshot,
    tombstones: pa.Table,
    cutoff: int,
    forgotten: AbstractSet[str] = frozenset(),
    protected: Protected = NOTHING_PROTECTED,
) -> Needed:
    """The files that the newest snapshot and its tombstones (see ``replay.tombstones``) name, grouped by reason.

    forgotten : paths removed inside the retention whose tombstones the log may have dropped.

    Raises
    ------
    DamagedTableError : the file of a live or unexpired DV can't be determined; deleting would be guessing.
    """
    unexpired = pc.greater_equal(tombstones["deletion_timestamp"], int64s([cutoff])[0])
    recent, past = tombstones.filter(unexpired), tombstones.filter(pc.invert(unexpired))
    elsewhere: set[str] = set()
    live_paths = paths_of(storage, snapshot.files["path"], elsewhere) | dv_paths(storage, snapshot.files, elsewhere)
    recent_paths = paths_of(storage, recent["path"], elsewhere) | dv_paths(storage, recent, elsewhere)
    gone = paths_of(storage, past["path"], set())
    return Needed(live_paths, recent_paths | forgotten, elsewhere, gone, protected)


def paths_of(storage: Storage, raw: pa.Array | pa.ChunkedArray, elsewhere: set[str]) -> set[str]:
    """The paths in the table that names in a log may mean. Base names of files outside the table go to ``elsewhere``.

    Names are URIs, to be decoded once. Some writers forget to encode them, so the literal name counts as well: too much
    protection leaks a file, too little loses it.
    """
    plain = pc.invert(pc.match_substring_regex(raw, NOT_PLAIN))
    paths = set(raw.filter(plain).to_pylist())
    for name in raw.filter(pc.invert(plain)).to_pylist():
        path = path_of(storage, RawName(name))
        if "://" in path:
            elsewhere.add(unquote(path.rpartition("/")[2]))
        else:
            paths |= {path, name}
    return paths


def path_of(storage: Storage, name: RawName) -> str:
    """The path that a name in a log means, with dots resolved: relative to the table, or an absolute URI."""
    path = storage.path_of(name)
    return path if "://" in path else posixpath.normpath(path)


def dv_paths(storage: Storage, table: pa.Table, elsewhere: set[str]) -> set[str]:
    """Files of all DVs in the column ``dv`` (protocol: Deletion Vector Descriptor Schema). Inline DVs have none."""
    dvs = combined(table["dv"]).drop_null()
    kinds, names = pc.struct_field(dvs, "storage_type"), pc.struct_field(dvs, "path_or_inline")
    unknown = set(pc.unique(kinds).to_pylist()) - {"u", "p", "i"}
    if unknown or names.null_count:
        raise DamagedTableError(
            f"a deletion vector has the unknown storage type {min(map(str, unknown))!r}"
            if unknown
            else "a deletion vector has no pathOrInlineDv",
            table=storage.uri,
        )
    # DVs share files, so each file name is decoded once.
    packed = pc.unique(names.filter(pc.equal(kinds, strings(["u"])[0]))).to_pylist()
    absolute = pc.unique(names.filter(pc.equal(kinds, strings(["p"])[0])))
    return _dv_files(packed) | paths_of(storage, absolute, elsewhere)


def _dv_files(names: list[str]) -> set[str]:
    """Files of ``u`` descriptors. Raises DamagedDeletionVectorError."""
    bare = [name for name in names if len(name) == _UUID_TEXT]
    others = [name for name in names if len(name) != _UUID_TEXT]
    try:
        # One long text is decoded an order of magnitude faster than many short ones.
        uuids = z85.decode("".join(bare))
    except DamagedDeletionVectorError:
        uuids, others = b"", names  # decode one by one, so that the error names the descriptor
    digits = uuids.hex()
    files = {_dv_file(digits[at : at + 32]) for at in range(0, len(digits), 32)}
    return files | {posixpath.normpath(DvDescriptor("u", name, None, 0, 0).relative_path()) for name in others}


def _dv_file(digits: str) -> str:
    """``dv_file_path`` of a UUID's digits, without a UUID object."""
    return f"deletion_vector_{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}.bin"


def kind_of(path: str) -> str | None:
    """``data``, ``dv``, ``change`` or ``other`` for a file that a Delta writer may have made; ``None`` for a foreign
    file.

    Writers name data and change files ``*.parquet`` and DV files ``deletion_vector*.bin``. Some omit the extension of
    data files, but all put a UUID into such names. A file staged on local disk is of the kind it is staged for, or
    ``other`` if it is staged for the log.
    """
    if "#" in path:  # seldom
        if _STAGED_LOG.fullmatch(path):
            return "other"
        path = staged_for(path) or path
    folder, _, name = path.rpartition("/")
    if name.lower().endswith(".parquet"):
        kind = "data"
    elif name.startswith("deletion_vector") and name.endswith(".bin"):
        kind = "dv"
    elif "." not in name and _UUID.search(name):
        kind = "other"
    else:
        return None
    return "change" if folder == _CHANGE_DATA or folder.startswith(_CHANGE_DATA + "/") else kind


class Scope:
    """The part of a table's folder that a vacuum looks at.

    Out of scope are:

    * names that start with ``.`` or ``_`` (the log, symlink manifests, Bloom filter indexes, files of other engines),
      except ``_change_data``, folders of partition columns with such names, and files that killed writers left staged
      in the table's own log;
    * ``metadata``, if the table is also an Iceberg table;
    * every subfolder with its own ``_delta_log``, because it is another table.

    ``partition_columns``: logical and physical names, since folders may use either.
    """

    def __init__(self, partition_columns: Iterable[str], *, iceberg: bool) -> None:
        self._partition_columns = frozenset(partition_columns)
        self._iceberg = iceberg
        self._tables: set[str] = set()
        self._folders = {"": True}

    def skip(self, path: str, is_dir: bool) -> bool:
        """For ``Storage.walk``. Also records tables inside this one, so call :meth:`holds` only after the walk."""
        folder, _, name = path.rpartition("/")
        if path == _LOG or folder == _LOG:
            return not (is_dir and path == _LOG) and _STAGED_LOG.fullmatch(path) is None
        if not name.startswith((".", "_")):
            return self._iceberg and path == "metadata"
        if is_dir and name == _LOG:
            self._tables.add(path[: -len(_LOG)])
        return not (is_dir and (path == _CHANGE_DATA or self._is_partition(name)))

    def shown(self, folder: str, paths: Sequence[str]) -> list[str]:
        """Those of a folder's files that are not skipped."""
        if not folder or folder == _LOG:
            return [path for path in paths if not self.skip(path, False)]
        name = len(folder) + 1
        return [path for path in paths if path[name] not in "._"]

    def holds(self, path: str) -> bool:
        """Whether a file is in scope. ``path`` may come from a log, so it can point anywhere."""
        if "://" in path or path.startswith("/") or "\0" in path or not _is_text(path):
            return False
        # Dots were resolved, so a path that leaves the table begins with `..`, a hidden name.
        return not self.skip(path, False) and self._holds_folder(path.rpartition("/")[0])

    def _holds_folder(self, folder: str) -> bool:
        if folder not in self._folders:
            self._folders[folder] = (
                f"{folder}/" not in self._tables
                and not self.skip(folder, True)
                and self._holds_folder(folder.rpartition("/")[0])
            )
        return self._folders[folder]

    def _is_partition(self, name: str) -> bool:
        column, equals, _ = name.partition("=")
        return bool(equals) and unquote(column) in self._partition_columns


def _is_text(path: str) -> bool:
    """Whether a path is valid UTF-8. Logs are, so no log names any other path."""
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True


def find_expired(
    needed: Needed,
    scope: Scope,
    listed: Iterable[Collection[str]],
    stat: Callable[[list[str]], Iterable[FileInfo]],
    cutoff: int,
) -> tuple[list[ExpiredFile], Counter[str]]:
    """The files that may be deleted, sorted by path, and the number of files kept for each reason.

    listed : paths, in batches.
    stat : returns sizes and times of paths, without files that no longer exist. Called only for the few files that no
        name in the log protects.
    """
    kept: Counter[str] = Counter()
    orphans = []
    live = needed.live
    for paths in listed:
        others = [path for path in paths if path not in live]
        if len(others) < len(paths):
            kept[LIVE] += len(paths) - len(others)
        for path in others:
            reason = needed.reason(path)
            if reason is None:
                orphans.append(path)
            else:
                kept[reason] += 1
    kinds: dict[str, str] = {}
    for path in orphans:
        kind = kind_of(path) or ("other" if path in needed.past else None)
        if kind and scope.holds(path):
            kinds[path] = kind
        else:
            kept[FOREIGN] += 1
    expired = []
    for info in stat([path for path in orphans if path in kinds]):
        if info.modified < cutoff:
            expired.append(ExpiredFile(info.path, kinds[info.path], info.size, info.modified))
        else:
            kept[YOUNG] += 1
    return sorted(expired, key=lambda file: file.path), kept
