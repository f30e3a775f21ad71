"""Correct the numbers that a table's log has of its files, by their footers and deletion vectors."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from dv_maintenance.engine.row_counts import count_rows
from dv_maintenance.errors import DamagedTableError, RefusedError
from dv_maintenance.remedies import Remedy, run
from dv_maintenance.report import Report
from dv_maintenance.tables.capabilities import FileNumbers, RecountableTable
from dv_maintenance.tables.dv_codecs import load
from dv_maintenance.tables.registry import title_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from dv_maintenance.tables.table import Table
    from dv_maintenance.tables.work import SourceFile

_THREADS: Final = 16


@dataclass(frozen=True, slots=True, repr=False)
class RecountReport(Report):
    """The result of a recount.

    version : the committed version; that before it if nothing was committed.
    files : live data files whose footers were read.
    wrong : files with a wrong row count, size, or number of deleted rows; ``missing``: files without a row count.
    rows_before, rows_after : physical rows of the table by its statistics; files without a count are left out.
    """

    version_before: int
    version: int
    dry_run: bool
    files: int
    wrong: int
    missing: int
    rows_before: int
    rows_after: int


def recount(
    table: Table, *, dry_run: bool = False, on_progress: Callable[[int, int], None] | None = None
) -> RecountReport:
    """Read every data file's footer and deletion vector, and commit the numbers that differ from the log's, or that it
    lacks: rows, bytes and deleted rows.

    The commit repeats the files with new statistics and changes no data. Bounds and numbers of nulls stay. Files that
    another writer changes meanwhile keep what that writer recorded.

    Raises
    ------
    RefusedError : row counts of the format are part of its metadata; fsck reports them if they are wrong.
    DamagedTableError : a file is missing, damaged, or not the one that the log names; nothing was changed.
    ConflictError, StorageError, UnsupportedFeatureError : as ``Table.commit``.
    """
    if not isinstance(table, RecountableTable):
        raise RefusedError(
            f"row counts of {title_of(table.format)} tables are not statistics that can be computed again",
            table=table.uri,
            next_step=Remedy("check the table with {}", (run("fsck", table.uri, deep=True),)),
        )
    snapshot = table.snapshot()
    table.check_writable(snapshot, "rewrite")
    sources = [source for task in table.scan_tasks(snapshot) for source in task.sources]
    counts, done = {}, 0
    with ThreadPoolExecutor(_THREADS) as pool:
        for source, rows in zip(sources, pool.map(lambda each: _counted(table, each), sources), strict=True):
            counts[source.key] = rows
            done += 1
            if on_progress is not None:
                on_progress(done, len(sources))
    new = {source.key: counts[source.key] for source in sources if _logged(source) != counts[source.key]}
    known = [source for source in sources if source.rows is not None]
    version = table.recount(snapshot, new, dry_run=dry_run) if new else None
    return RecountReport(
        table=table.uri,
        format=table.format,
        version_before=snapshot.version,
        version=snapshot.version if version is None or dry_run else version,
        dry_run=dry_run,
        files=len(sources),
        wrong=sum(source.key in new for source in known),
        missing=len(sources) - len(known),
        rows_before=sum(source.rows or 0 for source in known),
        rows_after=sum(each.rows for each in counts.values()),
    )


def _logged(source: SourceFile) -> FileNumbers | None:
    """What the log says of a file; ``None`` if it lacks the row count."""
    if source.rows is None:
        return None
    return FileNumbers(source.rows, source.size, 0 if source.dv is None else source.dv.cardinality)


def _counted(table: Table, source: SourceFile) -> FileNumbers:
    rows = count_rows(source, table.storage)
    found = table.storage.info(table.storage.path_of_uri(source.uri))
    size = -1 if found is None else found.size
    # With another size and another number of rows, it is another file.
    if rows is None or found is None or (size != source.size and rows != source.rows):
        raise DamagedTableError(
            f"{source.uri} is not the file that the log names",
            table=table.uri,
            next_step=Remedy("see {}", (run("fsck", table.uri, deep=True),)),
        )
    if source.dv is None:
        return FileNumbers(rows, size)
    dv = load(source.dv, table.storage.get_range, rows=rows, of=source.uri, counted=False)
    return FileNumbers(rows, size, dv.cardinality)
