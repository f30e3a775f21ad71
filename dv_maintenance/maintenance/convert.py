"""Turn a folder of Parquet files into a table: a log is written next to the files, which stay in place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

import pyarrow as pa

from dv_maintenance.errors import RefusedError, UsageError
from dv_maintenance.report import Report
from dv_maintenance.tables.capabilities import AdoptingTable
from dv_maintenance.tables.gates import check_committable
from dv_maintenance.tables.model import NULL_PARTITION, partition_name
from dv_maintenance.tables.rows import AddedFile

if TYPE_CHECKING:
    from dv_maintenance.storage import Storage
    from dv_maintenance.tables.table import Table
    from dv_maintenance.tables.work import OutputFile

__all__ = ["ConvertReport", "convert"]

_THREADS: Final = 16
_SUFFIX: Final = ".parquet"


@dataclass(frozen=True, slots=True, repr=False)
class ConvertReport(Report):
    """The result of a conversion.

    converted : false under ``dry_run``, and if the folder was a table already. In the latter case ``version`` is its
        newest version and the other fields are empty.
    ignored : number of visible files that are not Parquet files.
    """

    table: str
    format: str
    converted: bool
    version: int | None
    files: int = 0
    rows: int = 0
    bytes: int = 0
    ignored: int = 0
    columns: tuple[str, ...] = ()
    partition_columns: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def convert(
    table: Table, partition_types: Mapping[str, pa.DataType] | None = None, *, dry_run: bool = False
) -> ConvertReport:
    """Turn the Parquet files at ``table``'s location into a table.

    partition_types : the type of each column that the folders (``column=value``) name, in any order; folder names do
        not contain types.

    A column that a file lacks reads as null in it. Hidden files and folders (``_`` or ``.`` in front) are left out.
    Reads every footer, but no data.

    Raises
    ------
    RefusedError : the format has no conversion, the files contradict each other, they have columns that a table can't
        hold, or a folder with files is a link; nothing was written.
    UsageError : there are no files, or the partition columns differ from those of the folders.
    DamagedTableError : a file is not a Parquet file.
    StorageError : the storage failed.
    """
    from dv_maintenance.engine.parquet.schema import describe

    if not isinstance(table, AdoptingTable):
        raise RefusedError(f"converting files to {table.format} tables is not supported", table=table.uri)
    if (newest := table.adopted()) is not None:
        return ConvertReport(table.uri, table.format, converted=False, version=newest)
    check_committable(table, dry_run=dry_run)
    paths, ignored = _find(table.storage)
    order = _partition_order(table, paths)
    types = _declared(table, order, partition_types or {})
    with ThreadPoolExecutor(_THREADS) as pool:
        described = list(pool.map(lambda path: describe(table.storage, path), paths))
    columns = _united(table, [(schema, file) for schema, file in described], order)
    schema = pa.schema([*columns, *(pa.field(name, kind) for name, kind in types.items())])
    files = [
        AddedFile(file, partition_name(dict(_values(path)))) for path, (_, file) in zip(paths, described, strict=True)
    ]
    version = table.adopt(schema, order, files, dry_run=dry_run)
    if version is None:
        return ConvertReport(table.uri, table.format, converted=False, version=table.version())
    return ConvertReport(
        table=table.uri,
        format=table.format,
        converted=not dry_run,
        version=None if dry_run else version,
        files=len(files),
        rows=sum(file.output.rows for file in files),
        bytes=sum(file.output.size for file in files),
        ignored=ignored,
        columns=tuple(schema.names),
        partition_columns=tuple(order),
    )


# -- files ---------------------------------------------------------------------------------------------------------


def _find(storage: Storage) -> tuple[list[str], int]:
    """Visible Parquet files, sorted, and the number of other visible files."""

    def hidden(path: str, _is_dir: bool) -> bool:
        name = path.rsplit("/", 1)[-1]
        return name[0] in "_." and "=" not in name

    visible = sorted(info.path for info in storage.walk(skip=hidden))
    found = [path for path in visible if path.endswith(_SUFFIX)]
    for path in visible:
        # Spark reads the files beyond it, and a table must not refer to files outside of its root.
        if not path.endswith(_SUFFIX) and storage.beyond_link(f"{path}/_") and storage.list(path):
            raise RefusedError(
                f"{path} is a link to a folder that holds files",
                table=storage.uri,
                next_step="replace the link with the folder itself, or remove it",
            )
    if not found:
        raise UsageError(
            f"the folder has no {_SUFFIX} files", table=storage.uri, next_step="name the folder that holds them"
        )
    return found, len(visible) - len(found)


def _values(path: str) -> list[tuple[str, str | None]]:
    """Column and value of each folder of the form ``column=value`` on the way to a file."""
    pairs = (part.split("=", 1) for part in path.split("/")[:-1] if "=" in part)
    return [(unquote(name), None if value == NULL_PARTITION else unquote(value)) for name, value in pairs]


def _partition_order(table: Table, paths: Sequence[str]) -> list[str]:
    first, *others = (([name for name, _ in _values(path)], path) for path in paths)
    for order, path in others:
        if order != first[0]:
            raise RefusedError(
                f"{first[1]} is partitioned by {first[0] or 'nothing'}, {path} by {order or 'nothing'}",
                table=table.uri,
                next_step="convert folders of different layouts separately",
            )
    return first[0]


def _declared(table: Table, order: Sequence[str], types: Mapping[str, pa.DataType]) -> dict[str, pa.DataType]:
    if set(order) == set(types) and len(order) == len(set(order)):
        return {name: types[name] for name in order}
    wanted = ", ".join(f"{name} STRING" for name in order)
    raise UsageError(
        f"the folders are partitioned by {', '.join(order) or 'nothing'}, not by {', '.join(types) or 'nothing'}",
        table=table.uri,
        next_step=f'give their types: --partition-by "{wanted}"' if order else "leave --partition-by out",
    )


# -- columns -------------------------------------------------------------------------------------------------------


def _united(
    table: Table, described: Sequence[tuple[pa.Schema, OutputFile]], partitions: Sequence[str]
) -> list[pa.Field]:
    """Columns of all files, in order of first appearance. The folders' value wins over a copy in a file."""
    columns: dict[str, tuple[pa.Field, OutputFile]] = {}
    for schema, file in described:
        if len(set(schema.names)) < len(schema.names):
            raise RefusedError(f"{file.uri} has two columns of the same name", table=table.uri)
        for field in schema:
            if field.name in partitions:
                continue
            known, where = columns.setdefault(field.name, (field, file))
            if known.type != field.type:
                raise RefusedError(
                    f"column {field.name} is {known.type} in {where.uri} and {field.type} in {file.uri}",
                    table=table.uri,
                    next_step="rewrite one of them with the type of the other",
                )
    return [field for field, _ in columns.values()]
