"""Live rows of a table at any version, through its deletion vectors; to Arrow, Parquet, CSV or JSON lines."""

from __future__ import annotations

import errno
import math
import os
import re
import tempfile
from base64 import b64encode
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import IO, TYPE_CHECKING, Any, Final
from uuid import UUID

import pyarrow as pa

from dv_maintenance.errors import RefusedError, StorageDeniedError, UsageError
from dv_maintenance.tables.model import logical_type
from dv_maintenance.tables.nested import check_outside_tables

if TYPE_CHECKING:
    from dv_maintenance.tables.model import Snapshot
    from dv_maintenance.tables.table import Table

# What readers of CSV would take for structure, or trim.
_QUOTED = re.compile(r'[",\r\n]|^\s|\s$')

OUTPUTS = (".arrow", ".parquet", ".csv", ".jsonl")


def read(
    table: Table, version: int | None = None, columns: Sequence[str] | None = None, limit: int | None = None
) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    """The schema, and the live rows as batches of this schema.

    columns : names in the wanted order; by default all columns of the table, without ``Snapshot.hidden_columns``.
    limit : at most this many rows, chosen arbitrarily; by default all rows.

    Files are opened one by one while the batches are consumed.

    Raises
    ------
    UsageError : the version or a column does not exist, a column is named twice, or the limit is negative.

    Errors of the table for a version, and of the scan for a file, pass through.
    """
    snapshot = table.snapshot(version)
    schema = chosen_schema(snapshot, columns, limit)

    def batches() -> Iterator[pa.RecordBatch]:
        from dv_maintenance.engine.scan import scan
        from dv_maintenance.tables.capabilities import read_tasks

        left = limit
        for task in read_tasks(table, snapshot, columns) if left != 0 else ():
            for batch in scan(task, table.storage.options):
                part = batch if left is None else batch.slice(0, left)
                yield pa.RecordBatch.from_arrays(part.columns, schema=schema)
                left = None if left is None else left - part.num_rows
                if left == 0:
                    return

    return schema, batches()


def chosen_schema(snapshot: Snapshot, columns: Sequence[str] | None, limit: int | None) -> pa.Schema:
    """The schema of the columns that :func:`read` was asked for, whose errors it raises."""
    schema = snapshot.schema
    if limit is not None and limit < 0:
        raise UsageError(f"the limit is negative: {limit}", table=snapshot.table, next_step="give 0 or more")
    if columns is not None:
        fields = {each.name: each for each in (*snapshot.hidden_columns, *schema)}
        unknown = [name for name in columns if name not in fields]
        twice = [name for name, times in Counter(columns).items() if times > 1]
        if unknown or twice or not columns:
            problems = [f"no column {name!r}" for name in unknown] + [f"column {name!r} twice" for name in twice]
            raise UsageError(
                ", ".join(problems) or "no columns are named",
                at=snapshot,
                next_step=f"choose from {', '.join([*schema.names, *snapshot.hidden_columns.names])}",
            )
        schema = pa.schema([fields[name] for name in columns], schema.metadata)
    return schema


_NO_SPACE: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def check_output(output: str | None) -> None:
    """Raise UsageError if :func:`write_rows` can't write such a file; ``None``: no file is written."""
    if output is None:
        return
    if os.path.splitext(output)[1].lower() not in OUTPUTS:
        raise UsageError(f"{output} has an unknown extension", next_step=f"use one of {', '.join(OUTPUTS)}")
    if os.path.isdir(output):
        raise UsageError(f"{output} is a folder", next_step="name a file")
    check_outside_tables(output)


def write_rows(schema: pa.Schema, batches: Iterable[pa.RecordBatch], output: str) -> int:
    """Write a file in the format of its extension, and return the number of rows. It appears whole or not at all.

    ``.jsonl`` has one object per row: decimals as strings, dates and times as ISO 8601 (UTC with ``Z`` where the column
    has a zone), UUIDs as text, other binary as base64, maps as lists of [key, value], NaN and infinities as strings.

    ``.csv`` has the same values (RFC 4180 with a header, but lines end in a line feed): null is empty, an empty text
    ``""``, nested values are JSON.

    Dictionaries are written as their values, which may differ from file to file of a table.

    Raises
    ------
    UsageError : the extension is unknown, or the file can't be written.
    RefusedError : the file format has no type for a column.
    """
    check_output(output)
    extension = os.path.splitext(output)[1].lower()
    try:
        handle, temporary = tempfile.mkstemp(prefix=".", suffix=extension, dir=os.path.dirname(output) or ".")
    except OSError as error:
        raise UsageError(f"cannot write {output}: {error.strerror}", next_step="choose another path") from error
    try:
        with os.fdopen(handle, "wb") as file:
            rows = _WRITERS[extension](schema, batches, file)
        # mkstemp makes private files; a user's file gets the permissions of the umask.
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(temporary, 0o666 & ~umask)
        os.replace(temporary, output)
    except BaseException as error:
        os.unlink(temporary)
        if isinstance(error, OSError) and error.errno in _NO_SPACE:
            raise StorageDeniedError(
                f"cannot write {output}: {error.strerror}", next_step="free some space, or choose another path"
            ) from error
        raise
    return rows


def _write_arrow(schema: pa.Schema, batches: Iterable[pa.RecordBatch], file: IO[bytes]) -> int:
    schema, batches = _plain(schema, batches)
    with pa.ipc.new_file(file, schema) as writer:
        return _write_batches(batches, writer.write_batch)


def _write_parquet(schema: pa.Schema, batches: Iterable[pa.RecordBatch], file: IO[bytes]) -> int:
    from dv_maintenance.engine.parquet.calendars import PROLEPTIC
    from dv_maintenance.engine.parquet.output import ParquetOutput

    schema, batches = _plain(schema, batches)
    try:
        output = ParquetOutput(file, schema)
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid) as error:
        raise RefusedError(
            f"not every column can be written to Parquet: {error}",
            next_step="write a .arrow, .csv or .jsonl file, or choose the columns",
        ) from error
    try:
        rows = _write_batches(batches, lambda batch: output.write([batch]))
    except BaseException:
        with suppress(Exception):  # after a failed row group, Arrow can't close the file either
            output.close()
        raise
    output.close(PROLEPTIC)
    return rows


def _write_batches(batches: Iterable[pa.RecordBatch], write: Callable[[pa.RecordBatch], None]) -> int:
    rows = 0
    for batch in batches:
        write(batch)
        rows += batch.num_rows
    return rows


def _write_jsonl(schema: pa.Schema, batches: Iterable[pa.RecordBatch], file: IO[bytes]) -> int:
    import orjson

    rows = 0
    for values in _json_rows(schema, batches):
        file.write(orjson.dumps(dict(zip(schema.names, values, strict=True))) + b"\n")
        rows += 1
    return rows


def _write_csv(schema: pa.Schema, batches: Iterable[pa.RecordBatch], file: IO[bytes]) -> int:
    rows = 0
    file.write((",".join(_csv_cell(name) for name in schema.names) + "\n").encode())
    for values in _json_rows(schema, batches):
        file.write((",".join(map(_csv_cell, values)) + "\n").encode())
        rows += 1
    return rows


def _csv_cell(value: Any) -> str:
    import orjson

    if value is None:
        return ""
    text = value if isinstance(value, str) else orjson.dumps(value).decode()
    if text and not _QUOTED.search(text):
        return text
    return '"' + text.replace('"', '""') + '"'


def _json_rows(schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[Any, ...]]:
    """The values of each row as JSON has them."""
    schema, batches = _plain(schema, batches)
    types = [(_mapped(field.type, _in_utc), _mapped(field.type, _as_text)) for field in schema]
    forms = [_form(field) for field in schema]
    for batch in batches:
        columns = [
            list(map(form, column.cast(in_utc).cast(as_text).to_pylist()))
            for column, (in_utc, as_text), form in zip(batch.columns, types, forms, strict=True)
        ]
        yield from zip(*columns, strict=True)


def _plain(schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> tuple[pa.Schema, Iterable[pa.RecordBatch]]:
    """The same values without dictionaries: a file holds one dictionary per column, a table may have many. Fields of
    structs are nullable.
    """
    plain = pa.schema([field.with_type(_mapped(field.type, _decoded)) for field in schema], schema.metadata)
    if plain.equals(schema):
        return schema, batches
    return plain, (
        pa.RecordBatch.from_arrays(
            [column.cast(field.type) for column, field in zip(batch.columns, plain, strict=True)], schema=plain
        )
        for batch in batches
    )


def _decoded(type_: pa.DataType) -> pa.DataType:
    return type_.value_type if pa.types.is_dictionary(type_) else type_


_WRITERS = {".arrow": _write_arrow, ".parquet": _write_parquet, ".csv": _write_csv, ".jsonl": _write_jsonl}


def _in_utc(type_: pa.DataType) -> pa.DataType:
    return pa.timestamp(type_.unit, "UTC") if pa.types.is_timestamp(type_) and type_.tz else type_


def _as_text(type_: pa.DataType) -> pa.DataType:
    """Types that Arrow formats: Python's own times reach neither year 0 nor nanoseconds."""
    is_ = pa.types
    if is_.is_date(type_) or is_.is_timestamp(type_) or is_.is_time(type_):
        return pa.string()
    if is_.is_float16(type_):
        return pa.float32()  # otherwise Python gets NumPy's type
    return pa.int64() if is_.is_duration(type_) else type_


def _mapped(type_: pa.DataType, leaf: Callable[[pa.DataType], pa.DataType]) -> pa.DataType:
    """The same nesting with every leaf type replaced. Fields of structs become nullable: where the struct is null, so
    are they, which neither casts nor files allow otherwise.
    """

    def field(inner: pa.Field) -> pa.Field:
        return inner.with_type(_mapped(inner.type, leaf))

    if pa.types.is_struct(type_):
        return pa.struct([field(type_.field(n)).with_nullable(True) for n in range(type_.num_fields)])
    if pa.types.is_map(type_):
        return pa.map_(field(type_.key_field), field(type_.item_field))
    if pa.types.is_list(type_):
        return pa.list_(field(type_.value_field))
    if pa.types.is_large_list(type_):
        return pa.large_list(field(type_.value_field))
    if pa.types.is_fixed_size_list(type_):
        return pa.list_(field(type_.value_field), type_.list_size)
    return leaf(type_)


def _form(field: pa.Field) -> Callable[[Any], Any]:
    """A function from a Python value of that field to a JSON value."""
    type_, is_ = field.type, pa.types
    if logical_type(field) == "uuid":
        return lambda value: None if value is None else str(UUID(bytes=value))
    if is_.is_floating(type_):
        return _float
    if is_.is_timestamp(type_):
        return lambda value: value and value.replace(" ", "T")
    if is_.is_decimal(type_):
        return lambda value: None if value is None else f"{value:f}"
    if is_.is_binary(type_) or is_.is_large_binary(type_) or is_.is_fixed_size_binary(type_):
        return lambda value: None if value is None else b64encode(value).decode()
    if is_.is_struct(type_):
        fields = {each.name: _form(each) for each in map(type_.field, range(type_.num_fields))}
        return lambda value: value and {name: form(value[name]) for name, form in fields.items()}
    if is_.is_map(type_):
        key, item = _form(type_.key_field), _form(type_.item_field)
        return lambda value: value and [[key(k), item(v)] for k, v in value]
    if is_.is_list(type_) or is_.is_large_list(type_) or is_.is_fixed_size_list(type_):
        element = _form(type_.value_field)
        return lambda value: value and [element(each) for each in value]
    return lambda value: value


def _float(value: float | None) -> float | str | None:
    if value is None or math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
