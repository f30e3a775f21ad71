"""The deep check: every data file's footer, every deletion vector's bytes, and values of NOT NULL columns."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from collections.abc import Set as AbstractSet
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from dv_maintenance.engine.missing_values import check_values
from dv_maintenance.engine.row_counts import count_rows, counted
from dv_maintenance.engine.rows.required import Required
from dv_maintenance.engine.scan import open_source
from dv_maintenance.errors import DamagedDeletionVectorError, DamagedTableError, MissingValueError, RefusedError
from dv_maintenance.maintenance.fsck.faults import ARROW, CONTENT, COUNT, MISSING, NULLS, ROWS, SIZE, Fault
from dv_maintenance.tables.capabilities import RecountableTable
from dv_maintenance.tables.dv_codecs import load
from dv_maintenance.tables.fsck import DATA, DV, WAITING
from dv_maintenance.units import count

if TYPE_CHECKING:
    from dv_maintenance.tables.fsck import FsckTable
    from dv_maintenance.tables.model import Snapshot
    from dv_maintenance.tables.work import DvRef, ScanTask, SourceFile

_THREADS: Final = 16
_AT_ONCE: Final = 1024  # sources in memory

Step = Callable[[int], None]


@dataclass(slots=True)
class Read:
    """What was read.

    footers, dvs : how many.
    unread : data files in formats that this package does not read.
    miscounted : whole files whose row count in the log, a mere statistic, is wrong: path, footer's, log's.
    columns : rows in ``Snapshot.files``, by what ``row_counts.Counted`` says of the files' columns.
    """

    footers: int = 0
    dvs: int = 0
    unread: int = 0
    faults: list[Fault] = field(default_factory=list)
    miscounted: list[tuple[str, int, int]] = field(default_factory=list)
    columns: dict[str, list[int]] = field(default_factory=dict)


def read(
    table: FsckTable, snapshot: Snapshot, needed: pa.Table, known: Collection[str], step: Step | None = None
) -> Read:
    """Read every data file's footer and every DV of a snapshot.

    needed : schema ``tables.fsck.NEEDED``.
    known : URIs of files with faults, which are not read.
    step : called with how many files were read.
    """
    found, done = Read(), 0
    rows = _rows_of(needed)
    sources = iter(table.stored_sources(snapshot))
    with ThreadPoolExecutor(_THREADS) as pool:
        while chunk := list(islice(sources, _AT_ONCE)):
            for each in pool.map(lambda source: _read(table, source, known, rows), chunk):
                found.footers += each.footers
                found.dvs += each.dvs
                found.unread += each.unread
                found.faults += each.faults
                found.miscounted += each.miscounted
                for columns, rows_of in each.columns.items():
                    found.columns.setdefault(columns, []).extend(rows_of)
            done += len(chunk)
            if step is not None:
                step(done)
        found.faults += filter(None, (_unfit(table, snapshot, each) for each in found.columns.values()))
        found.faults += _without_values(table, snapshot, {*known, *_uris(table, found.faults)}, pool)
    return found


def _uris(table: FsckTable, faults: Sequence[Fault]) -> Iterator[str]:
    return (table.storage.uri_of(fault.path) for fault in faults)


def _without_values(
    table: FsckTable, snapshot: Snapshot, known: AbstractSet[str], pool: ThreadPoolExecutor
) -> list[Fault]:
    """Files that lack values in NOT NULL columns. Rows of a table that may not be read are not looked at."""
    required = Required.of(snapshot.schema)
    if required is None:
        return []

    def found(row: int, task: ScanTask) -> Fault | None:
        (source,) = task.sources
        if not known.isdisjoint(filter(None, (source.uri, source.dv and source.dv.uri))):
            return None
        path = table.storage.path_of_uri(source.uri)
        try:
            check_values(task, table.storage.options)
        except MissingValueError as missing:
            reason = missing.message.replace(source.uri, "the file")
            return Fault(path, DATA, NULLS, reason, (row,), missing.command)
        except DamagedTableError as damage:
            return Fault(path, DATA, _kind_of(damage), damage.message.replace(source.uri, "it"), (row,))
        except RefusedError:
            return None
        return None

    faults: list[Fault] = []
    for first in range(0, snapshot.files.num_rows, _AT_ONCE):
        part = replace(snapshot, files=snapshot.files.slice(first, _AT_ONCE))
        try:
            tasks = table.scan_tasks(part, required.names)
        except RefusedError:
            return []
        faults += filter(None, pool.map(found, range(first, first + len(tasks)), tasks))
    return faults


def _rows_of(needed: pa.Table) -> dict[str, tuple[str, int | None]]:
    """Kind, and row in ``Snapshot.files``, of each data file by its path."""
    columns = (needed[name].to_pylist() for name in ("path", "kind", "file"))
    return {path: (kind, row) for path, kind, row in zip(*columns, strict=True) if kind in (DATA, WAITING)}


def _read(
    table: FsckTable, source: SourceFile, known: Collection[str], rows: dict[str, tuple[str, int | None]]
) -> Read:
    found = Read(dvs=int(source.dv is not None))
    path = table.storage.path_of_uri(source.uri)
    kind, row = rows.get(path, (DATA, None))
    own = () if row is None else (row,)
    count = None
    if source.uri not in known:
        try:
            said = counted(source, table.storage)
        except DamagedTableError as damage:
            reason = damage.message.replace(source.uri, "it").replace(f"data file {path}", "it")
            found.faults.append(Fault(path, kind, _kind_of(damage), reason, own))
        else:
            count = said.rows
            found.footers, found.unread = int(count is not None), int(count is None)
            if said.columns is not None and kind == DATA and row is not None:
                found.columns[said.columns] = [row]
            if said.arrow_fails:
                found.faults.append(Fault(path, kind, ARROW, "the Arrow schema in its footer is damaged", own))
    rows_of = count if source.rows is None else source.rows
    if count is not None and rows_of is not None and count != rows_of:
        if source.exact_rows:
            found.columns.clear()  # it can't be opened, whatever its columns
            reason = f"its footer counts {count:,} rows, the log says {rows_of:,}"
            found.faults.append(Fault(path, kind, ROWS, reason, own))
        else:
            found.miscounted.append((path, count, rows_of))
            rows_of = count
    found.faults += _read_dv(table, source, rows_of, known, own)
    return found


def _read_dv(
    table: FsckTable, source: SourceFile, rows: int | None, known: Collection[str], own: tuple[int, ...]
) -> Iterator[Fault]:
    dv = source.dv
    if dv is None:
        return
    # An inline DV is in the log: the data file stands for it.
    path = table.storage.path_of_uri(dv.uri or source.uri)
    if dv.uri in known:
        return
    try:
        load(dv, table.storage.get_range, rows=rows)
    except DamagedDeletionVectorError as damage:
        place = "its inline deletion vector" if dv.uri is None else "its deletion vector"
        at = f" at offset {dv.offset}" if dv.offset else ""
        kind, reason = _kind_of(damage), damage.reason
        if isinstance(table, RecountableTable) and _decodes(table, dv, rows):
            kind, reason = COUNT, f"{reason}; otherwise it is whole"
        yield Fault(path, DV, kind, f"{place}{at}: {reason}", own)


def _unfit(table: FsckTable, snapshot: Snapshot, rows: Sequence[int]) -> Fault | None:
    """Files with the same columns, if they can't be read as the table's."""
    source = None
    try:
        (task,) = table.scan_tasks(replace(snapshot, files=snapshot.files.slice(rows[0], 1)))
        (source,) = task.sources
        with open_source(source, task, table.storage):
            return None
    except (DamagedDeletionVectorError, MissingValueError, RefusedError):
        return None  # found elsewhere, or it does not concern the columns
    except DamagedTableError as damage:
        if source is None:
            return None  # not of this file: the log's faults have it
        path = table.storage.path_of_uri(source.uri)
        others = f" (and {count(len(rows) - 1, 'more file')})" if len(rows) > 1 else ""
        return Fault(path, DATA, CONTENT, damage.message.replace(source.uri, "the file") + others, tuple(rows))


def _decodes(table: FsckTable, dv: DvRef, rows: int | None) -> bool:
    """Whether nothing but the cardinality in the log contradicts a DV."""
    try:
        load(dv, table.storage.get_range, rows=rows, counted=False)
    except DamagedDeletionVectorError:
        return False
    return True


def recounted(table: FsckTable, snapshot: Snapshot, faults: Sequence[Fault]) -> list[Fault]:
    """The faults, in which a whole data file whose size in the log is wrong is called that."""
    found = []
    for fault in faults:
        if fault.fault == SIZE and fault.kind == DATA and len(fault.files) == 1 and isinstance(table, RecountableTable):
            (source,) = table.stored_sources(replace(snapshot, files=snapshot.files.slice(fault.files[0], 1)))
            if source.rows is not None and _whole(table, source):
                reason = f"{fault.reason}; its footer is whole and counts the {source.rows:,} rows of the log"
                fault = replace(fault, fault=COUNT, reason=reason)
        found.append(fault)
    return found


def _whole(table: FsckTable, source: SourceFile) -> bool:
    try:
        return count_rows(source, table.storage) == source.rows
    except (DamagedTableError, RefusedError):
        return False


def _kind_of(damage: DamagedTableError) -> str:
    return MISSING if isinstance(damage.__cause__, FileNotFoundError) else CONTENT
