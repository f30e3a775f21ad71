"""Turn a folder of Parquet files into a table: a log is written next to the files, which stay in place."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote

import pyarrow as pa

from dv_maintenance.errors import DamagedTableError, DvMaintenanceError, RefusedError, StorageError, UsageError
from dv_maintenance.maintenance.united_columns import united_columns
from dv_maintenance.remedies import Remedy, setting
from dv_maintenance.report import Report
from dv_maintenance.tables.capabilities import AdoptingTable
from dv_maintenance.tables.gates import check_committable
from dv_maintenance.tables.model import NULL_PARTITION, FileKey, partition_name
from dv_maintenance.tables.nested import NestedTables, table_around
from dv_maintenance.tables.registry import title_of
from dv_maintenance.tables.rows import AddedFile
from dv_maintenance.tables.work import RewriteTask, ScanTask, SourceFile

if TYPE_CHECKING:
    from dv_maintenance.storage import Storage
    from dv_maintenance.tables.table import Table
    from dv_maintenance.tables.work import OutputFile, RewriteResult

_THREADS: Final = 16
_SUFFIX: Final = ".parquet"
_SHOWN: Final = 3
_WHOLE: Final = 1 << 62
"""Target bytes of a new file: one for each old one."""


@dataclass(frozen=True, slots=True, repr=False)
class ConvertReport(Report):
    """The result of a conversion.

    converted : false under ``dry_run``, and if the folder was a table already. In the latter case ``version`` is its
        newest version and the other fields are empty.
    rewritten : number of files that were written again.
    ignored : number of visible files that are not Parquet files.
    """

    converted: bool
    version: int | None
    files: int = 0
    rows: int = 0
    bytes: int = 0
    rewritten: int = 0
    ignored: int = 0
    columns: tuple[str, ...] = ()
    partition_columns: tuple[str, ...] = ()


def convert(
    table: Table,
    partition_types: Mapping[str, pa.DataType] | None = None,
    *,
    rewrite: bool = False,
    dry_run: bool = False,
) -> ConvertReport:
    """Turn the Parquet files at ``table``'s location into a table.

    partition_types : the type of each column that the folders (``column=value``) name, in any order; folder names do
        not contain types.

    rewrite : write files that not every reader reads with the others again, next to the originals, in this process.

    A column that a file lacks reads as null in it. Hidden files and folders (``_`` or ``.`` in front) are left out.
    Reads every footer, but no data, except of the files that are rewritten.

    Raises
    ------
    RefusedError : the format has no conversion, the files contradict each other, they have columns that a table can't
        hold, some would have to be rewritten (or have values that do not fit when they are), one is not a Parquet
        file, or a folder with files is a link; nothing was written.
    UsageError : there are no files, or the partition columns differ from those of the folders.
    StorageError : the storage failed.
    """
    from dv_maintenance.engine.parquet.schema import describe

    if not isinstance(table, AdoptingTable):
        raise RefusedError(
            f"converting files to {title_of(table.format)} tables is not supported",
            table=table.uri,
            next_step="use the engine of the table",
        )
    if (newest := table.adopted()) is not None:
        return ConvertReport(table=table.uri, format=table.format, converted=False, version=newest)
    check_committable(table, dry_run=dry_run)
    if (around := table_around(table.storage)) is not None:
        raise RefusedError(
            f"it is a part of the {around.title} table at {around.place}",
            table=table.uri,
            next_step=f"read it as {around.title}, and write its rows to another folder",
        )
    paths, ignored = _find(table.storage, table.format)
    order = _partition_order(table, paths)
    types = _declared(table, order, partition_types or {})
    try:
        with ThreadPoolExecutor(_THREADS) as pool:
            described = list(pool.map(lambda path: describe(table.storage, path), paths))
    except DamagedTableError as error:  # there is no table yet
        raise RefusedError(
            error.message,
            table=table.uri,
            next_step="take the file out of the folder, or put _ in front of its name, and convert the others",
        ) from error
    united = united_columns(table.uri, described, order)
    schema = pa.schema([*united.fields, *(pa.field(name, kind) for name, kind in types.items())])
    files = [
        AddedFile(file, partition_name(dict(_values(path)))) for path, (_, file) in zip(paths, described, strict=True)
    ]
    if not rewrite:
        _check_fit(table, paths, united.unfit)
    written = _Rewrite(table, pa.schema(united.fields))
    with _discarded_unless_adopted(written):
        ready = files if dry_run else written.run(files, paths, united.unfit)
        version = table.adopt(schema, order, ready, dry_run=dry_run)
    if version is None:
        written.discard()
        return ConvertReport(table=table.uri, format=table.format, converted=False, version=table.version())
    return ConvertReport(
        table=table.uri,
        format=table.format,
        converted=not dry_run,
        version=None if dry_run else version,
        files=len(files),
        rows=sum(file.output.rows for file in files),
        bytes=sum(file.output.size for file in files),
        rewritten=len(united.unfit),
        ignored=ignored,
        columns=tuple(schema.names),
        partition_columns=tuple(order),
    )


# -- files ---------------------------------------------------------------------------------------------------------


def _find(storage: Storage, own: str) -> tuple[list[str], int]:
    """Visible Parquet files, sorted, and the number of other visible files."""
    tables = NestedTables(own)

    def hidden(path: str, is_dir: bool) -> bool:
        if is_dir:
            tables.see_folder(path)
        name = path.rsplit("/", 1)[-1]
        return name[0] in "_." and "=" not in name

    visible = sorted(info.path for info in storage.walk(skip=hidden))
    for path in visible:
        tables.see_file_below(path)
    for folder, title in tables.titles.items():
        raise RefusedError(
            f"{folder or 'it'} holds a table of {title}, whose files are not all rows of it: some are deleted, or old",
            table=storage.uri,
            next_step=f"read it as {title}, and write its rows to another folder; or convert folders without tables",
        )
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
    given = f"types are given for {', '.join(types)}" if types else "no types are given"
    raise UsageError(
        f"the folders are partitioned by {', '.join(order) or 'nothing'}, but {given}",
        table=table.uri,
        next_step=Remedy("give their types: {}", (setting("partition_types", f'"{wanted}"'),))
        if order
        else Remedy("leave {} out", (setting("partition_types"),)),
    )


# -- files that not every reader reads as the others ---------------------------------------------------------------


def _check_fit(table: Table, paths: Sequence[str], unfit: Mapping[int, str]) -> None:
    if not unfit:
        return
    shown = "; ".join(f"{paths[at]}: {why}" for at, why in list(unfit.items())[:_SHOWN])
    more = f"; and {len(unfit) - _SHOWN} more" if len(unfit) > _SHOWN else ""
    raise RefusedError(
        f"not every reader would read {len(unfit)} of {len(paths)} files ({shown}{more})",
        table=table.uri,
        next_step=Remedy(
            "with {} such files are written again, next to the originals, with the table's columns",
            (setting("rewrite", True),),
        ),
    )


class _Rewrite:
    """Copies of the unfit files with the columns of ``schema``, by the index of the file."""

    def __init__(self, table: Table, schema: pa.Schema) -> None:
        self._table, self._schema = table, schema
        self._done: dict[int, tuple[OutputFile, ...]] = {}

    def run(self, files: Sequence[AddedFile], paths: Sequence[str], unfit: Collection[int]) -> list[AddedFile]:
        """All files, with the copies instead of the unfit ones.

        Raises
        ------
        RefusedError : a value does not fit its column (a time between two microseconds).
        DamagedTableError, StorageError : a file can't be read, or the storage failed.
        """
        from dv_maintenance.engine.local import LocalEngine

        def done(result: RewriteResult) -> None:
            self._done[int(result.task_id)] = result.outputs

        tasks = [self._task(at, files[at].output, paths[at]) for at in unfit]
        try:
            LocalEngine().run(tasks, storage_options=self._table.storage.options, on_done=done)
        except DamagedTableError as error:
            if "cannot be read as" not in error.message:
                raise
            raise RefusedError(
                error.message, table=self._table.uri, next_step="write this file again with values that fit"
            ) from error
        return [
            AddedFile(output, file.partition)
            for at, file in enumerate(files)
            for output in self._done.get(at, (file.output,))
        ]

    def _task(self, at: int, file: OutputFile, path: str) -> RewriteTask:
        from dv_maintenance.engine.parquet.schema import leaves_of

        return RewriteTask(
            str(at),
            ScanTask((SourceFile(FileKey(path, None), file.uri, file.size, file.rows),), self._schema),
            file.uri.rpartition("/")[0],
            _WHOLE,
            stats_columns=tuple(name for name, _, _ in leaves_of(self._schema)),
            compression_required=False,
        )

    def discard(self) -> None:
        storage = self._table.storage
        with suppress(StorageError):
            storage.delete([storage.path_of_uri(each.uri) for outputs in self._done.values() for each in outputs])


@contextmanager
def _discarded_unless_adopted(written: _Rewrite) -> Iterator[None]:
    """Delete the copies if it is certain that no version names them."""
    try:
        yield
    except DvMaintenanceError as error:
        if error.version is None and error.done is None:
            written.discard()
        raise
