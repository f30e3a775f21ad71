"""Tasks for an engine (scans, rewrites) and their results: plain values that travel to workers as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

import pyarrow as pa

from dv_maintenance.tables.model import FileKey

EXACT_INSTANTS = b"dvm:instants"
"""Metadata key of a ``ScanTask``'s schema. Its presence says that timestamps with a local time zone are in UTC in files
that do not name a zone.
"""

DEFAULT = b"dvm:default"
"""Metadata key of a field, at any level: what it is in files that lack it, as JSON, see ``SourceFile.constants``."""

AVRO_SCHEMA = b"dvm:avro"
"""Metadata key of the schema of a task that writes Avro files: the schema of their records, as JSON. Its fields are the
columns, in their order.
"""

DIGITS = b"dvm:digits"
"""Metadata key of a field of timestamps in files of lines, at any level: how many digits of a second it has."""

NAMES = b"dvm:names"
"""Metadata key of a ``ScanTask``'s schema: names of fields by field id, as JSON, for files that have no ids."""


@dataclass(frozen=True, slots=True)
class DvRef:
    """Where the bytes of a DV are, and what they must decode to.

    ``codec``: a name in ``TableFormat.dv_codecs``. Either ``uri`` (absolute, percent-encoded) with ``offset`` and
    ``size`` as the codec defines them, or ``inline``, the codec's text form.
    """

    codec: str
    cardinality: int
    size: int
    uri: str | None = None
    offset: int | None = None
    inline: str | None = None


@dataclass(frozen=True, slots=True)
class RowDefault:
    """The value of an integer column for rows whose stored value is null, or for a file without the column.

    start : the value, or its first one.
    counts : whether the row's physical position is added to ``start``.
    """

    start: int
    counts: bool = False


@dataclass(frozen=True, slots=True)
class SourceFile:
    """One file to read, without the rows that its DV names.

    uri : of the file; of the first one, if several files hold the rows together.
    size : bytes of the file, or of all these files.
    rows : physical rows according to the log, ``None``: unknown.
    exact_rows : see ``Snapshot``.
    constants : values of columns that the file does not store (partition columns), by output field name, as JSON: null,
        booleans, integers and strings as they are, floats and decimals as strings, dates as days and timestamps as
        microseconds since the epoch, binary as base64.
    row_defaults : what replaces null, by output field name.
    schema : the fields of the task's schema with the metadata that finds them in this file, if the file is older than
        others of the task.
    format : which reader opens it, see ``engine.file_formats``.
    details : what that reader needs besides, as JSON. A file with details is read row by row: no part of it is copied.
        ``only`` and ``without`` filter rows, whatever the format, see ``engine.rows.row_shape``.
    spark_keys : whether the table's readers heed Spark's keys in a Parquet footer, which identify the calendar of dates
        and timestamps.
    """

    key: FileKey
    uri: str
    size: int
    rows: int | None = None
    dv: DvRef | None = None
    constants: Mapping[str, Any] = field(default_factory=dict)
    row_defaults: Mapping[str, RowDefault] = field(default_factory=dict)
    schema: pa.Schema | None = None
    format: str = "parquet"
    details: Mapping[str, Any] = field(default_factory=dict)
    spark_keys: bool = True
    exact_rows: bool = True

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "schema": None if self.schema is None else schema_text(self.schema)}

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> SourceFile:
        typed = {
            "key": FileKey(**body["key"]),
            "dv": DvRef(**body["dv"]) if body["dv"] else None,
            "row_defaults": {name: RowDefault(**value) for name, value in body["row_defaults"].items()},
            "schema": schema_of(body["schema"]) if body["schema"] else None,
        }
        return cls(**{**body, **typed})


@dataclass(frozen=True, slots=True)
class ScanTask:
    """Files with one layout, to be read as batches of ``schema``.

    Fields of ``schema`` are found in a file by Parquet field id (``match_by="id"``, metadata key
    ``PARQUET:field_id``) or by name (``match_by="name"``): the field's metadata ``dvm:source`` if present, else its
    own name. A field with the metadata ``dvm:match`` = ``name`` is always found by name. A missing field reads as null,
    or as its ``DEFAULT``. Files without ids are matched by ``NAMES``, where the schema has them.
    A null in a field that is not nullable, or has the metadata ``REQUIRED``, is damage.
    Narrower file types are widened. Columns that the schema does not name are dropped.
    """

    sources: tuple[SourceFile, ...]
    schema: pa.Schema
    match_by: str = "name"

    def to_json(self) -> dict[str, Any]:
        sources = [source.to_json() for source in self.sources]
        return {"sources": sources, "schema": schema_text(self.schema), "match_by": self.match_by}

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> ScanTask:
        sources = tuple(SourceFile.from_json(source) for source in body["sources"])
        return cls(sources, schema_of(body["schema"]), body["match_by"])


def schema_text(schema: pa.Schema) -> str:
    """For JSON, see :func:`schema_of`."""
    from base64 import b64encode

    return b64encode(schema.serialize().to_pybytes()).decode()


def schema_of(text: str) -> pa.Schema:
    """The schema with this :func:`schema_text`."""
    from base64 import b64decode

    return pa.ipc.read_schema(pa.py_buffer(b64decode(text)))


@dataclass(frozen=True, slots=True)
class RewriteBin:
    """Logical files of one partition that a plan merges into new files.

    order_by : columns (logical names, see ``columns.text_of``) to order the rows by, along a space-filling curve; none:
        rows keep their order.
    """

    id: str
    partition: str
    inputs: tuple[FileKey, ...]
    order_by: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RewriteTask:
    """Read the live rows of the sources, in order, and write them below ``output_uri``. A pure function of storage.

    target_bytes : size at which the writer starts the next file.
    file_rows : rows of each new file, in order, whatever its size; none: ``target_bytes`` decides.
    file_name : template of a new file's name, with ``{uuid}`` (required), ``{task}``, ``{codec}`` and
        ``{number}``, that of the file among those of its task.
    stats_columns : leaf columns, as tuples of field names, whose statistics the result reports.
    order_by : fields of the scan's schema, as paths, see ``RewriteBin``.
    format : of the new files, see ``engine.file_formats``.
    compression : codec of new files, as engines name it.
    compression_required : whether the table or the policy names ``compression``, so that no file may have another one.
        If not, it is only the default: new files get the codec of most of the sources' bytes.
    bytes_have_order : whether the table's readers order bytes as Parquet does, unsigned. If not, columns of bytes get
        no bounds, and no dictionary that readers may take for complete.
    int96_nanoseconds : whether timestamps of nanoseconds are INT96 in Parquet files, as Paimon has them.
    """

    id: str
    scan: ScanTask
    output_uri: str  # folder, absolute, percent-encoded
    target_bytes: int
    compression: str = "snappy"
    stats_columns: tuple[tuple[str, ...], ...] = ()
    order_by: tuple[tuple[str, ...], ...] = ()
    file_name: str = "part-{task}-{uuid}{codec}.parquet"
    format: str = "parquet"
    compression_required: bool = True
    bytes_have_order: bool = True
    int96_nanoseconds: bool = False
    file_rows: tuple[int, ...] = ()

    def to_json(self) -> dict[str, Any]:
        # Not ``asdict``: it would copy all that the scan refers to.
        return {**{each.name: getattr(self, each.name) for each in fields(self)}, "scan": self.scan.to_json()}

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> RewriteTask:
        columns = tuple(tuple(column) for column in body["stats_columns"])
        order_by = tuple(tuple(column) for column in body["order_by"])
        scan = ScanTask.from_json(body["scan"])
        typed = {"scan": scan, "stats_columns": columns, "order_by": order_by, "file_rows": tuple(body["file_rows"])}
        return cls(**{**body, **typed})


@dataclass(frozen=True, slots=True)
class ColumnStats:
    """Bounds of one leaf column of one file.

    ``null_count`` counts null values of the column, a null parent struct included; for a list or map column, null
    lists or maps. ``minimum`` and ``maximum`` are exact and ``None`` where there is no usable bound (all null,
    binary, lists, maps, NaN in floats). JSON values as for ``SourceFile.constants``, floats as numbers.
    """

    column: tuple[str, ...]
    null_count: int
    minimum: Any = None
    maximum: Any = None


@dataclass(frozen=True, slots=True)
class OutputFile:
    """A finished file: ``uri`` (absolute, percent-encoded), ``size`` in bytes, ``rows``, and ``modified`` in epoch
    milliseconds.
    """

    uri: str
    size: int
    rows: int
    modified: int
    stats: tuple[ColumnStats, ...] = ()


@dataclass(frozen=True, slots=True)
class RewriteResult:
    """The result of a rewrite task.

    rows_read : physical rows read.
    rows_purged : rows dropped because a DV names them.
    source_rows : ``rows_read`` per source, in the task's order.
    source_purged : ``rows_purged`` per source, in the task's order.
    details : what one format says besides, as JSON: what its commit needs, and counts for reports.
    """

    task_id: str
    outputs: tuple[OutputFile, ...]
    rows_read: int
    rows_written: int
    rows_purged: int
    bytes_read: int
    seconds: float
    source_rows: tuple[int, ...] = ()
    source_purged: tuple[int, ...] = ()
    details: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> RewriteResult:
        outputs = tuple(
            OutputFile(
                **{
                    **output,
                    "stats": tuple(
                        ColumnStats(**{**stats, "column": tuple(stats["column"])}) for stats in output["stats"]
                    ),
                }
            )
            for output in body["outputs"]
        )
        return cls(
            **{
                **body,
                "outputs": outputs,
                "source_rows": tuple(body["source_rows"]),
                "source_purged": tuple(body["source_purged"]),
            }
        )
