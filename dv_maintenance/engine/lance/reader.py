"""Live rows of a fragment of a Lance dataset, through Lance's own library. The rows and their positions are checked
against the deletion file, which this package reads by itself: they must be exactly the rows that it leaves.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
from pyarrow import types

from dv_maintenance.dv import DeletionVector
from dv_maintenance.engine.lance.fragment import Fragment
from dv_maintenance.engine.parquet.footer import BATCH_BYTES, batch_rows
from dv_maintenance.engine.rows.live_rows import KeepMasks, LiveRows, pieces
from dv_maintenance.engine.rows.required import Required
from dv_maintenance.engine.span import WHOLE, Span
from dv_maintenance.errors import DamagedDeletionVectorError, DamagedTableError, RefusedError
from dv_maintenance.files.arrays import int64s
from dv_maintenance.files.lance_footer import check_names
from dv_maintenance.files.lance_library import lance_errors, missing_value, open_dataset
from dv_maintenance.storage import Storage
from dv_maintenance.tables.dv_codecs import load

if TYPE_CHECKING:
    from dv_maintenance.tables.predicate import Predicate
    from dv_maintenance.tables.work import ScanTask, SourceFile

_ADDRESS: Final = "_rowaddr"
_OFFSET: Final = 0xFFFF_FFFF
# Batches that Lance decodes ahead. How many bytes it fetches ahead is left to Lance: some releases wait for ever if a
# buffer is too small for a file.
_AHEAD: Final = 2
# The maximum ratio of decoded to stored size that is assumed for values of variable length.
_DECODED: Final = 4
# Files from this version on support batches limited by bytes.
_BYTES_FROM: Final = (2, 1)


class LanceReader:
    """See ``protocols.Reader``. A fragment is never split: it belongs to the span that begins with the file. The caller
    applies conditions, as Lance compares values by its own rules.

    Raises
    ------
    DamagedDeletionVectorError : the deletion file is damaged, or contradicts the manifest.
    """

    def __init__(self, source: SourceFile, task: ScanTask, storage: Storage) -> None:
        self._source, self._schema, self._storage = source, task.schema, storage
        self._fragment = Fragment(**source.details)
        self._required = Required.of(task.schema)
        self.rows: int = self._known_rows(source.rows)
        self.size: int = source.size
        self._dv = self._deletions()
        self.purged: int = self._dv.cardinality

    def _known_rows(self, rows: int | None) -> int:
        if rows is None:
            raise DamagedTableError(
                f"the number of rows of {self._name()} is unknown",
                table=self._fragment.dataset,
                version=self._fragment.version,
            )
        return rows

    def _deletions(self) -> DeletionVector:
        if self._source.dv is None:
            return DeletionVector.empty()
        try:
            return load(self._source.dv, self._storage.get_range, rows=self.rows)
        except DamagedDeletionVectorError as damage:
            raise DamagedDeletionVectorError(
                damage.reason,
                file=damage.file,
                table=self._fragment.dataset,
                version=self._fragment.version,
                next_step=f"fragment {self._fragment.id} cannot be read: restore the file from a backup, or an older "
                "version of the table",
            ) from damage.__cause__

    def batches(self, span: Span = WHOLE, predicate: Predicate | None = None) -> Iterator[pa.RecordBatch]:
        """See ``protocols.Reader``."""
        for live in self.live(span, predicate):
            yield live.batch

    def live(self, span: Span = WHOLE, predicate: Predicate | None = None) -> Iterator[LiveRows]:
        """See ``protocols.Reader``.

        Raises
        ------
        DamagedTableError : a file is missing or damaged, has a type that can't be read as the table's, or Lance returns
            other rows than the deletion file leaves.
        StorageError : the storage did not answer.
        RefusedError : pylance is missing or too old.
        """
        del predicate
        if span.start != 0 or self.purged == self.rows:
            return
        masks = KeepMasks(self._dv)
        next_row = 0
        for batch in self._scanned():
            at = batch.schema.get_field_index(_ADDRESS)
            offsets = batch.column(at).to_numpy() & _OFFSET
            stop = int(offsets[-1]) + 1
            expected = np.flatnonzero(masks(next_row, max(stop, next_row)).to_numpy(zero_copy_only=False)) + next_row
            if not np.array_equal(offsets, expected):
                raise self._differs(f"rows other than those of positions {next_row} to {stop - 1} that are left")
            yield LiveRows(self._projected(batch), next_row, stop - next_row, None, int64s(offsets))
            next_row = stop
        left = self.rows - next_row - self._dv.range_cardinality(next_row, self.rows)
        if left:
            raise self._differs(f"{left} rows too few: nothing after position {next_row - 1}")

    # -- Lance ---------------------------------------------------------------------------------------------------------

    def _scanned(self) -> Iterator[pa.RecordBatch]:
        """Batches of at least one row, in order, with row addresses. Their size is bounded if that of a row is."""
        check_names(self._storage, self._storage.path_of_uri(self._source.uri))
        with self._errors():
            dataset = open_dataset(Storage(self._fragment.dataset, self._storage.options), self._fragment.version)
            fragment = dataset.get_fragment(self._fragment.id)
            files = [] if fragment is None else fragment.metadata.files
            if fragment is None or (files and not _names(self._source.uri, files[0].path)):
                raise DamagedTableError(
                    f"{self._name()} no longer exists",
                    table=self._fragment.dataset,
                    version=self._fragment.version,
                    next_step="read again: the table was recreated concurrently",
                )
            options: dict[str, int] = {"batch_size": batch_rows(self._row_bytes()), "batch_readahead": _AHEAD}
            if all((file.file_major_version, file.file_minor_version) >= _BYTES_FROM for file in files):
                options["batch_size_bytes"] = BATCH_BYTES
            batches = iter(
                fragment.to_batches(
                    columns=self._schema.names, with_row_address=True, blob_handling="all_binary", **options
                )
            )
        while True:
            with self._errors():
                batch = next(batches, None)
            if batch is None:
                return
            yield from pieces(batch)

    def _errors(self) -> Any:
        return lance_errors(self._name(), table=self._fragment.dataset, version=self._fragment.version)

    def _name(self) -> str:
        return f"fragment {self._fragment.id} ({self._source.uri})"

    def _row_bytes(self) -> float:
        """The estimated maximum of decoded bytes per row."""
        widths = [_width(field.type) for field in self._schema]
        variable = None in widths
        return sum(width or 0.0 for width in widths) + (_DECODED * self.size / max(self.rows, 1) if variable else 0)

    # -- checks --------------------------------------------------------------------------------------------------------

    def _projected(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if not self._schema.names:  # rows without columns still count
            return batch.select([])
        columns = [self._as_wanted(batch.column(field.name), field) for field in self._schema]
        projected = pa.RecordBatch.from_arrays(columns, schema=self._schema)
        if self._required is not None:
            self._required.check(projected, self._name(), missing_value)
        return projected

    def _as_wanted(self, array: pa.Array, field: pa.Field) -> pa.Array:
        """A column in the table's type: the same values, at most with another name for their type."""
        if array.type == field.type:
            return array
        storage = array.storage if isinstance(array, pa.ExtensionArray) else array
        wanted = field.type.storage_type if isinstance(field.type, pa.BaseExtensionType) else field.type
        try:
            storage = storage if storage.type == wanted else storage.cast(wanted)
        except (pa.ArrowException, NotImplementedError) as error:
            raise RefusedError(
                f"column {field.name!r} is {array.type} in {self._name()}, which cannot be read as {field.type}",
                table=self._fragment.dataset,
                version=self._fragment.version,
                next_step="leave the column out, or read it with Lance itself",
            ) from error
        return pa.ExtensionArray.from_storage(field.type, storage) if wanted is not field.type else storage

    def _differs(self, what: str) -> DamagedTableError:
        deleted = "none deleted" if self._source.dv is None else f"{self.purged} deleted by {self._source.dv.uri}"
        return DamagedTableError(
            f"Lance reads {what} from {self._name()}, which has {self.rows} rows, {deleted}",
            table=self._fragment.dataset,
            version=self._fragment.version,
            next_step="check the table with Lance's dataset.validate(), and restore an earlier version",
        )


@contextmanager
def open_fragment(source: SourceFile, task: ScanTask, storage: Storage) -> Iterator[LanceReader]:
    """See ``file_formats.FileFormat.reader``. Raises as :class:`LanceReader`."""
    yield LanceReader(source, task, storage)


def _names(uri: str, path: str) -> bool:
    return unquote(uri).endswith("/" + path)


def _width(type_: pa.DataType) -> float | None:
    """Decoded bytes per value; ``None`` if they depend on the value."""
    if isinstance(type_, pa.BaseExtensionType):
        return _width(type_.storage_type)
    if types.is_null(type_):
        return 0
    if types.is_fixed_size_list(type_):
        inner = _width(type_.value_type)
        return None if inner is None else inner * type_.list_size
    if types.is_struct(type_):
        inside = [_width(type_.field(at).type) for at in range(type_.num_fields)]
        return None if None in inside else sum(width or 0.0 for width in inside)
    try:
        return float(type_.bit_width) / 8
    except ValueError:
        return None
