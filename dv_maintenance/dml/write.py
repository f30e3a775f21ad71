"""Changed rows from Spark into files and positions, in one pass: workers write and count their rows, and keep none.

A changed row has its action (empty: a match that is only counted), its position (file and row, null for an insert), its
new values (the table's columns) and, if a change data feed needs them, its old values (a struct of the same columns).
Columns are identified by their order, since the table's may have any names. There is one pass, because a condition or
an assignment may be volatile: a second evaluation could select other rows.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from dv_maintenance.dml.names import quoted
from dv_maintenance.dml.rows import spark_errors
from dv_maintenance.dml.spark_types import stored_as
from dv_maintenance.dv import DeletionVector
from dv_maintenance.engine.spark.workers import in_workers
from dv_maintenance.engine.writer import RollingWriter, as_optional
from dv_maintenance.errors import RefusedError
from dv_maintenance.storage import Storage
from dv_maintenance.storage.rehearsal import Rehearsal
from dv_maintenance.tables.model import hive_folder, parse_partition, partition_name
from dv_maintenance.tables.rows import AddedFile, RowWriteTask
from dv_maintenance.tables.work import ColumnStats, OutputFile, RewriteTask, ScanTask

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# Columns before those of the table.
_ACTION, _FILE, _ROW, _FIRST = range(4)
# Kind of action, whether the image is of the old row, and the image's name (protocol: Add CDC File).
_IMAGES: Final = (
    ("delete", True, "delete"),
    ("update", True, "update_preimage"),
    ("update", False, "update_postimage"),
    ("insert", False, "insert"),
)

_OUTCOME: Final = "kind string, file int, positions binary, text string"
# The Gregorian calendar repeats after 400 years; microseconds.
_CALENDAR_CYCLE: Final = 146_097 * 86_400_000_000


@dataclass(frozen=True, slots=True)
class Written:
    """The result of :func:`write_changes`.

    positions : positions of the deleted rows, by file.
    added : new data files.
    change_files : new change data files.
    counts : rows by action.
    doubles : how often a row was matched that another row of the input also matches.
    """

    positions: Mapping[int, DeletionVector]
    added: tuple[AddedFile, ...]
    change_files: tuple[AddedFile, ...]
    counts: Mapping[str, int]
    doubles: int


@dataclass(frozen=True, slots=True)
class _Job:
    """The settings of a worker. ``schema``: the table's, with logical names."""

    rows: RowWriteTask
    changes: RowWriteTask | None
    partition_columns: tuple[str, ...]
    schema: pa.Schema
    options: Mapping[str, str] = field(default_factory=dict)
    dry_run: bool = False

    @property
    def spelled(self) -> tuple[str, ...]:
        """Partition columns whose values Spark spells: all except TIMESTAMP, see ``utc_text``."""
        return tuple(name for name in self.partition_columns if not _is_instant(self.schema.field(name).type))

    @property
    def old(self) -> int:
        """The index of the column with the old row, if there is change data."""
        return _FIRST + len(self.schema) + len(self.row_ids)

    @property
    def row_ids(self) -> tuple[str, ...]:
        """Names of the columns in addition to those of the table."""
        return tuple(name for name in self.rows.columns if name not in self.schema.names)


def write_changes(
    changed: DataFrame,
    schema: pa.Schema,
    partition_columns: Sequence[str],
    tasks: tuple[RowWriteTask, RowWriteTask],
    *,
    change_data: bool,
    options: Mapping[str, str] | None,
    dry_run: bool = False,
) -> Written:
    """Write the changed rows into new files. No commit names these files yet. A failed Spark task deletes its own.

    changed : rows with these columns, in this order: the action (``update``, ``delete`` or ``insert``, for a MERGE
        followed by a colon and the kind of the clause; empty for a match that is only counted), file, row, the columns
        of ``schema``, the row id if changed rows have one, and the old row if there is ``change_data``.
    schema : the table's, with logical names.
    tasks : how to write data files and change data files.
    dry_run : write the files nowhere.

    Raises
    ------
    The errors of computing the rows, see ``rows.spark_errors``, and StorageError.
    """
    rows, changes = tasks
    spelled = tuple(partition_columns) if rows.partitions is None else ()
    job = _Job(rows, changes if change_data else None, spelled, schema, dict(options or {}), dry_run)
    # Spark Connect analyzes nothing until the columns are requested.
    with spark_errors():
        # PySpark looks columns up by name, and a dot or a backtick in a name has a special meaning.
        plain = _with_spellings(changed.toDF(*[f"column{at}" for at in range(len(changed.columns))]), job)
        outcome = plain.mapInArrow(in_workers(written, job), _OUTCOME).collect()
    # By kind: of changed rows, and of those that are only counted.
    positions: dict[str, dict[int, DeletionVector]] = {"positions": {}, "matches": {}}
    counts: Counter[str] = Counter()
    files: dict[str, list[AddedFile]] = {"added": [], "change": []}
    for part in outcome:
        if (of_kind := positions.get(part.kind)) is not None:
            dv = DeletionVector.from_portable(bytes(part.positions))
            of_kind[part.file] = of_kind.get(part.file, DeletionVector.empty()) | dv
        elif part.kind == "counts":
            counts.update(json.loads(part.text))
        else:
            files[part.kind].append(_added_file(json.loads(part.text)))
    marked = sum(count for action, count in counts.items() if not action.startswith("insert"))
    changed_rows, matches = positions["positions"], positions["matches"]
    distinct = sum(
        len(changed_rows.get(file, DeletionVector.empty()) | matches.get(file, DeletionVector.empty()))
        for file in {*changed_rows, *matches}
    )
    return Written(changed_rows, tuple(files["added"]), tuple(files["change"]), counts, marked - distinct)


def _with_spellings(plain: DataFrame, job: _Job) -> DataFrame:
    """Adds the text of each partition value that Spark spells, new values first. A spelling other than delta-spark's
    would make another partition. delta-spark casts the values to strings (``FileFormatWriter``), which depends on the
    JVM (digits of doubles before Java 19) and the session (decimals by ANSI mode).
    """
    values = [f"column{_FIRST + job.schema.names.index(name)}" for name in job.spelled]
    if job.changes is not None:
        values += [f"column{job.old}.{quoted(name)}" for name in job.spelled]
    return plain.selectExpr("*", *[f"CAST({value} AS STRING) AS text{at}" for at, value in enumerate(values)])


def written(batches: Iterable[pa.RecordBatch], job: _Job) -> Iterator[pa.RecordBatch]:
    """The worker's side of :func:`write_changes`."""
    rows = _Files(job.rows, job)
    changes = None if job.changes is None else _Files(job.changes, job)
    counts: Counter[str] = Counter()
    gone: dict[int, DeletionVector] = {}
    matched: dict[int, DeletionVector] = {}
    try:
        for batch in batches:
            if not batch.num_rows:
                continue
            actions = batch.column(_ACTION)
            for entry in actions.value_counts().to_pylist():
                counts[entry["values"]] += entry["counts"]
            idle = pc.equal(actions, "")
            if idle.true_count:
                _mark(matched, batch.filter(idle))
                batch = batch.filter(pc.invert(idle))
                actions = batch.column(_ACTION)
            _mark(gone, batch)
            kinds = pc.list_element(pc.split_pattern(actions, ":"), 0)
            put = batch.filter(pc.not_equal(kinds, "delete"))
            rows.write(_columns(put, job) | _row_ids(put, job), None, _spellings(put, job))
            if changes is not None:
                _write_changes(changes, batch, kinds, job)
        added, changed = rows.close(), () if changes is None else changes.close()
    except BaseException:
        rows.discard()
        if changes is not None:
            changes.discard()
        raise
    outcome: list[tuple[str, int | None, bytes | None, str | None]] = [
        ("counts", None, None, json.dumps(counts)),
        *(("positions", file, dv.to_portable(), None) for file, dv in gone.items()),
        *(("matches", file, dv.to_portable(), None) for file, dv in matched.items()),
        *(("added", None, None, json.dumps(asdict(each))) for each in added),
        *(("change", None, None, json.dumps(asdict(each))) for each in changed),
    ]
    kinds_of = (pa.string(), pa.int32(), pa.binary(), pa.string())
    columns = [pa.array(values, kind) for values, kind in zip(zip(*outcome, strict=True), kinds_of, strict=True)]
    yield pa.RecordBatch.from_arrays(columns, names=["kind", "file", "positions", "text"])


def _mark(gone: dict[int, DeletionVector], batch: pa.RecordBatch) -> None:
    stored = batch.select([_FILE, _ROW]).filter(batch.column(_FILE).is_valid())
    files, rows = (stored.column(at).to_numpy() for at in (0, 1))
    for file in np.unique(files).tolist():
        gone[file] = gone.get(file, DeletionVector.empty()) | DeletionVector.from_positions(rows[files == file])


def _columns(batch: pa.RecordBatch, job: _Job) -> dict[str, pa.Array]:
    return {name: batch.column(at) for at, name in enumerate(job.schema.names, _FIRST)}


def _row_ids(batch: pa.RecordBatch, job: _Job) -> dict[str, pa.Array]:
    return {name: batch.column(_FIRST + len(job.schema)) for name in job.row_ids}


def _spellings(batch: pa.RecordBatch, job: _Job, *, old: bool = False) -> dict[str, pa.Array]:
    """Texts of partition values, see ``_with_spellings``."""
    first = job.old + (job.changes is not None) + (len(job.spelled) if old else 0)
    return {name: batch.column(at) for at, name in enumerate(job.spelled, first)}


def _write_changes(changes: _Files, batch: pa.RecordBatch, kinds: pa.Array, job: _Job) -> None:
    """Write the images of the old and the new rows."""
    for kind, old, name in _IMAGES:
        part = batch.filter(pc.equal(kinds, kind))
        if not part.num_rows:
            continue
        if old:
            before = part.column(job.old)
            columns = {column: before.field(at) for at, column in enumerate(job.schema.names)}
        else:
            columns = _columns(part, job)
        changes.write(columns, name, _spellings(part, job, old=old))


class _Files:
    """Writes rows into files, separate ones for each partition."""

    def __init__(self, task: RowWriteTask, job: _Job) -> None:
        self._task, self._job = task, job
        self._schema = as_optional(task.schema)
        self._writers: dict[str, RollingWriter] = {}
        kind = Rehearsal if job.dry_run else Storage
        self._storage = kind(task.output_uri, job.options)

    def write(self, columns: dict[str, pa.Array], change_type: str | None, spellings: Mapping[str, pa.Array]) -> None:
        """``spellings``: texts of partition values by column."""
        rows = len(next(iter(columns.values())))
        if not rows:
            return
        if change_type is not None:
            columns = {**columns, "_change_type": pa.repeat(pa.scalar(change_type), rows)}
        stored = [_stored(columns[name], field) for name, field in zip(self._task.columns, self._schema, strict=True)]
        batch = pa.RecordBatch.from_arrays(stored, schema=self._schema)
        own = self._task.partitions
        names = self._partitions(columns, spellings, rows) if own is None else own.names(batch)
        for name in dict.fromkeys(names):
            part = batch
            if names[0] != name or len(set(names)) > 1:
                part = batch.filter(pa.array([each == name for each in names], pa.bool_()))
            self._writer(name).write(part, None, {})

    def _partitions(self, columns: Mapping[str, pa.Array], spellings: Mapping[str, pa.Array], rows: int) -> list[str]:
        wanted = self._job.partition_columns
        if not wanted:
            return [""] * rows
        texts = [
            _texts(name, spellings[name]) if name in spellings else [utc_text(value) for value in columns[name]]
            for name in wanted
        ]
        known: dict[tuple[str | None, ...], str] = {}
        names = []
        for values in zip(*texts, strict=True):
            if values not in known:
                known[values] = partition_name(dict(zip(wanted, values, strict=True)))
            names.append(known[values])
        return names

    def _writer(self, partition: str) -> RollingWriter:
        if partition not in self._writers:
            task = self._task
            folder = ""
            if task.hive_folders:
                own = task.partitions
                folder = hive_folder(parse_partition(partition)) if own is None else own.folder(partition)
            if folder:
                self._storage.check_target(f"{folder}/new")
            uri = self._storage.uri_of(folder).rstrip("/") if folder else task.output_uri
            scan = ScanTask((), self._schema)
            rewrite = RewriteTask(
                partition,
                scan,
                uri,
                task.target_bytes,
                task.compression,
                task.stats_columns,
                file_name=f"part-{{task}}-{{uuid}}{{codec}}.{task.format}",
                format=task.format,
            )
            self._writers[partition] = RollingWriter(rewrite, self._schema, self._storage)
        return self._writers[partition]

    def close(self) -> list[AddedFile]:
        return [
            AddedFile(output, partition) for partition, writer in self._writers.items() for output in writer.close()
        ]

    def discard(self) -> None:
        for writer in self._writers.values():
            with suppress(Exception):
                writer.discard()


def _texts(column: str, spelled: pa.Array) -> list[str | None]:
    """Partition values; an empty one is null."""
    try:
        return [text or None for text in spelled.to_pylist()]
    except UnicodeDecodeError:
        raise RefusedError(
            f"a new value of partition column {column} is not UTF-8, and a table's log has only text",
            next_step="encode the value, for example with hex() or base64()",
        ) from None


def _is_instant(kind: pa.DataType) -> bool:
    return types.is_timestamp(kind) and kind.tz is not None


def utc_text(scalar: pa.Scalar) -> str | None:
    """A TIMESTAMP in delta-spark's spelling (``spark.databricks.delta.write.utcTimestampPartitionValues``).

    Spark's years reach beyond Python's. delta-spark spells years before 1 as those of another era, so its readers take
    them for other instants; here they are spelled as Spark casts them back.
    """
    if not scalar.is_valid:
        return None
    cycles, micros = divmod(scalar.cast(pa.int64()).as_py(), _CALENDAR_CYCLE)
    when = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=micros)
    year = when.year + 400 * cycles
    spelled = f"{year:04d}" if 0 <= year <= 9999 else f"{year:+05d}"
    return f"{spelled}{when:-%m-%dT%H:%M:%S.%f}Z"


def _stored(column: pa.Array, field: pa.Field) -> pa.Array:
    problem = f"a new value of column {field.name} does not fit its type"
    return stored_as(column, field, problem, "give a value of the column's type")


def _added_file(body: Mapping[str, Any]) -> AddedFile:
    output = body["output"]
    stats = tuple(ColumnStats(**{**each, "column": tuple(each["column"])}) for each in output["stats"])
    return AddedFile(OutputFile(**{**output, "stats": stats}), body["partition"])
