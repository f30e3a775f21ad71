"""Check the file of tables before an orchestrator loads it; on request, open every table that it names."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final

from dv_maintenance.errors import DvMaintenanceError
from dv_maintenance.service.inspection import inspect_table
from dv_maintenance.service.outcome import Outcome
from dv_maintenance.service.partitions import check_columns
from dv_maintenance.service.tables_file import WatchConfig
from dv_maintenance.service.text import count
from dv_maintenance.tables import open_table

if TYPE_CHECKING:
    from dv_maintenance.config import Document
    from dv_maintenance.service.tables_file import TableSettings

__all__ = ["check_file"]

_AT_ONCE: Final = 16


def check_file(path: str, *, open_tables: bool = False) -> Outcome:
    """Read every document of a tables file, or of a file of Dagster's component.

    open_tables : also list the folders, open every table, and compare ``partitions`` and ``erase_within`` with it.

    Raises
    ------
    UsageError : names each wrong key of the first wrong document, with the file and the line.
    StorageError : a folder can't be listed; only with ``open_tables``.
    """
    read = WatchConfig.read(path)
    tables = sum(len(config.tables) for config, _ in read)
    folders = sum(len(config.folders) for config, _ in read)
    named = " and ".join(count(number, what) for number, what in ((tables, "table"), (folders, "folder")) if number)
    report: dict[str, Any] = {"file": path, "tables": tables, "folders": folders}
    if not open_tables:
        return Outcome(f"{path}: {named}, no mistakes found. No table was opened.", report=report)
    opened = [row for config, document in read for row in _opened(config, document)]
    problems = tuple(f"{row['name']}: {row['error']}" for row in opened if row["error"])
    found = count(len(opened), "table")
    reason = f"{path}: {named}. {found} opened, {len(problems)} with a problem."
    shown = tuple({key: "" if value is None else value for key, value in row.items()} for row in opened)
    return Outcome(reason, tables={"opened": shown}, problems=problems, report={**report, "opened": opened})


def _opened(config: WatchConfig, document: Document) -> Iterator[dict[str, Any]]:
    located = config.located(document.where)
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        yield from pool.map(_open, (table for _, table in located), (document.where(place) for place, _ in located))


def _open(table: TableSettings, where: str) -> dict[str, Any]:
    row: dict[str, Any] = {"name": table.name, "format": table.format or "", "version": None, "error": None}
    try:
        opened = open_table(table.path, table.format, table.storage_options)
        snapshot = opened.snapshot()
        row |= {"format": opened.format, "version": snapshot.version}
        if table.partitions is not None and snapshot.files.num_rows:
            check_columns(table.partitions, snapshot)
        inspect_table(opened, table.policy, name=table.name, jobs=table.jobs)
    except DvMaintenanceError as error:
        row["error"] = f"{error} ({where})"
    return row
