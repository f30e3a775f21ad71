"""Resolve snapshots, tags and changelogs to the files that they need, many at once.

Data files are numbered (``reach.manifests``), and each manifest is read once. All other files (lists, manifests, index
files, statistics) are identified by name, because names are random and never used twice.

A changelog names all files of its snapshot, but needs fewer. With a list of changes, it needs that list and the files
in it. Without one, the commits are the changes. Then it needs the base and delta lists, and the appended data files in
them: those that existed before its snapshot, and those that its snapshot added or deleted. Paimon keeps the same files
(``changelogs``).
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, Final, TypeGuard

import numpy as np

from dv_maintenance.errors import DamagedTableError, UnsupportedFeatureError, located
from dv_maintenance.files.avro.container import read_records, writer_schema
from dv_maintenance.files.avro.schema import Wanted, unknown_texts
from dv_maintenance.tables.paimon.features import POSTPONE_BUCKET
from dv_maintenance.tables.paimon.layout import INDEX, MANIFEST, Layout
from dv_maintenance.tables.paimon.log.index_manifest import DELETION_VECTORS
from dv_maintenance.tables.paimon.log.manifests import ADD, DELETE
from dv_maintenance.tables.paimon.log.schema import Schema
from dv_maintenance.tables.paimon.rows.partitions import Partitions
from dv_maintenance.tables.paimon.vacuum.holders import Ref
from dv_maintenance.tables.parallel import in_parallel
from dv_maintenance.tables.reach.manifests import Ids, ManifestFiles, live, mentioned

STATISTICS: Final = "statistics"

# Number of manifests in memory at once, before their entries become numbers.
_BATCH: Final = 16
_LIST: Final[Wanted] = dict.fromkeys(
    ("_VERSION", "_FILE_NAME", "_FILE_SIZE", "_NUM_ADDED_FILES", "_NUM_DELETED_FILES", "_EXTRA_FILES")
)
_FILE: Final[Wanted] = dict.fromkeys(
    ("_FILE_NAME", "_FILE_SIZE", "_LEVEL", "_EXTRA_FILES", "_EMBEDDED_FILE_INDEX", "_EXTERNAL_PATH", "_FILE_SOURCE")
)
_ENTRY: Final[Wanted] = {"_VERSION": None, "_KIND": None, "_PARTITION": None, "_BUCKET": None, "_FILE": _FILE}
_INDEX_FILE: Final[Wanted] = dict.fromkeys(
    ("_VERSION", "_KIND", "_PARTITION", "_BUCKET", "_INDEX_TYPE", "_FILE_NAME", "_FILE_SIZE", "_EXTERNAL_PATH")
)
# Known fields. Their texts do not name files, or the file names are read above.
_KNOWN_LIST: Final[Wanted] = {**_LIST, "_PARTITION_STATS": None}
_KNOWN_ENTRY: Final[Wanted] = {
    **_ENTRY,
    "_FILE": {
        **_FILE,
        **dict.fromkeys(("_MIN_KEY", "_MAX_KEY", "_KEY_STATS", "_VALUE_STATS", "_VALUE_STATS_COLS", "_WRITE_COLS")),
    },
}
_KNOWN_INDEX: Final[Wanted] = {**_INDEX_FILE, "_DELETIONS_VECTORS_RANGES": None, "_GLOBAL_INDEX": None}
# The known format version of each kind of record.
_VERSIONS: Final = {"list": 2, "entry": 2, "index": 1}


@dataclass(frozen=True, slots=True)
class Named:
    """A file that is identified by its name.

    path : path in the table's storage; ``None`` if unknown.
    kind : as in ``model.ExpiredFile``; MANIFEST for a manifest in a list.
    size : bytes; ``None`` if the metadata does not record it.
    """

    name: str
    path: str | None
    kind: str
    size: int | None


@dataclass(frozen=True, slots=True)
class DataFile:
    """A data file.

    folder : its folder, relative to the table; ``None`` if unknown.
    external : its path in the manifest if it is outside the table's folders.
    size : bytes.
    extra : names of the extra files in its folder.
    """

    name: str
    folder: str | None
    external: str | None
    size: int
    extra: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ReferencedFiles:
    """The files that one reference needs.

    data : numbers of data files.
    changes : numbers of changelog files.
    named : all other files.
    """

    data: Ids
    changes: Ids
    named: tuple[Named, ...]


class MissingError(Exception):
    """A file that ``ref`` needs does not exist."""

    def __init__(self, ref: Ref, path: str) -> None:
        super().__init__(f"{ref.path} needs {path}, which does not exist")
        self.ref = ref


_Entry = tuple[int, bytes, str, bytes, int, int, tuple[str, ...], str | None, bool]
_COMPACTED: Final = 1  # _FILE_SOURCE


@dataclass(slots=True)
class ReferenceReader:
    """Resolves references to files. Each manifest is read once. ``schema`` determines the paths."""

    layout: Layout
    schema: Schema
    _partitions: Partitions = field(init=False)
    _lists: dict[str, tuple[Named, ...] | None] = field(default_factory=dict)
    _counts: dict[str, tuple[int, int]] = field(default_factory=dict)
    _manifests: dict[str, ManifestFiles | None] = field(default_factory=dict)
    _indexes: dict[str, tuple[Named, ...] | None] = field(default_factory=dict)
    _ids: dict[bytes, int] = field(default_factory=dict)
    _names: list[str] = field(default_factory=list)
    _place_of: array[int] = field(default_factory=lambda: array("q"))
    _sizes: array[int] = field(default_factory=lambda: array("q"))
    _places: dict[tuple[bytes, int], int] = field(default_factory=dict)
    _extra: dict[int, tuple[str, ...]] = field(default_factory=dict)
    _external: dict[int, str] = field(default_factory=dict)
    _appended: array[int] = field(default_factory=lambda: array("b"))

    def __post_init__(self) -> None:
        self._partitions = Partitions(self.schema.partition_fields(), self.schema.options)

    def __len__(self) -> int:
        """How many data files are known."""
        return len(self._sizes)

    # -- queries ---------------------------------------------------------------------------------------------------

    def resolve(self, refs: Sequence[Ref], *, partly: bool = False) -> Iterator[ReferencedFiles]:
        """The files that each of the snapshots, tags or changelogs needs, in order.

        A missing list of changes is ignored, because Paimon deletes it before the tag that names it. Any missing file
        of a changelog is ignored as well.

        partly : ignore all missing files, and include all files that a changelog ever needed.

        Raises
        ------
        MissingError : any other file is missing.
        DamagedTableError, UnsupportedFeatureError : a file cannot be read or parsed; the message names it.
        RefusedError : fastavro is not installed.
        """
        lists = [name for ref in refs for name in _lists_of(ref, whole=partly)]
        self._load(lists, self._lists, self._read_list)
        manifests = [each.name for name in lists for each in self._lists[name] or () if each.kind == MANIFEST]
        self._load(manifests, self._manifests, self._read_manifest, self._numbered)
        self._load([ref.index for ref in refs if ref.index and _is_whole(ref, partly)], self._indexes, self._read_index)
        for ref in refs:
            yield self._of_changelog(ref, partly=partly) if ref.is_changelog else self._of_snapshot(ref, partly=partly)

    def _of_snapshot(self, ref: Ref, *, partly: bool) -> ReferencedFiles:
        named: list[Named] = []
        data = live(self._listed(ref, (ref.base, ref.delta), named, partly=partly), len(self))
        changes = mentioned(self._listed(ref, (ref.changelog,), named, partly=True))
        self._add_others(ref, named, partly=partly)
        return ReferencedFiles(data, changes, tuple(named))

    def _of_changelog(self, ref: Ref, *, partly: bool) -> ReferencedFiles:
        """The files that a changelog needs; if ``partly``, those that it ever needed."""
        named: list[Named] = []
        data = changes = np.zeros(0, np.int64)
        needed = _lists_of(ref, whole=partly)
        if ref.changelog in needed:
            changes = mentioned(self._listed(ref, (ref.changelog,), named, partly=True))
        if ref.delta in needed:
            before = live(self._listed(ref, (ref.base,), named, partly=True), len(self))
            own = mentioned(self._listed(ref, (ref.delta,), named, partly=True))
            data = np.union1d(before, own)
            if not partly:
                data = data[np.array(self._appended, np.bool_)[data]]
        if partly:
            self._add_others(ref, named, partly=True)
        return ReferencedFiles(data, changes, tuple(named))

    def _add_others(self, ref: Ref, named: list[Named], *, partly: bool) -> None:
        """Add index files and statistics to ``named``."""
        if ref.index:
            named.append(Named(ref.index, self.layout.manifest(ref.index), "other", None))
            files = self._indexes[ref.index]
            if files is None and not partly:
                raise MissingError(ref, self.layout.manifest(ref.index))
            named += files or ()
        if ref.statistics:
            named.append(Named(ref.statistics, f"{STATISTICS}/{ref.statistics}", "other", None))

    def names(self, ids: Ids) -> list[str]:
        """Names of the data files with these numbers, in order."""
        return [self._names[number] for number in ids.tolist()]

    def extras(self, ids: Ids) -> Iterator[str]:
        """Names of their extra files."""
        return (name for number in ids.tolist() for name in self._extra.get(number, ()))

    def files(self, ids: Ids) -> Iterator[DataFile]:
        places = list(self._places)
        folders: dict[int, str | None] = {}
        for number, name in zip(ids.tolist(), self.names(ids), strict=True):
            place = self._place_of[number]
            if place not in folders:
                folders[place] = self._folder(*places[place])
            external = self._external.get(number)
            yield DataFile(name, folders[place], external, self._sizes[number], self._extra.get(number, ()))

    # -- from lists to numbers ------------------------------------------------------------------------------------

    def _listed(
        self, ref: Ref, lists: Iterable[str | None], named: list[Named], *, partly: bool
    ) -> Iterator[ManifestFiles]:
        """The manifests in the lists. Adds the lists, and all files that they name, to ``named``."""
        for name in filter(None, lists):
            path = self.layout.manifest(name)
            named.append(Named(name, path, "other", ref.sizes.get(name)))
            listed = self._lists[name]
            if listed is None and not partly:
                raise MissingError(ref, path)
            for each in listed or ():
                named.append(Named(each.name, each.path, "other", each.size))
                if each.kind != MANIFEST:
                    continue
                manifest = self._manifests[each.name]
                if manifest is not None:
                    yield manifest
                elif not partly:
                    raise MissingError(ref, self.layout.manifest(each.name))

    def _folder(self, partition: bytes, bucket: int) -> str | None:
        """Folder of a bucket, relative to the table; ``None`` if the partition's folder is unknown."""
        try:
            folder = self._partitions.found[self._partitions.code(partition)].folder
        except (UnsupportedFeatureError, DamagedTableError):
            return None
        last = "bucket-postpone" if bucket == POSTPONE_BUCKET else f"bucket-{bucket}"
        return "/".join(each for each in (self._data_folder, folder, last) if each)

    @property
    def _data_folder(self) -> str:
        return self.schema.options.get("data-file.path-directory", "").strip("/")

    # -- reading --------------------------------------------------------------------------------------------------

    def _load(self, names: Iterable[str], known: dict[str, Any], read: Any, keep: Any = None) -> None:
        """Read the files that are not in ``known``, and add them to it. Missing files become ``None``."""
        new = [name for name in dict.fromkeys(names) if name not in known]

        def read_one(name: str) -> Any:
            try:
                data = self.layout.storage.get(self.layout.manifest(name))
            except FileNotFoundError:
                return None
            with located(self.layout.uri, file=self.layout.manifest(name)):
                return read(data)

        for at in range(0, len(new), _BATCH):
            batch = new[at : at + _BATCH]
            for name, found in zip(batch, in_parallel(self.layout.storage, batch, read_one), strict=True):
                known[name] = keep(name, found) if keep is not None and found is not None else found

    def _read_list(self, data: bytes) -> tuple[Named, ...]:
        found = []
        for record in _records(data, _LIST, _KNOWN_LIST, "list"):
            name, size, extra = record.get("_FILE_NAME"), record.get("_FILE_SIZE"), record.get("_EXTRA_FILES") or []
            counts = record.get("_NUM_ADDED_FILES"), record.get("_NUM_DELETED_FILES")
            if not _is_name(name) or not isinstance(size, int) or not all(map(_is_name, extra)):
                raise DamagedTableError("an entry has an invalid file name or size")
            if not isinstance(counts[0], int) or not isinstance(counts[1], int):
                raise DamagedTableError("an entry has no number of added or deleted files")
            self._counts[name] = counts[0], counts[1]
            found.append(Named(name, self.layout.manifest(name), MANIFEST, size))
            found += [Named(each, self.layout.manifest(each), "other", None) for each in extra]
        return tuple(found)

    def _read_manifest(self, data: bytes) -> list[_Entry]:
        found = []
        for record in _records(data, _ENTRY, _KNOWN_ENTRY, "entry"):
            file = record.get("_FILE")
            file = file if isinstance(file, dict) else {}
            kind, row, bucket = (record.get(each) for each in ("_KIND", "_PARTITION", "_BUCKET"))
            name, size, level = (file.get(each) for each in ("_FILE_NAME", "_FILE_SIZE", "_LEVEL"))
            extra, external = file.get("_EXTRA_FILES") or [], file.get("_EXTERNAL_PATH")
            if (
                kind not in (ADD, DELETE)
                or not isinstance(row, bytes)
                or not isinstance(bucket, int)
                or not _is_name(name)
                or not isinstance(size, int)
                or not isinstance(level, int)
                or not all(map(_is_name, extra))
                or not isinstance(external, str | None)
            ):
                raise DamagedTableError("an entry has missing or invalid values")
            identity = repr((row, bucket, level, name, extra, file.get("_EMBEDDED_FILE_INDEX"), external)).encode()
            key = blake2b(identity, digest_size=16).digest()
            # Writers before 0.9 do not record the source.
            appended = file.get("_FILE_SOURCE") != _COMPACTED
            found.append((kind, key, name, row, bucket, size, tuple(extra), external or None, appended))
        return found

    def _numbered(self, manifest: str, entries: Sequence[_Entry]) -> ManifestFiles:
        """Number the files of a manifest.

        Raises
        ------
        DamagedTableError : its counts differ from those in its list, so a live file could seem deleted.
        """
        adds, deletes = array("q"), array("q")
        for kind, key, name, row, bucket, size, extra, external, appended in entries:
            number = self._ids.setdefault(key, len(self._ids))
            if number == len(self._sizes):
                self._appended.append(appended)
                self._names.append(name)
                self._place_of.append(self._places.setdefault((row, bucket), len(self._places)))
                self._sizes.append(size)
                if extra:
                    self._extra[number] = extra
                if external:
                    self._external[number] = external
            self._appended[number] |= appended
            (adds if kind == ADD else deletes).append(number)
        if (len(adds), len(deletes)) != self._counts[manifest]:
            raise DamagedTableError(
                f"{self.layout.manifest(manifest)}: it adds {len(adds)} files and deletes {len(deletes)}, but "
                f"its list records {self._counts[manifest][0]} and {self._counts[manifest][1]}",
                table=self.layout.uri,
            )
        return ManifestFiles(np.array(adds, np.int64), np.array(deletes, np.int64))

    def _read_index(self, data: bytes) -> tuple[Named, ...]:
        found = []
        in_buckets = self.schema.options.get("index-file-in-data-file-dir", "false").strip().lower() == "true"
        for record in _records(data, _INDEX_FILE, _KNOWN_INDEX, "index"):
            row, bucket, kind, name = (
                record.get(each) for each in ("_PARTITION", "_BUCKET", "_INDEX_TYPE", "_FILE_NAME")
            )
            size, external = record.get("_FILE_SIZE"), record.get("_EXTERNAL_PATH")
            if (
                not isinstance(row, bytes)
                or not isinstance(bucket, int)
                or not isinstance(kind, str)
                or not _is_name(name)
                or not isinstance(size, int)
                or not isinstance(external, str | None)
            ):
                raise DamagedTableError("an entry has missing or invalid values")
            path: str | None = f"{INDEX}/{name}"
            if external:
                path = external if is_external(external) else None
            elif in_buckets:
                folder = self._folder(row, bucket)
                path = None if folder is None else f"{folder}/{name}"
            found.append(Named(name, path, "dv" if kind == DELETION_VECTORS else "index", size))
        return tuple(found)


def _is_whole(ref: Ref, partly: bool) -> bool:
    return partly or not ref.is_changelog


def _lists_of(ref: Ref, *, whole: bool) -> list[str]:
    """The manifest lists that a snapshot or a changelog needs.

    whole : for a changelog, return all lists of its snapshot.
    """
    names = [ref.base, ref.delta, ref.changelog]
    if ref.is_changelog and not whole:
        names = [ref.changelog] if ref.changelog else [ref.base, ref.delta] * ref.deltas
    return [name for name in names if name]


def is_external(path: str) -> bool:
    """Whether the path is a URI or absolute."""
    return path.startswith("/") or re.match(r"[A-Za-z][A-Za-z0-9+.-]+:/", path) is not None


def _records(data: bytes, wanted: Wanted, known: Wanted, kind: str) -> Iterator[dict[str, Any]]:
    """Read the records of a manifest, list or index manifest.

    Raises
    ------
    UnsupportedFeatureError : an unknown field may name files, or a record has an unknown version.
    """
    if unknown := unknown_texts(writer_schema(data), known):
        raise UnsupportedFeatureError(
            f"it has a field {unknown[0][:100]} that this release does not know and that may name files",
            features=tuple(each[:100] for each in unknown),
            next_step="use a newer release of this tool, or CALL sys.expire_snapshots and sys.remove_orphan_files",
        )
    for record in read_records(data, wanted):
        if record.get("_VERSION") != _VERSIONS[kind]:
            raise UnsupportedFeatureError(
                f"it has format version {record.get('_VERSION')}; this release reads only version {_VERSIONS[kind]}",
                features=(f"manifest version {record.get('_VERSION')}",),
                next_step="use a newer release of this tool, or let a newer Paimon rewrite the manifests",
            )
        yield record


def _is_name(name: Any) -> TypeGuard[str]:
    return isinstance(name, str) and bool(name) and "/" not in name and name not in {".", ".."}
