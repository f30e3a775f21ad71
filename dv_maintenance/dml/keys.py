"""The keys of an erasure list, converted exactly to the types of the table.

Text is kept until it is converted. A value without an exact conversion is refused with its line: see ``dml.exact``. The
table's values are never cast to the type of a key.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyarrow import types

from dv_maintenance.dml import uuids
from dv_maintenance.dml.caching import cached
from dv_maintenance.dml.key_casts import INEXACT, Converter, as_text, from_json, from_text, from_typed, in_bulk
from dv_maintenance.dml.names import alike, quoted
from dv_maintenance.dml.rows import spark_errors
from dv_maintenance.dml.spark_types import spark_schema
from dv_maintenance.dml.text_files import FaultError, TextFile, columns_of, records
from dv_maintenance.engine.spark.arrow_table import rows_of
from dv_maintenance.engine.spark.workers import in_workers
from dv_maintenance.errors import UsageError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import DataType, StructType

_BATCH: Final = 1 << 15  # keys that are Python objects at the same time
_TYPES_DIFFER: Final = "give the keys in the column's type"
_FORMS: Final = "see docs/guides/dml.md for the spelling of each type's values"
# Two days as Spark adds them to a time without a zone, and one in microseconds.
_TWO_DAYS: Final = "INTERVAL '2' DAY"
_DAY: Final = 86_400_000_000

_CONVERTERS: Final = {"csv": from_text, "json": from_json}


@dataclass(frozen=True, slots=True)
class KeyColumn:
    """A column of the keys.

    kind : its Arrow type in the table.
    char : its length if it is a CHAR.
    free : it is not a column of the table, and accepts any text.
    """

    name: str
    kind: pa.DataType
    char: int | None = None
    free: bool = False

    @property
    def is_instant(self) -> bool:
        return bool(types.is_timestamp(self.kind) and self.kind.tz is not None)

    def __str__(self) -> str:
        return f"{self.name} ({_spark_types([self]).fields[0].dataType.simpleString()})"


@dataclass(frozen=True, slots=True)
class KeyCounts:
    """Counts of the keys of an erasure list.

    given : rows of the list.
    null : rows with a null among their values, which equals nothing.
    distinct : distinct keys among the other rows.
    unmatched : distinct keys without a row in the table.
    """

    given: int
    null: int
    distinct: int
    unmatched: int = 0

    def in_words(self) -> str:
        return (
            f"keys: {self.given:,} given, {self.null:,} of them with a null, which matches nothing; "
            f"{self.distinct:,} distinct, {self.unmatched:,} of them in no row"
        )


@dataclass(frozen=True, slots=True)
class Keys:
    """Keys ready for a join.

    rows : distinct keys without nulls, in columns ``key0``, ``key1``, ...
    cached : the cached DataFrame, to be released.
    """

    rows: DataFrame
    counts: KeyCounts
    cached: DataFrame


def keys_of_rows(rows: DataFrame, columns: Sequence[KeyColumn]) -> Keys:
    """Keys from a typed source: a table, Parquet or a DataFrame.

    Raises
    ------
    UsageError : a column is missing; a type has no values in common with the column's; a value has no exact match.
    """
    from pyspark.sql import functions as f
    from pyspark.sql.types import NullType

    with spark_errors():
        picked = rows.select(
            *[f.col(quoted(_named(column.name, rows.columns))).alias(f"key{at}") for at, column in enumerate(columns)]
        )
        wanted = [each.dataType for each in _spark_types(columns).fields]
        sources: list[pa.DataType | None] = []
        for at, (column, have) in enumerate(zip(columns, picked.schema.fields, strict=True)):
            if isinstance(have.dataType, NullType):
                picked = picked.withColumn(have.name, f.lit(None).cast(wanted[at]))
            same = isinstance(have.dataType, NullType) or _shape(have.dataType) == _shape(wanted[at])
            spelled = column.char is not None or column.kind == uuids.KIND  # several texts for one value
            sources.append(None if same and not spelled else _convertible(column, have.dataType))
        staged = picked.selectExpr("*", "CAST(NULL AS STRING) AS fault", "-1 AS file", "0L AS line")
        if any(source is not None for source in sources):
            worker = in_workers(typed_batches, tuple(columns), tuple(sources))
            staged = picked.mapInArrow(worker, _staged(columns))
    return _keys(staged, columns, ())


def keys_of_files(
    session: SparkSession, files: Sequence[TextFile], columns: Sequence[KeyColumn], options: Mapping[str, str] | None
) -> Keys:
    """Keys in CSV or JSON lines.

    Raises
    ------
    UsageError : a column does not exist, a line is not a record, or a text is not an exact value of the column's type.
        The error names file and line, never the text.
    StorageError : a file can't be read.
    """
    return _keys(_staged_files(session, files, columns, options), columns, files)


def rows_of_files(
    session: SparkSession,
    files: Sequence[TextFile],
    kinds: Callable[[Sequence[str]], Mapping[str, pa.DataType]],
    options: Mapping[str, str] | None,
) -> tuple[DataFrame, DataFrame, int]:
    """All columns of CSV or JSON lines, what is cached of them, and the number of rows.

    kinds : returns the known types for given column names. Other columns are text, or booleans if JSON has only these.

    Raises as :func:`keys_of_files`.
    """
    from pyspark.sql import functions as f

    from dv_maintenance.storage import Storage

    names: dict[str, bool] = {}
    for file in files:
        try:
            found = columns_of(file, Storage(file.uri, options))
        except FaultError as error:
            raise _refused(1, file.name, error.line, error.reason) from None
        names |= {name: flag and names.get(name, True) for name, flag in found.items()}
    known = kinds([*names])
    columns = [
        KeyColumn(name, known.get(name, pa.bool_() if flag else pa.string()), free=name not in known and not flag)
        for name, flag in names.items()
    ]
    with spark_errors():
        staged = cached(_staged_files(session, files, columns, options, optional=True))
        fault = f.col("fault").isNotNull()
        try:
            found_ = staged.agg(
                f.count("*").alias("rows"),
                f.count(f.when(fault, 1)).alias("faults"),
                f.min(f.when(fault, f.struct("file", "line", "fault"))).alias("first"),
            ).collect()[0]
            if found_.faults:
                first = found_.first
                raise _refused(found_.faults, files[first.file].name, first.line, first.fault)
        except BaseException:
            staged.unpersist()
            raise
        named = [f.col(f"key{at}").alias(column.name) for at, column in enumerate(columns)]
        return staged.select(*named), staged, found_.rows


def _staged_files(
    session: SparkSession,
    files: Sequence[TextFile],
    columns: Sequence[KeyColumn],
    options: Mapping[str, str] | None,
    *,
    optional: bool = False,
) -> DataFrame:
    for column in columns:
        for form, converter in _CONVERTERS.items():
            if converter(column.kind, column.char) is None and any(file.form == form for file in files):
                raise UsageError(f"column {column} has a type whose values have no text form", next_step=_TYPES_DIFFER)
    tasks = pa.table({"file": pa.array(range(len(files)), pa.int32())})
    worker = in_workers(texts_of_files, tuple(files), tuple(columns), dict(options or {}), optional)
    with spark_errors():
        staged = rows_of(session, tasks).mapInArrow(worker, _staged(columns))
    for at, column in enumerate(columns):
        if column.is_instant:
            staged = _instants(staged, at, column)
    return staged


def _named(name: str, names: Sequence[str]) -> str:
    found = alike(name, names)
    if len(found) != 1:
        problem = "more than one column" if found else "no column"
        raise UsageError(f"the keys have {problem} named {name!r}", next_step="name a column of the keys and the table")
    return found[0]


# -- types ---------------------------------------------------------------------------------------------------------


def _spark_types(columns: Sequence[KeyColumn]) -> StructType:
    from pyspark.sql.pandas.types import from_arrow_schema

    known = spark_schema(pa.schema([(f"key{at}", column.kind) for at, column in enumerate(columns)]))
    return from_arrow_schema(known, prefer_timestamp_ntz=True)


def _staged(columns: Sequence[KeyColumn]) -> StructType:
    """The schema of staged keys: instants as the local times that were given, then the fault and its location."""
    from pyspark.sql.types import IntegerType, LongType, StringType, StructType, TimestampNTZType

    staged = StructType(_spark_types(columns).fields)
    for at, column in enumerate(columns):
        if column.is_instant:
            staged = staged.add(f"local{at}", TimestampNTZType())
    return staged.add("fault", StringType()).add("file", IntegerType()).add("line", LongType())


def _shape(kind: DataType) -> str:
    """A type without its nullability."""
    return re.sub(r'"(nullable|containsNull|valueContainsNull)":false', r'"\1":true', kind.json())


def _convertible(column: KeyColumn, have: DataType) -> pa.DataType:
    from pyspark.errors import PySparkException
    from pyspark.sql.pandas.types import to_arrow_type

    try:
        source = to_arrow_type(have)
    except (PySparkException, ValueError):
        source = None
    if source is None or from_typed(source, column.kind, column.char) is None:
        raise UsageError(
            f"keys of type {have.simpleString()} have no exact values in column {column}", next_step=_TYPES_DIFFER
        )
    return source


# -- in the workers ------------------------------------------------------------------------------------------------


def typed_batches(
    batches: Iterable[pa.RecordBatch], columns: Sequence[KeyColumn], sources: Sequence[pa.DataType | None]
) -> Iterator[pa.RecordBatch]:
    """Keys of other types as staged keys; keys without a source type are used unchanged."""
    return (typed_batch(batch, columns, sources) for batch in batches)


def typed_batch(
    batch: pa.RecordBatch, columns: Sequence[KeyColumn], sources: Sequence[pa.DataType | None]
) -> pa.RecordBatch:
    """See :func:`typed_batches`."""
    staging = _Staging(columns)
    converters = [
        None if source is None else from_typed(source, column.kind, column.char)
        for column, source in zip(columns, sources, strict=True)
    ]
    pending = [None if each is None else batch.column(at).to_pylist() for at, each in enumerate(converters)]
    for row in range(batch.num_rows):
        staging.add([None if column is None else column[row] for column in pending], converters, -1, 0)
    ready = {at: batch.column(at) for at, each in enumerate(converters) if each is None}
    return staging.batch(ready)


def texts_of_files(
    batches: Iterable[pa.RecordBatch],
    files: Sequence[TextFile],
    columns: Sequence[KeyColumn],
    options: Mapping[str, str],
    optional: bool,
) -> Iterator[pa.RecordBatch]:
    """:func:`text_batches` of the files with the numbers in column ``file``."""
    for batch in batches:
        for file in batch.column("file").to_pylist():
            yield from text_batches(file, files[file], columns, options, optional=optional)


def text_batches(
    number: int,
    file: TextFile,
    columns: Sequence[KeyColumn],
    options: Mapping[str, str],
    *,
    optional: bool = False,
) -> Iterator[pa.RecordBatch]:
    """Keys of a file as staged keys, up to the first invalid record. ``optional``: see ``text_files.records``."""
    from dv_maintenance.storage import Storage

    make = _CONVERTERS[file.form]
    converters = [as_text if column.free else make(column.kind, column.char) for column in columns]
    names = [column.name for column in columns]
    pending: list[tuple[int, list[Any]]] = []
    found: FaultError | None = None
    try:
        for record in records(file, Storage(file.uri, options), names, optional=optional):
            pending.append(record)
            if len(pending) >= _BATCH:
                yield _text_batch(number, pending, columns, converters)
                pending = []
    except FaultError as fault:
        found = fault
    yield _text_batch(number, pending, columns, converters)
    if found is not None:
        staging = _Staging(columns)
        staging.fault(found.reason, number, found.line)
        yield staging.batch({})


def _text_batch(
    file: int,
    pending: Sequence[tuple[int, list[Any]]],
    columns: Sequence[KeyColumn],
    converters: Sequence[Converter | None],
) -> pa.RecordBatch:
    """Convert values one by one only if the column can't be converted at once, which is several times faster."""
    staging = _Staging(columns)
    ready: dict[int, pa.Array] = {}
    for at, column in enumerate(columns):
        bulk = None if column.free else in_bulk(column.kind, [values[at] for _, values in pending], column.char)
        if bulk is None:
            break
        ready[at] = bulk
    if len(ready) == len(columns):
        rows = len(pending)
        staging.faults, staging.files, staging.lines = [None] * rows, [file] * rows, [line for line, _ in pending]
        return staging.batch(ready)
    for line, values in pending:
        staging.add(values, converters, file, line)
    return staging.batch({})


@dataclass(slots=True)
class _Staging:
    """A batch under construction. No value of a faulty key is kept: all faulty keys become one group."""

    columns: Sequence[KeyColumn]
    values: list[list[Any]] = field(default_factory=list)
    faults: list[str | None] = field(default_factory=list)
    files: list[int] = field(default_factory=list)
    lines: list[int] = field(default_factory=list)

    def add(self, values: Sequence[Any], converters: Sequence[Converter | None], file: int, line: int) -> None:
        exact = []
        for at, (value, convert) in enumerate(zip(values, converters, strict=True)):
            try:
                exact.append(value if value is None or convert is None else convert(value))
            except INEXACT:
                self.fault(f"no exact value for column {self.columns[at]}", file, line)
                return
        self.values.append(exact)
        self._place(None, file, line)

    def fault(self, reason: str, file: int, line: int) -> None:
        self.values.append([None] * len(self.columns))
        self._place(reason, file, line)

    def _place(self, fault: str | None, file: int, line: int) -> None:
        self.faults.append(fault)
        self.files.append(file)
        self.lines.append(line)

    def batch(self, ready: Mapping[int, pa.Array]) -> pa.RecordBatch:
        """``ready``: finished columns, by number."""
        arrays, names = [], []
        local: dict[str, pa.Array] = {}
        for at, column in enumerate(self.columns):
            values = [each[at] for each in self.values]
            if column.is_instant and at not in ready:
                without = [value if value is not None and value.tzinfo is None else None for value in values]
                values = [None if value is None or value.tzinfo is None else value for value in values]
                local[f"local{at}"] = pa.array(without, pa.timestamp("us"))
            elif column.is_instant:
                local[f"local{at}"] = pa.nulls(len(values), pa.timestamp("us"))
            kind = spark_schema(pa.schema([("key", column.kind)])).field(0).type
            arrays.append(ready[at] if at in ready else pa.array(values, kind))
            names.append(f"key{at}")
        places = [
            pa.array(self.faults, pa.string()),
            pa.array(self.files, pa.int32()),
            pa.array(self.lines, pa.int64()),
        ]
        return pa.RecordBatch.from_arrays(
            [*arrays, *local.values(), *places], names=[*names, *local, "fault", "file", "line"]
        )


# -- distinct and counted --------------------------------------------------------------------------------------------


def _keys(staged: DataFrame, columns: Sequence[KeyColumn], files: Sequence[TextFile]) -> Keys:
    """One pass over the list: grouping counts the keys and makes them distinct."""
    from pyspark.sql import functions as f

    names = [f"key{at}" for at in range(len(columns))]
    fault = f.col("fault").isNotNull()
    null = ~fault & f.expr(" OR ".join(f"{name} IS NULL" for name in names))
    with spark_errors():
        groups = cached(
            staged.groupBy(*names, "fault").agg(
                f.count("*").alias("times"), f.min(f.struct("file", "line")).alias("place")
            )
        )
        try:
            found = groups.agg(
                f.coalesce(f.sum("times"), f.lit(0)).alias("given"),
                f.coalesce(f.sum(f.when(null, f.col("times"))), f.lit(0)).alias("null"),
                f.count(f.when(~fault & ~null, 1)).alias("distinct"),
                f.coalesce(f.sum(f.when(fault, f.col("times"))), f.lit(0)).alias("faults"),
                f.min(f.when(fault, f.struct("place", "fault"))).alias("first"),
            ).collect()[0]
            if found.faults:
                place = found.first.place
                name = "" if place.file < 0 else files[place.file].name
                raise _refused(found.faults, name, place.line, found.first.fault)
        except BaseException:
            groups.unpersist()
            raise
        rows = groups.where(~fault & ~null).select(*names)
    return Keys(rows, KeyCounts(found.given, found.null, found.distinct), groups)


def _refused(count: int, file: str, line: int, reason: str) -> UsageError:
    where = ", ".join([*([file] if file else []), *([f"line {line}"] if line else [])])
    more = f" (and {count - 1:,} more)" if count > 1 else ""
    return UsageError(f"{where}: {reason}{more}" if where else f"keys: {reason}{more}", next_step=_FORMS)


def _instants(staged: DataFrame, at: int, column: KeyColumn) -> DataFrame:
    """Local times as instants in the session's zone, by Spark's own rules. When clocks were put forward or back, a
    local time has no instant or two: neither is exact.
    """
    from pyspark.sql import functions as f

    def beside(days: int) -> str:
        return f"CAST(timestamp_micros(unix_micros({instant}) + {days * _DAY}L) AS TIMESTAMP_NTZ)"

    local = f"local{at}"
    instant = f"CAST({local} AS TIMESTAMP_LTZ)"
    # The same local time by the offset of the next day, where that differs.
    other = f"({instant} + (({beside(-1)} + {_TWO_DAYS}) - {beside(1)}))"
    is_one = (
        f"CAST({instant} AS TIMESTAMP_NTZ) = {local} AND "
        f"({other} = {instant} OR CAST({other} AS TIMESTAMP_NTZ) <> {local})"
    )
    fault = f.lit(f"no exact value for column {column}: the local time has no instant in the session's zone, or two")
    return staged.withColumns(
        {
            f"key{at}": f.expr(f"coalesce(key{at}, CASE WHEN {is_one} THEN {instant} END)"),
            "fault": f.when(f.expr(f"NOT ({is_one})"), fault).otherwise(f.col("fault")),
        }
    )
