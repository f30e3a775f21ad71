"""Files of blobs whose rows are only partly live: the records of each range of live rows become a file of their own.

They are copied as they are, with what stands for null and for the value of an older file. So readers find the same
values, in files of the same ages.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

from dv_maintenance.errors import ConflictError, DamagedTableError
from dv_maintenance.files.blob import index_of, offsets, read_lengths
from dv_maintenance.tables.new_files import NewFiles
from dv_maintenance.tables.paimon.commit.value_stats import NO_STATS
from dv_maintenance.tables.paimon.log.entries import Entry
from dv_maintenance.units import epoch_millis

if TYPE_CHECKING:
    from dv_maintenance.tables.paimon.layout import Layout
    from dv_maintenance.tables.paimon.log.entries import FileId
    from dv_maintenance.tables.paimon.snapshot import PaimonSnapshot

SUFFIX: Final = ".blob"
_CHUNK: Final = 16 << 20
_COMPACTED: Final = 1


@dataclass(slots=True)
class CutBlobs:
    """The new files of a commit. Each is written once, for all attempts.

    base : where the old files are.
    """

    layout: Layout
    base: PaimonSnapshot
    _files: NewFiles = field(init=False)
    _made: dict[tuple[FileId, int, int], Mapping[str, Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._files = NewFiles(self.layout.storage)

    def cut(self, entries: Iterable[Entry], beside: str, rows: range) -> list[Entry]:
        """The entries of new files with the blobs of a range of row ids.

        entries : of the old files; those without blobs are ignored.
        beside : URI of the new file with the other columns of these rows.

        Raises
        ------
        DamagedTableError, UnsupportedFeatureError, StorageError : an old file can't be read.
        """
        found = []
        for entry in entries:
            first = entry.file["_FIRST_ROW_ID"]
            if not entry.id[2].endswith(SUFFIX) or first is None:
                continue
            start, stop = max(first, rows.start), min(first + entry.file["_ROW_COUNT"], rows.stop)
            if start >= stop:
                continue
            key = (entry.id, start, stop)
            if key not in self._made:
                folder = self.layout.storage.path_of_uri(beside).rpartition("/")[0]
                self._made[key] = self._cut(entry, folder, start - first, stop - first)
            found.append(Entry(entry.template, {**entry.record, "_FILE": self._made[key]}))
        return found

    def _cut(self, entry: Entry, folder: str, start: int, stop: int) -> Mapping[str, Any]:
        """Write the records of some rows, and return what the manifest says of the new file."""
        storage = self.layout.storage
        (old,) = (row for row in self.base.parts.to_pylist() if row["file_name"] == entry.id[2])
        path, size = old["path"], old["size"]

        def read(at: int, count: int) -> bytes:
            return storage.get_range(path, at, count)

        try:
            lengths = read_lengths(size, read)
            if len(lengths) != entry.file["_ROW_COUNT"]:
                raise DamagedTableError(f"it has {len(lengths)} rows, not {entry.file['_ROW_COUNT']}")
        except DamagedTableError as damage:
            raise DamagedTableError(
                f"{path} is damaged: {damage.message}", at=self.base, next_step="restore the file"
            ) from damage
        kept = lengths[start:stop]
        begin = int(offsets(lengths)[start])
        end = begin + int(kept[kept > 0].sum())
        name = f"data-{uuid4()}-0{SUFFIX}"
        new = f"{folder}/{name}"
        self._files.paths.append(new)
        with storage.open_output(new) as sink:
            for at in range(begin, end, _CHUNK):
                sink.write(read(at, min(_CHUNK, end - at)))
            sink.write(tail := index_of(kept.tolist()))
        written = storage.head(new).size
        if written != end - begin + len(tail):
            raise DamagedTableError(
                f"{path} is shorter than its index says: of {end - begin} bytes, {written - len(tail)} were copied",
                at=self.base,
                next_step="restore the file",
            )
        return {
            **entry.file,
            "_FILE_NAME": name,
            "_FILE_SIZE": written,
            "_ROW_COUNT": stop - start,
            "_FIRST_ROW_ID": entry.file["_FIRST_ROW_ID"] + start,
            "_VALUE_STATS": NO_STATS,
            "_VALUE_STATS_COLS": [],
            "_CREATION_TIME": epoch_millis(),
            "_FILE_SOURCE": _COMPACTED,
            "_EXTERNAL_PATH": None,
        }

    def discard(self, named: Collection[str] = ()) -> None:
        """Delete the files that no new entry names, as far as the storage allows."""
        self._files.paths = [path for path in self._files.paths if path.rpartition("/")[2] not in named]
        self._files.discard()

    @contextmanager
    def named_by_the_commit(self) -> Iterator[None]:
        """Context for the commit. After other errors a snapshot may name the files."""
        try:
            yield
        except ConflictError:
            self.discard()
            raise
