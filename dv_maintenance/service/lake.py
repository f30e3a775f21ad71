"""The state of many tables side by side, the worst first.

Tables are inspected in parallel, from their logs alone. A table that can't be read is a row with its error.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final, Literal, get_args

from dv_maintenance.catalogs import is_known
from dv_maintenance.errors import DvMaintenanceError, redacted
from dv_maintenance.maintenance.checks import READABLE, Finding, check_snapshot, readable
from dv_maintenance.maintenance.fsck import FEW
from dv_maintenance.maintenance.health import health
from dv_maintenance.maintenance.planning.policy import Policy
from dv_maintenance.service.inspection import Seen, inspect_table, reads_now
from dv_maintenance.service.tables_file import TableSettings, TablesFolder
from dv_maintenance.storage import absolute_uri
from dv_maintenance.tables.registry import format_called
from dv_maintenance.units import epoch_millis, iso_timestamp

_THREADS: Final = 16

Order = Literal["worst", "dvs", "deleted", "oldest", "small", "expired", "name"]
ORDERS: Final[tuple[Order, ...]] = get_args(Order)


@dataclass(frozen=True, slots=True)
class LakeTable:
    """One table of a scan. ``None`` where the log does not say, or can't be read.

    name : its path below the scanned folder, or its name in the file of tables.
    table : its URI.
    files_with_dv : live files with a deletion vector (DV).
    deleted_ratio : share of the physical rows that are deleted.
    oldest_dv : since when rows have been deleted that are still in live files, epoch milliseconds; ``None`` also
        without DVs.
    oldest_dv_exact : ``False``: they were deleted even earlier.
    small_files : live files below the policy's limit.
    expired_bytes : size of files that a vacuum may delete now.
    expiring_bytes : size of unneeded files that are still inside the retention.
    expiring_from : when the first of them expires, epoch milliseconds.
    due : jobs that are worth starting.
    reasons : why, by job.
    error : why the table can't be read: its log, or files that are missing or damaged. Nothing is due then.
    """

    name: str
    table: str
    format: str | None = None
    version: int | None = None
    files: int | None = None
    size_bytes: int | None = None
    files_with_dv: int | None = None
    deleted_rows: int | None = None
    deleted_ratio: float | None = None
    oldest_dv: int | None = None
    oldest_dv_exact: bool = True
    small_files: int | None = None
    expired_bytes: int | None = None
    expiring_bytes: int | None = None
    expiring_from: int | None = None
    due: tuple[str, ...] = ()
    reasons: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    error: str | None = None

    def to_json(self) -> dict[str, Any]:
        body = asdict(self)
        for moment in ("oldest_dv", "expiring_from"):
            if body[moment] is not None:
                body[moment] = iso_timestamp(body[moment])
        return body


def in_folder(
    place: str, policy: Policy, storage_options: Mapping[str, str], format: str | None = None
) -> tuple[list[TableSettings], list[LakeTable]]:
    """Every table below a folder or prefix, or in a schema of a catalog, and a row with an error for each folder that
    can't be listed.

    format : only tables of this format; ``None``: of any.

    Raises
    ------
    UsageError : there are no tables.
    StorageError : the place itself can't be listed.
    """
    unlisted: list[LakeTable] = []

    def note(folder: str, error: DvMaintenanceError) -> None:
        unlisted.append(LakeTable(folder, absolute_uri(f"{place.rstrip('/')}/{folder}"), error=_said(error)))

    # Options of a command line are literal: `${NAME}` is not expanded in them.
    named = not os.path.exists(place) and is_known(place)
    if not named:
        absolute_uri(place)
    if format is not None:
        format_called(format)
    where = {"schema": place} if named else {"path": place}
    folder = TablesFolder.model_validate({**where, "policy": policy, "format": format})
    folder = folder.model_copy(update={"storage_options": storage_options})
    return folder.find(note), unlisted


def scan(
    tables: Iterable[TableSettings],
    *,
    now: int | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> list[LakeTable]:
    """The state of each table, in the given order; at most 16 are read at a time.

    now : epoch milliseconds.
    on_progress : called with the number of tables done and the number of all.
    """
    entries = list(tables)
    now = epoch_millis(now)
    with ThreadPoolExecutor(_THREADS) as pool:
        rows = [pool.submit(_state_of, each, now) for each in entries]
        try:
            for done, _ in enumerate(as_completed(rows), 1):
                if on_progress is not None:
                    on_progress(done, len(entries))
        except BaseException:
            # Ctrl-C: the pool would read all the other tables before it ends.
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return [each.result() for each in rows]


def as_checked(table: LakeTable, finding: Finding) -> LakeTable:
    """The row of a large table, whose files a scan does not look for, by what its check ``readable`` found there."""
    looked = table.error is not None or (table.files or 0) <= FEW
    concerns = finding.check == READABLE and finding.severity == "error"
    if looked or not concerns or finding.numbers.get("version") != table.version:
        return table
    return replace(table, due=(), reasons={}, error=finding.reason)


def rank(tables: Iterable[LakeTable], order: Order = "worst") -> list[LakeTable]:
    """The tables in an order, the worst first; tables of one rank by name.

    ``worst``: tables that can't be read; then tables with due work; within both by the share of deleted rows, the age
    of the oldest DV and the bytes that a vacuum may delete now. The other orders compare one column; what is unknown
    comes after what is known.
    """
    return sorted(tables, key=lambda each: (*_KEYS[order](each), each.name))


def _worst(table: LakeTable) -> tuple[float, ...]:
    return (
        table.error is None,
        not table.due,
        -(table.deleted_ratio or 0.0),
        *_oldest(table),
        *_most(table.expired_bytes),
    )


def _most(number: float | None) -> tuple[float, ...]:
    return (number is None, -(number or 0.0))


def _oldest(table: LakeTable) -> tuple[float, ...]:
    return (table.oldest_dv is None, table.oldest_dv or 0)


_KEYS: Final[dict[Order, Callable[[LakeTable], tuple[float, ...]]]] = {
    "worst": _worst,
    "dvs": lambda table: _most(table.files_with_dv),
    "deleted": lambda table: _most(table.deleted_ratio),
    "oldest": _oldest,
    "small": lambda table: _most(table.small_files),
    "expired": lambda table: _most(table.expired_bytes),
    "name": lambda _table: (),
}


def _state_of(watched: TableSettings, now: int) -> LakeTable:
    row = LakeTable(watched.name, watched.uri, watched.format)
    try:
        return _read(row, watched, now)
    except (DvMaintenanceError, OSError) as error:
        return replace(row, error=_said(error))


def _read(row: LakeTable, watched: TableSettings, now: int) -> LakeTable:
    table, seen = watched.open(), Seen()
    found = inspect_table(
        table, watched.policy, name=watched.name, jobs=watched.jobs, now=now, reads=reads_now(watched), seen=seen
    )
    snapshot = seen.snapshot or table.snapshot(found.version)
    counts = (found.health or health(snapshot)).counts
    oldest = table.oldest_dv(snapshot) if counts.files_with_dv else None
    (small,) = check_snapshot(table, snapshot, watched.policy, checks=["small_files"], now=now)
    answer = readable(table, snapshot)
    error = answer.reason if answer.severity == "error" else None
    expired = seen.expired
    expiring = None if expired is None else expired.expiring
    return replace(
        row,
        format=table.format,
        version=found.version,
        files=counts.files,
        size_bytes=counts.size_bytes,
        files_with_dv=counts.files_with_dv,
        deleted_rows=counts.deleted_rows,
        deleted_ratio=counts.deleted_ratio,
        oldest_dv=None if oldest is None else oldest.timestamp,
        oldest_dv_exact=oldest is None or oldest.exact,
        small_files=small.numbers.get("small_files"),
        expired_bytes=None if expired is None else sum(max(each.size, 0) for each in expired.files),
        expiring_bytes=None if expiring is None else sum(each.bytes for each in expiring),
        expiring_from=min((each.at for each in expiring), default=None) if expiring else None,
        due=() if error else found.due,
        reasons={} if error else dict(found.reasons.items()),
        warnings=found.warnings,
        error=error,
    )


def _said(error: Exception) -> str:
    return redacted(str(error))
