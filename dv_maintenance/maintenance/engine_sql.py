"""Maintenance by the SQL of the table's own engine, for tables that are refused here; what it did is checked here.

The statement is the engine's, the promise stays ours: rows of files that it took out are held against rows of files
that it put in, by our own reader. That comes after its commit, so what is found wrong is reported, not prevented.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from dv_maintenance.dv import load
from dv_maintenance.errors import DvMaintenanceError, RefusedError
from dv_maintenance.maintenance.fingerprint import Fingerprint, fingerprint
from dv_maintenance.maintenance.health import health
from dv_maintenance.tables.capabilities import EngineSqlTable
from dv_maintenance.tables.model import FileKey

if TYPE_CHECKING:
    from dv_maintenance.tables.model import Snapshot, Table
    from dv_maintenance.tables.work import ScanTask

__all__ = ["JOBS", "EngineSqlReport", "SqlSession", "engine_sql"]

JOBS: Final = ("optimize", "purge", "vacuum")
_HEAD_THREADS: Final = 16


class SqlSession(Protocol):
    """What is needed of a Spark session, classic or Connect."""

    @property
    def conf(self) -> Any: ...

    def sql(self, query: str, /) -> Any: ...


@dataclass(frozen=True, slots=True)
class EngineSqlReport:
    """``statement``: what was run. ``checked``: versions whose rows were compared with those of the version before.
    ``by``: ``content``, or ``rows`` where our reader can count the rows of the files but not read them, or ``files``
    (vacuum: every live file and deletion vector is there). ``dvs_before``, ``dvs_after``: files with a DV.
    """

    table: str
    format: str
    job: str
    statement: str
    version_before: int
    version_after: int
    checked: tuple[int, ...]
    by: str
    dvs_before: int
    dvs_after: int
    verified: bool
    problems: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def engine_sql(table: Table, session: SqlSession, job: str) -> EngineSqlReport:
    """Run ``job``, one of JOBS, on the whole table through ``session``, and check every version that came of it.

    Other writers may commit meanwhile: versions are compared one by one, and only those that say they move rows.

    Raises
    ------
    RefusedError : the format has no such route, or the session not the engine's extension; nothing was run.
    UnsupportedFeatureError : the table can't even be looked at here, so nothing could be checked; nothing was run.
    DvMaintenanceError : the engine failed.
    """
    if not isinstance(table, EngineSqlTable):
        raise RefusedError(f"{table.format} tables have no SQL for that", table=table.uri)
    statement, extension = table.engine_statement(job), table.engine_extension
    before = table.snapshot()
    if extension not in str(session.conf.get("spark.sql.extensions", "")):
        raise RefusedError(
            f"the Spark session has no {extension.rsplit('.', 1)[-1]}",
            table=table.uri,
            version=before.version,
            next_step=f"put the engine's jars on its class path, and {extension} into spark.sql.extensions",
        )
    try:
        session.sql(statement).collect()
    except Exception as error:
        raise DvMaintenanceError(
            f"the engine did not run {statement!r}: {_first_line(error)}",
            table=table.uri,
            version=before.version,
            done="see the table's history: the engine may have committed a part of it",
            next_step="mend what the engine says and run it again",
        ) from error
    changes = table.changes_since(before.version)
    after = table.snapshot(changes.version)
    compared: list[_Comparison] = []
    if job == "vacuum":
        by, problems = "files", _missing(table, after)
    else:
        moved = [change.version for change in changes.commits if not change.data_changed]
        compared = [found for version in moved if (found := _compare(table, version)) is not None]
        by = "rows" if any(each.by == "rows" for each in compared) else "content"
        problems = tuple(each.problem for each in compared if each.problem)
    return EngineSqlReport(
        table=table.uri,
        format=table.format,
        job=job,
        statement=statement,
        version_before=before.version,
        version_after=after.version,
        checked=tuple(each.version for each in compared),
        by=by,
        dvs_before=health(before).counts.files_with_dv,
        dvs_after=health(after).counts.files_with_dv,
        verified=not problems,
        problems=problems,
    )


@dataclass(frozen=True, slots=True)
class _Comparison:
    version: int
    by: str
    problem: str | None


def _compare(table: Table, version: int) -> _Comparison | None:
    """Rows of the files that are only in the version before with rows of those only in ``version``; ``None`` if both
    have the same files.
    """
    old, new = table.snapshot(version - 1), table.snapshot(version)
    old_keys, new_keys = _keys(old), _keys(new)
    if old_keys == new_keys:
        return None
    try:
        prints = [
            _fingerprint(table, old, old_keys - new_keys),
            _fingerprint(table, new, new_keys - old_keys),
        ]
    except RefusedError:  # our reader does not know what is in the files
        counts = [_live_rows(old), _live_rows(new)]
        wrong = None in counts or counts[0] != counts[1]
        problem = f"version {version}: {counts[0]} live rows became {counts[1]}" if wrong else None
        return _Comparison(version, "rows", problem)
    if not old.schema.equals(new.schema):
        return _Comparison(version, "content", f"version {version} has other columns than the one before")
    problem = None
    if prints[0] != prints[1]:
        problem = f"version {version} does not hold the rows of the one before ({prints[0].rows} and {prints[1].rows})"
    return _Comparison(version, "content", problem)


def _keys(snapshot: Snapshot) -> set[FileKey]:
    return {FileKey(**row) for row in snapshot.files.select(["path", "dv_id"]).to_pylist()}


def _fingerprint(table: Table, snapshot: Snapshot, keys: set[FileKey]) -> Fingerprint:
    from dv_maintenance.engine.scan import scan

    def batches() -> Iterator[pa.RecordBatch]:
        for task in table.scan_tasks(snapshot):
            if task.sources[0].key in keys:
                yield from scan(task, table.storage.options)

    return fingerprint(batches())


def _live_rows(snapshot: Snapshot) -> int | None:
    if snapshot.files["physical_rows"].null_count:
        return None
    return int(pc.sum(pc.subtract(snapshot.files["physical_rows"], snapshot.files["deleted_rows"])).as_py() or 0)


def _missing(table: Table, snapshot: Snapshot) -> tuple[str, ...]:
    """Live files that are gone or of another size, and deletion vectors that can't be read."""
    storage = table.storage

    def problem(task: ScanTask) -> str | None:
        source = task.sources[0]
        try:
            size = storage.head(source.uri).size
            if source.dv is not None:
                load(source.dv, storage.get_range, rows=source.rows)
        except FileNotFoundError:
            return f"{source.uri} is live and gone"
        except DvMaintenanceError as error:
            return error.message
        return None if size == source.size else f"{source.uri} has {size} bytes, not {source.size}"

    with ThreadPoolExecutor(_HEAD_THREADS) as pool:
        return tuple(found for found in pool.map(problem, table.scan_tasks(snapshot)) if found is not None)


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[0] if lines else type(error).__name__)[:500]
