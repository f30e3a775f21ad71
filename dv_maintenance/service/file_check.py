"""Check the file of tables before an orchestrator loads it; on request, open every table that it names."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final

from dv_maintenance.errors import DvMaintenanceError
from dv_maintenance.maintenance.planning.deadlines import erasure_of
from dv_maintenance.service.inspection import inspect_table
from dv_maintenance.service.outcome import Outcome
from dv_maintenance.service.partitions import check_columns
from dv_maintenance.service.tables_file import Entry, WatchConfig
from dv_maintenance.tables.registry import formats, known_format
from dv_maintenance.units import count, format_duration

if TYPE_CHECKING:
    from dv_maintenance.config import Document, Location
    from dv_maintenance.service.tables_file import TableSettings

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
    said = tuple(each for config, document in read for each in remarks(config, document))
    lines = {"warnings": said} if said else {}
    report: dict[str, Any] = {"file": path, "tables": tables, "folders": folders, "warnings": list(said)}
    if not open_tables:
        found = count(len(said), "warning") if said else "no mistakes found"
        return Outcome(f"{path}: {named}, {found}. No table was opened.", lines=lines, report=report)
    opened = [row for config, document in read for row in _opened(config, document)]
    twice = _named_twice(opened)
    said += twice
    lines = {"warnings": said} if said else {}
    problems = tuple(f"{row['name']}: {row['error']}" for row in opened if row["error"])
    found = count(len(opened), "table")
    reason = f"{path}: {named}. {found} opened, {len(problems)} with a problem."
    shown = tuple({key: "" if value is None else value for key, value in row.items()} for row in opened)
    return Outcome(
        reason,
        tables={"opened": shown},
        lines=lines,
        problems=problems,
        report={**report, "warnings": list(said), "opened": opened},
    )


def _named_twice(opened: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """Tables that are listed by two names, such as a path and a name in a catalog: only opened ones show that."""
    names: dict[str, list[str]] = defaultdict(list)
    for row in opened:
        if row["place"]:
            names[row["place"]].append(row["name"])
    return tuple(
        f"{' and '.join(each)} are the same table, at {place}: keep one of them"
        for place, each in names.items()
        if len(each) > 1
    )


def remarks(config: WatchConfig, document: Document) -> list[str]:
    """What is allowed, and probably a mistake, as far as the file alone shows it; each with its line."""
    found = (
        f"{text} ({document.where(_place_of_retention(document, (kind, at)))})"
        for kind, entries in (("tables", config.tables), ("folders", config.folders))
        for at, entry in enumerate(entries)
        for text in _of_retention(entry)
    )
    # Settings of the defaults concern every table, and are said once.
    return list(dict.fromkeys(found))


def _of_retention(entry: Entry) -> Iterator[str]:
    retention, checks, own = entry.policy.retention, entry.policy.checks, known_format(entry.format)
    if retention is None:
        return
    limits = checks.of_retention(None if own is None else own.retention)
    severity = limits.crossed(retention)
    longer = [
        f"{each.title}'s default of {format_duration(each.retention)}"
        for each in (formats() if own is None else [own])
        if each.retention is not None and retention < each.retention
    ]
    # Of a table whose format is not given, only what is short for most of them.
    if longer and (own is not None or severity is not None):
        yield (
            f"retention {format_duration(retention)} is shorter than {' and '.join(longer)}: vacuums are refused, and "
            "the check retention warns, unless the table's own setting is as short"
        )
    limit = None if severity is None else limits.error if severity == "error" else limits.warn
    if limit is not None and (own is not None or "retention" in checks.model_fields_set):
        yield (
            f"retention {format_duration(retention)} is shorter than {format_duration(limit)} "
            f"(checks.retention.{severity}): the check retention never passes"
        )


def _place_of_retention(document: Document, entry: Location) -> Location:
    place: Location = (*entry, "policy", "retention")
    return place if place in document.lines else ("defaults", "policy", "retention")


def _opened(config: WatchConfig, document: Document) -> Iterator[dict[str, Any]]:
    located = config.located(document.where)
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        yield from pool.map(_open, (table for _, table in located), (document.where(place) for place, _ in located))


def _open(table: TableSettings, where: str) -> dict[str, Any]:
    row: dict[str, Any] = {
        "name": table.name,
        "format": table.format or "",
        "version": None,
        "place": "",
        "error": None,
    }
    try:
        opened = table.open()
        snapshot = opened.snapshot()
        row |= {"format": opened.format, "version": snapshot.version, "place": opened.uri}
        if table.partitions is not None and snapshot.files.num_rows:
            check_columns(table.partitions, snapshot)
        inspect_table(opened, table.policy, name=table.name, jobs=table.jobs)
        erasure = erasure_of(opened, snapshot, table.policy)
        row["error"] = None if erasure is None or erasure.problem is None else f"{erasure.problem} ({where})"
    except DvMaintenanceError as error:
        row["error"] = f"{error} ({where})"
    return row
