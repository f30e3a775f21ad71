"""The live rows of a snapshot as a Spark DataFrame with the position of each row, and positions back from Spark."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from dv_maintenance import errors
from dv_maintenance.dml.caching import lost_rows
from dv_maintenance.dml.carried import carriers
from dv_maintenance.dml.padding import as_in_catalog
from dv_maintenance.dml.spark_types import for_spark, spark_schema
from dv_maintenance.dv import DeletionVector
from dv_maintenance.engine.spark.arrow_table import rows_of
from dv_maintenance.engine.spark.failures import failure_of
from dv_maintenance.engine.spark.workers import in_workers
from dv_maintenance.errors import DvMaintenanceError, RefusedError, UsageError
from dv_maintenance.tables.model import LIMITED, logical_type
from dv_maintenance.tables.rows import unused
from dv_maintenance.tables.work import ScanTask

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from dv_maintenance.tables.predicate import Predicate

_PENDING: Final = 1 << 20  # positions kept as numbers before they are added to a bitmap

_KEYS: Final = -1  # instead of a file's index, for the bitmap of key numbers


@dataclass(frozen=True, slots=True)
class TableRows:
    """Rows of a table in Spark.

    rows : the columns ``file`` and ``row``, then the table's.
    file : name of the column with the index of the row's file among the scanned ones.
    row : name of the column with the row's physical position in the file.
    """

    rows: DataFrame
    file: str
    row: str


def live_rows(
    session: SparkSession,
    tasks: Sequence[ScanTask],
    schema: pa.Schema,
    options: Mapping[str, str] | None,
    predicate: Predicate | None = None,
    *,
    taken: Iterable[str] = (),
    carried: Mapping[str, str] | None = None,
) -> TableRows:
    """The columns of ``schema`` for each live row of the tasks. CHARs are padded as by Spark.

    predicate : a bound predicate; rows for which it is not true may be omitted.
    taken : names that the columns of positions must not have.
    carried : columns that have another name there, see ``carried``.

    A Spark task reads whole files, so that rows are in order. Arrow reads them in the Python workers (see
    ``engine.spark``).

    Raises
    ------
    RefusedError : a column has a type that can't be passed to Spark this way.
    """
    from pyspark.sql.pandas.types import from_arrow_schema
    from pyspark.sql.types import IntegerType, LongType, StructField, StructType

    given = carriers(schema, carried) if carried else schema
    _check_types(given)
    known = spark_schema(given)
    file, row = (unused(name, (*schema.names, *taken)) for name in ("_dvm_file", "_dvm_row"))
    place = [StructField(file, IntegerType(), False), StructField(row, LongType(), False)]
    full = StructType([*place, *from_arrow_schema(known, prefer_timestamp_ntz=True).fields])
    specs = pa.table(
        {
            "file": pa.array(range(len(tasks)), pa.int32()),
            "spec": pa.array([json.dumps(task.to_json()) for task in tasks], pa.string()),
        }
    )
    shape = None if known.equals(schema) else known
    reader = in_workers(rows_of_tasks, dict(options or {}), predicate, shape, (file, row))
    rows = rows_of(session, specs).mapInArrow(reader, full)
    return TableRows(as_in_catalog(rows, schema), file, row)


def some_column(schema: pa.Schema) -> list[str]:
    """A column that is cheap to read, for counting rows; none if there is no such column."""

    def cost(field: pa.Field) -> int:
        flat = pa.types.is_primitive(field.type) and not pa.types.is_time(field.type)
        return field.type.bit_width if flat else 1 << 10

    simple = [field for field in schema if not field.type.num_fields and not pa.types.is_null(field.type)]
    return [min(simple, key=cost).name] if simple else schema.names[:1]


def _check_types(schema: pa.Schema) -> None:
    for field in schema:
        if _is_opaque(field):
            raise RefusedError(
                f"column {field.name} has a type that can't be passed to Spark unchanged",
                next_step="leave it out of the condition, or use the engine that wrote the table",
            )


def _is_opaque(field: pa.Field) -> bool:
    """Whether the Arrow type of the field or of a nested one hides a meaning that Spark does not get to know (such as
    a user-defined type).
    """
    if logical_type(field) in {"uuid", "variant"}:
        return False
    inside = [field.type.field(at) for at in range(field.type.num_fields)]
    marks = {key for key in field.metadata or {} if key.startswith(b"dvm:")}
    return bool(marks - {b"dvm:source", b"dvm:match", LIMITED}) or any(map(_is_opaque, inside))


def rows_of_tasks(
    batches: Iterable[pa.RecordBatch],
    options: Mapping[str, str],
    predicate: Predicate | None,
    schema: pa.Schema | None,
    names: tuple[str, str],
) -> Iterator[pa.RecordBatch]:
    """:func:`numbered_rows` of the tasks in column ``spec``, with the numbers in column ``file``."""
    for batch in batches:
        for file, spec in zip(batch.column("file"), batch.column("spec"), strict=True):
            task = ScanTask.from_json(json.loads(spec.as_py()))
            yield from numbered_rows(file.as_py(), task, options, predicate, schema, names)


def numbered_rows(
    file: int,
    task: ScanTask,
    options: Mapping[str, str],
    predicate: Predicate | None = None,
    schema: pa.Schema | None = None,
    names: tuple[str, str] = ("file", "row"),
) -> Iterator[pa.RecordBatch]:
    """Live rows of the task's only source, preceded by columns with ``file`` and their positions.

    predicate : a bound predicate; row groups in which it can't be true are skipped.
    schema : the task's schema in other types, see ``spark_types``.
    names : names of the two columns.

    Raises
    ------
    DamagedTableError, StorageError : see ``engine.scan.scan``.
    """
    from dv_maintenance.engine.scan import open_source
    from dv_maintenance.storage import Storage

    (source,) = task.sources
    with open_source(source, task, Storage(source.uri, options)) as reader:
        for live in reader.live(predicate=predicate):
            batch = live.batch if schema is None else for_spark(live.batch, schema)
            places = live.positions()
            columns = [_repeated(file, len(places)), places, *batch.columns]
            yield pa.RecordBatch.from_arrays(columns, names=[*names, *batch.schema.names])


def _repeated(value: int, rows: int) -> pa.Array:
    return pa.Array.from_buffers(pa.int32(), rows, [None, pa.py_buffer(np.full(rows, value, np.int32))])


def positions(rows: DataFrame, file: str, row: str, key: str | None = None) -> tuple[dict[int, DeletionVector], int]:
    """Positions by file, and the number of distinct values in column ``key``, which holds the numbers of keys.

    file, row : names of columns as in ``TableRows``.

    There is no shuffle: each Spark task makes one bitmap per file, and the driver unites the bitmaps.
    """
    found: dict[int, DeletionVector] = {}
    with spark_errors():
        picked = rows.select(file, row, *([] if key is None else [key]))
        parts = picked.mapInArrow(in_workers(bitmaps), "file int, positions binary").collect()
    for part in parts:
        found[part.file] = found.get(part.file, DeletionVector.empty()) | DeletionVector.from_portable(
            bytes(part.positions)
        )
    return found, len(found.pop(_KEYS, ()))


def bitmaps(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Positions by file, as one bitmap each; see :func:`positions`."""
    done: dict[int, DeletionVector] = {}
    pending: list[list[Any]] = []

    def unite(file: int, numbers: Any) -> None:
        fresh = DeletionVector.from_positions(numbers)
        done[file] = done[file] | fresh if file in done else fresh

    def settle() -> None:
        files, rows, *keys = map(np.concatenate, zip(*pending, strict=True))
        for file in np.unique(files).tolist():
            unite(file, rows[files == file])
        for numbers in keys:
            unite(_KEYS, numbers)
        pending.clear()

    for batch in batches:
        pending.append([column.to_numpy() for column in batch.columns])
        if sum(len(part[0]) for part in pending) >= _PENDING:
            settle()
    if pending:
        settle()
    for file, dv in done.items():
        yield pa.RecordBatch.from_arrays([_repeated(file, 1), _one(dv.to_portable())], names=["file", "positions"])


def _one(data: bytes) -> pa.Array:
    ends = np.array([0, len(data)], np.int32)
    return pa.Array.from_buffers(pa.binary(), 1, [None, pa.py_buffer(ends), pa.py_buffer(data)])


@contextmanager
def spark_errors(columns: Sequence[str] = ()) -> Iterator[None]:
    """Map Spark's errors: an error of this package raised in a worker keeps its class; an expression that Spark does
    not understand is a UsageError.

    columns : those that an expression may name.
    """
    from py4j.protocol import Py4JError
    from pyspark.errors import AnalysisException, ParseException, PySparkException

    try:
        yield
    except (AnalysisException, ParseException) as error:
        raise _not_understood(str(error), columns) from error
    except (PySparkException, Py4JError) as error:
        raise _known(str(error)) from error


def _not_understood(text: str, columns: Sequence[str]) -> UsageError:
    unknown = re.search(r"\[UNRESOLVED_COLUMN[^\]]*\].*? with name (.+?) cannot be resolved", text)
    if unknown is None or not columns:
        return UsageError(_first_line(text), next_step="see the names and types of the table's columns")
    return no_column(unknown[1].strip("`"), columns)


def no_column(name: str, columns: Sequence[str]) -> UsageError:
    near = get_close_matches(name.lower(), columns, n=1)
    hint = f"did you mean {near[0]}? " if near else ""
    return UsageError(f"no column {name!r} to compare", next_step=f"{hint}choose from {', '.join(columns)}")


def _known(text: str) -> DvMaintenanceError:
    if lost := lost_rows(text):
        return lost
    stopped = re.search(r"\[USER_RAISED_EXCEPTION\] (.*?)(?: SQLSTATE: \w+)?$", text, re.MULTILINE)
    if stopped:
        return RefusedError(stopped[1], next_step="correct the rows, or drop the rule")
    raised = re.findall(r"^dv_maintenance\.errors\.(\w+): (.*)$", text, re.MULTILINE)
    if raised:
        name, message = raised[-1]
        if name in errors.__all__ and not name.startswith("Unsupported"):
            kind: type[DvMaintenanceError] = getattr(errors, name)
            return errors.rebuild_error(
                kind, (message,), {**vars(DvMaintenanceError(message)), "reason": message, "file": None, "offset": None}
            )
    return failure_of(text)


def _first_line(text: str) -> str:
    lines = [line.strip() for line in text.strip().splitlines() if line.strip()]
    return (lines[0] if lines else "no message")[:500]
