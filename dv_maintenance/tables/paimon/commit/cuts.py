"""Files of blobs, videos and vectors whose rows are only partly live: each range of live rows becomes a file.

It has the age of the old file, and what it says of each row: also that the value is null, or that of an older file. So
readers find the same values.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

import pyarrow as pa

from dv_maintenance.errors import ConflictError, DamagedTableError, VerificationError
from dv_maintenance.files import blob, lance_cut, lines, parquet_cut, video, vortex_cut
from dv_maintenance.files.avro import cut as avro_cut
from dv_maintenance.files.parquet_footer import open_parquet_file
from dv_maintenance.tables.fingerprint import row_hashes
from dv_maintenance.tables.new_files import NewFiles
from dv_maintenance.tables.paimon.commit.value_stats import NO_STATS
from dv_maintenance.tables.paimon.log.entries import Entry
from dv_maintenance.tables.paimon.rows.evolution import suffix_of
from dv_maintenance.units import epoch_millis

if TYPE_CHECKING:
    from dv_maintenance.tables.paimon.layout import Layout
    from dv_maintenance.tables.paimon.log.entries import FileId
    from dv_maintenance.tables.paimon.snapshot import PaimonSnapshot

_COMPACTED: Final = 1


@dataclass(slots=True)
class Cuts:
    """The new files of a commit. Each is written once, for all attempts.

    base : where the old files are.
    """

    layout: Layout
    base: PaimonSnapshot
    _files: NewFiles = field(init=False)
    _made: dict[tuple[FileId, int, int], Mapping[str, Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._files = NewFiles(self.layout.storage)

    def of(self, entries: Iterable[Entry], beside: str, rows: range) -> list[Entry]:
        """The entries of new files with the blobs, videos and vectors of a range of row ids.

        entries : of the old files; those with other columns are ignored.
        beside : URI of the new file with the other columns of these rows.

        Raises
        ------
        DamagedTableError, UnsupportedFeatureError, StorageError : an old file can't be read.
        VerificationError : a new file differs from what was to be written.
        """
        found = []
        for entry in entries:
            first = entry.file["_FIRST_ROW_ID"]
            if suffix_of(entry.id[2]) not in CUT or first is None:
                continue
            start, stop = max(first, rows.start), min(first + entry.file["_ROW_COUNT"], rows.stop)
            if start >= stop:
                continue
            key = (entry.id, start, stop)
            if key not in self._made:
                folder = self.layout.storage.path_of_uri(beside).rpartition("/")[0]
                try:
                    self._made[key] = self._cut(entry, folder, range(start - first, stop - first))
                except BaseException:
                    self.discard()  # no commit has been tried with these files
                    raise
            found.append(Entry(entry.template, {**entry.record, "_FILE": self._made[key]}))
        return found

    def _cut(self, entry: Entry, folder: str, rows: range) -> Mapping[str, Any]:
        """Write some rows, and return what the manifest says of the new file."""
        storage = self.layout.storage
        (path,) = (row["path"] for row in self.base.parts.to_pylist() if row["file_name"] == entry.id[2])
        suffix, of = suffix_of(entry.id[2]), entry.file["_ROW_COUNT"]
        name = f"data-{uuid4()}-0{suffix}"
        new = f"{folder}/{name}"
        self._files.paths.append(new)
        try:
            with storage.open_input(path) as file:
                if file.size() != entry.file["_FILE_SIZE"]:
                    raise DamagedTableError(f"it has {file.size()} bytes, not {entry.file['_FILE_SIZE']}")
                with storage.open_output(new) as sink:
                    CUT[suffix](file, rows, of, sink)
                    size = sink.tell()
                digest = _DIGESTS.get(suffix)
                expected = digest(file, rows, of) if digest else None
        except (DamagedTableError, pa.ArrowInvalid) as damage:
            message = damage.message if isinstance(damage, DamagedTableError) else str(damage)
            raise DamagedTableError(
                f"{path} is damaged: {message}", at=self.base, next_step="restore the file"
            ) from damage
        written = storage.head(new).size
        with storage.open_input(new) as file:
            same = written == size and (digest is None or digest(file, range(len(rows)), len(rows)) == expected)
        if not same:
            raise VerificationError(
                f"{new} differs from the rows {rows.start} to {rows.stop - 1} of {path} that were written to it",
                at=self.base,
                done="nothing was committed",
            )
        return {
            **entry.file,
            "_FILE_NAME": name,
            "_FILE_SIZE": written,
            "_ROW_COUNT": len(rows),
            "_FIRST_ROW_ID": entry.file["_FIRST_ROW_ID"] + rows.start,
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


def _by_values(rows: Iterable[pa.RecordBatch]) -> str:
    """What does not depend on how values are encoded, nor on how rows are batched."""
    found = hashlib.blake2b()
    for batch in rows:
        found.update(row_hashes(batch).tobytes())
    return found.hexdigest()


def _parquet_digest(file: pa.NativeFile, rows: range, of: int) -> str:
    return _by_values(parquet_cut.batches(open_parquet_file(file), rows, of))


def _digest_of(batches: Callable[[pa.NativeFile, range, int], Iterable[pa.RecordBatch]]) -> Any:
    return lambda *some: _by_values(batches(*some))


CUT: Final[Mapping[str, Callable[[pa.NativeFile, range, int, Any], None]]] = {
    ".blob": blob.cut,
    ".video": video.cut,
    ".vector.parquet": parquet_cut.cut,
    ".vector.avro": avro_cut.cut,
    ".vector.lance": lance_cut.cut,
    ".vector.vortex": vortex_cut.cut,
    **{f".vector.json{packed}": partial(lines.cut, packed=packed) for packed in lines.CODECS},
}
"""How the files of columns apart from others are cut, by the end of their names."""
# The rows that a new file must have where it encodes them again.
_DIGESTS: Final[Mapping[str, Callable[[pa.NativeFile, range, int], str]]] = {
    ".vector.parquet": _parquet_digest,
    ".vector.avro": avro_cut.digest,
    ".vector.lance": _digest_of(lance_cut.batches),
    ".vector.vortex": _digest_of(vortex_cut.batches),
    **{f".vector.json{packed}": partial(lines.digest, packed=packed) for packed in lines.CODECS},
}
