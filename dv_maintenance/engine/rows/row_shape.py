"""From stored rows of one file to live rows of a task, the same for every file format: the task's columns, without rows
that a deletion vector (DV) names, rows of a kind that the task filters out, and rows with values that other files name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from dv_maintenance.engine.parquet.projection import Projection
from dv_maintenance.engine.rows.live_rows import KeepMasks, LiveRows, filter_live
from dv_maintenance.engine.rows.required import Required
from dv_maintenance.engine.rows.row_defaults import fill_defaults
from dv_maintenance.engine.rows.values_to_drop import ValuesToDrop
from dv_maintenance.errors import DamagedTableError
from dv_maintenance.files.arrays import bools
from dv_maintenance.tables.dv_codecs import load

if TYPE_CHECKING:
    from dv_maintenance.engine.parquet.calendars import FileCalendar
    from dv_maintenance.storage import Storage
    from dv_maintenance.tables.work import ScanTask, SourceFile

# No column has this name.
_KIND: Final = "\0kind"


@dataclass(frozen=True, slots=True)
class _RowFilter:
    """``SourceFile.details["only"]``: a filter on an integer ``column`` that the file stores and the scan does not
    return.

    kept : rows with these values belong to the table.
    dropped : rows with these values are skipped. Any other value, or a null, is damage.
    """

    column: str
    kept: Sequence[int]
    dropped: Sequence[int]


class RowShape:
    """Converts stored rows of one file to live rows of a task.

    stored : Arrow schema of the file.
    rows : physical rows of the file.
    calendar : see ``Projection.build``.
    purged : rows that the DV names, and of those that were read, the ones that ``without`` drops.
    required : what is NOT NULL in the task's schema.

    Raises as ``scan.scan``, also if the row count of the file differs from that of the log, unless the log's is only a
    statistic (older versions of Trino wrote the number of visible rows) and the file is whole.
    """

    def __init__(
        self,
        stored: pa.Schema,
        rows: int,
        source: SourceFile,
        task: ScanTask,
        storage: Storage,
        *,
        calendar: FileCalendar | None = None,
    ) -> None:
        if source.rows is not None and source.rows != rows and not _is_whole(source, storage):
            raise DamagedTableError(
                f"{source.uri} has {rows} rows, but the table's log says {source.rows}",
                next_step="restore the file from a backup",
            )
        self._uri = source.uri
        only = source.details.get("only")
        self._only = None if only is None else _RowFilter(**only)
        self._without = [ValuesToDrop.load(each, storage) for each in source.details.get("without", ())]
        self._width = len(task.schema)
        self.projection = Projection.build(
            stored,
            self._read(task.schema),
            match_by=task.match_by,
            constants=self._constants(source.constants),
            file=source.uri,
            found_by=None if source.schema is None else self._read(source.schema),
            calendar=calendar,
        )
        self._row_defaults = source.row_defaults
        self.required = Required.of(task.schema)
        self._dv = None if source.dv is None else load(source.dv, storage.get_range, rows=rows, of=source.uri)
        self._masks = None if self._dv is None else KeepMasks(self._dv)
        self.purged: int = 0 if self._dv is None else self._dv.cardinality
        if self.required is not None and self.purged < rows:
            self.required.check_columns(self.projection.lacking - self._row_defaults.keys(), source.uri)

    def _read(self, schema: pa.Schema) -> pa.Schema:
        """The columns of a schema, and those that are read for the filters: first what ``without`` compares."""
        for at, each in enumerate(self._without):
            schema = each.appended_to(schema, at)
        return _with_kind(schema, self._only)

    def _constants(self, of_source: Mapping[str, Any]) -> dict[str, Any]:
        constants = dict(of_source)
        for at, each in enumerate(self._without):
            constants |= each.constants_of_appended(at)
        return constants

    def deleted(self, first: int, stop: int) -> int:
        """Rows from physical position ``first`` up to ``stop`` that the DV names."""
        return 0 if self._dv is None else self._dv.range_cardinality(first, stop)

    def __call__(self, batch: pa.RecordBatch | None, rows: int, first: int) -> LiveRows | None:
        """The live ones of ``rows`` rows, in the task's schema; ``None`` if no row is live.

        batch : the columns that the projection reads; ``None`` if it reads none.
        first : physical position of the first row.

        Raises
        ------
        DamagedTableError : a value can't be read as the table's type, or is missing in a NOT NULL column; or a row is
            of an unknown kind.
        """
        deleted = self.deleted(first, first + rows)
        if deleted == rows:
            return None
        live_mask = self._masks(first, first + rows) if deleted and self._masks is not None else None
        if live_mask is not None and batch is not None:
            batch = filter_live(batch, deleted, live_mask)
        live: LiveRows | None = LiveRows(self.projection(batch, rows - deleted), first, rows, live_mask)
        if self._only is not None and live is not None:
            live = self._counting(live, self._only)
        if live is not None and self._without:
            live = self._dropping(live)
        if live is not None and self._row_defaults:
            live = fill_defaults(live, self._row_defaults)
        if live is not None and self.required is not None:
            self.required.check(live.batch, self._uri)
        return live

    def _counting(self, live: LiveRows, only: _RowFilter) -> LiveRows | None:
        """The rows of the kinds that the task keeps."""
        kinds = live.batch.column(live.batch.num_columns - 1)
        batch = live.batch.select(range(live.batch.num_columns - 1))
        mask = pc.is_in(kinds, value_set=pa.array(only.kept, kinds.type))
        count = mask.true_count
        dropped = pc.is_in(kinds, value_set=pa.array(only.dropped, kinds.type)).true_count
        if count + dropped != live.batch.num_rows:
            raise DamagedTableError(
                f"{self._uri} has rows whose {only.column} is none of {sorted({*only.kept, *only.dropped})}",
                next_step="restore the file, or an older version of the table",
            )
        if not count:
            return None
        if not dropped:
            return replace(live, batch=batch)
        return _chosen(live, batch, mask)

    def _dropping(self, live: LiveRows) -> LiveRows | None:
        """The rows whose values no file of ``without`` has."""
        first = self._width
        gone: Any = pa.repeat(bools([False])[0], live.batch.num_rows)
        for each in self._without:
            gone = pc.or_(gone, each.among(live.batch.columns[first : first + each.width]))
            first += each.width
        batch = live.batch.select(range(self._width))
        self.purged += gone.true_count
        if not gone.true_count:
            return replace(live, batch=batch)
        return _chosen(live, batch, pc.invert(gone)) if gone.true_count < len(gone) else None


def _chosen(live: LiveRows, batch: pa.RecordBatch, mask: pa.BooleanArray) -> LiveRows:
    return LiveRows(batch.filter(mask), live.first, live.rows, None, live.positions().filter(mask))


def _is_whole(source: SourceFile, storage: Storage) -> bool:
    """Whether the file is the one that the log names, so that its own row count is right and the statistic is wrong."""
    return not source.exact_rows and storage.head(storage.path_of_uri(source.uri)).size == source.size


def _with_kind(schema: pa.Schema, only: _RowFilter | None) -> pa.Schema:
    if only is None:
        return schema
    # By its name, even if other columns are found by their ids.
    found_by = {b"dvm:source": only.column.encode(), b"dvm:match": b"name"}
    return schema.append(pa.field(_KIND, pa.int8(), metadata=found_by))
