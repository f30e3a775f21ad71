"""A column of blobs: the files that hold its values, for parts of the rows, the newer ones before the older ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
from pyarrow import types

from dv_maintenance.engine.blob.map_keys import map_keys
from dv_maintenance.engine.faults import decoding, reading
from dv_maintenance.engine.whole_file import WholeReader
from dv_maintenance.errors import DamagedTableError, RefusedError
from dv_maintenance.files.blob import PLACEHOLDER, elements, entries, offsets, read_lengths, value

if TYPE_CHECKING:
    from dv_maintenance.storage import Storage
    from dv_maintenance.tables.work import ScanTask, SourceFile

_ROWS: Final = 1024
_BYTES: Final = 16 << 20
_NOBODY: Final = -1


@dataclass(frozen=True, slots=True)
class Piece:
    """A file with the values of some of the rows, see ``SourceFile.details["pieces"]``.

    first : its first row, counted from that of the source.
    """

    uri: str
    size: int
    first: int
    rows: int


class BlobColumn:
    """See ``protocols.StoredFile``. Reads the indexes of all files.

    Raises
    ------
    DamagedTableError, StorageError : a file can't be read; the error names it.
    """

    def __init__(self, source: SourceFile, task: ScanTask, storage: Storage) -> None:
        self.rows = source.rows or 0
        # Under the name by which it is looked for: the files name no column.
        (field,) = task.schema if source.schema is None else source.schema
        name = (field.metadata or {}).get(b"dvm:source", field.name.encode()).decode()
        self._kind = field.type
        self.schema = pa.schema([pa.field(name, field.type)])
        self._storage = storage
        self._pieces = [Piece(**each) for each in source.details["pieces"]]
        # Of each row: the piece that has its value, and where.
        self._piece = np.full(self.rows, _NOBODY)
        self._start, self._length = np.zeros(self.rows, np.int64), np.full(self.rows, PLACEHOLDER)
        for number, piece in enumerate(self._pieces):
            with decoding(piece.uri), reading(piece.uri, "blobs"):
                lengths = read_lengths(piece.size, partial(self._bytes, piece.uri))
                if len(lengths) != piece.rows:
                    raise DamagedTableError(f"it has {len(lengths)} rows, but the table's log says {piece.rows}")
            own = slice(piece.first, piece.first + piece.rows)
            new = self._length[own] == PLACEHOLDER
            at = np.flatnonzero(new) + piece.first
            self._piece[at], self._start[at], self._length[at] = number, offsets(lengths)[new], lengths[new]

    def check(self, fields: tuple[int, ...]) -> None:
        """Accepts all columns: there is one."""

    def batches(self, fields: tuple[int, ...]) -> Iterator[pa.RecordBatch]:
        """See ``protocols.StoredFile``: memory is bounded by 16 MiB, or by one value."""
        del fields
        first = 0
        sums = np.cumsum(np.maximum(self._length, 0))
        while first < self.rows:
            done = sums[first - 1] if first else 0
            stop = min(max(int(np.searchsorted(sums, done + _BYTES, "right")), first + 1), first + _ROWS, self.rows)
            values = self._array(self._values(first, stop))
            yield pa.record_batch([values], self.schema)
            first = stop

    def _array(self, values: list[bytes | None]) -> pa.Array:
        """Of the column's type: blobs, or arrays or maps of them."""
        kind = self._kind
        with decoding(self._pieces[0].uri):
            if types.is_map(kind):
                parts = [None if each is None else entries(each) for each in values]
                flat = [entry for each in parts for entry in each or ()]
                if any(key is None for key, _ in flat):
                    raise RefusedError(
                        "a map of blobs has a null key, for which Arrow has no type",
                        next_step="leave the column out, or read the table with Paimon itself",
                    )
                keys = map_keys([key or b"" for key, _ in flat], kind.key_type)
                blobs = pa.array([blob for _, blob in flat], kind.item_type)
                return pa.MapArray.from_arrays(_offsets(parts), keys, blobs, type=kind)
            if types.is_list(kind):
                return pa.array([None if each is None else elements(each) for each in values], kind)
            return pa.array(values, kind)

    def _values(self, first: int, stop: int) -> list[bytes | None]:
        found: list[bytes | None] = [None] * (stop - first)
        at = first + np.flatnonzero(self._length[first:stop] >= 0)
        # Records that follow each other in a file are read at once.
        follows = (self._piece[at][1:] == self._piece[at][:-1]) & (
            self._start[at][1:] == (self._start[at] + self._length[at])[:-1]
        )
        for run in np.split(at, np.flatnonzero(~follows) + 1):
            if not len(run):
                continue
            uri, start = self._pieces[self._piece[run[0]]].uri, int(self._start[run[0]])
            with decoding(uri), reading(uri, "blobs"):
                data = memoryview(self._bytes(uri, start, int(self._length[run].sum())))
                for row in run.tolist():
                    begin = int(self._start[row]) - start
                    found[row - first] = value(data[begin : begin + int(self._length[row])])
        return found

    def _bytes(self, uri: str, start: int, count: int) -> bytes:
        data = self._storage.get_range(uri, start, count)
        if len(data) != count:
            raise DamagedTableError("it is shorter than the table's log says")
        return data


def _offsets(parts: Sequence[Sequence[object] | None]) -> pa.Array:
    """Where each part begins; null where there is none."""
    ends = np.cumsum([0, *(len(each or ()) for each in parts)])
    return pa.array(
        [None if each is None else int(end) for each, end in zip([*parts, ()], ends, strict=True)], pa.int32()
    )


@contextmanager
def open_blobs(source: SourceFile, task: ScanTask, storage: Storage) -> Iterator[WholeReader]:
    """Open a column of blobs. Raises as ``scan.open_source``."""
    yield WholeReader(BlobColumn(source, task, storage), source, task, storage)
