"""Maintenance by the SQL of the table's own engine, for tables that are refused here; what it did is checked here.

The statement is the engine's, the promise stays ours: rows of files that it took out are held against rows of files
that it put in, by our own reader. That comes after its commit, so what is found wrong is reported, not prevented.

Where rows wait for a compaction to be seen, those of other keys are held against each other, and each key that waited
has to be there once; which of its rows it has is left to the engine. What our reader does not read is told by the
engine's own query, before and after.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dv_maintenance.dv import load
from dv_maintenance.errors import DamagedTableError, DvMaintenanceError, RefusedError, UsageError
from dv_maintenance.maintenance.health import health
from dv_maintenance.tables.capabilities import EngineSqlTable
from dv_maintenance.tables.fingerprint import Fingerprint, fingerprint, row_hashes
from dv_maintenance.tables.model import FileKey

if TYPE_CHECKING:
    from dv_maintenance.tables.capabilities import EngineName, WaitingRows
    from dv_maintenance.tables.model import Snapshot
    from dv_maintenance.tables.table import Table
    from dv_maintenance.tables.work import ScanTask, SourceFile

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
    ``by``, the weakest of what it was: ``content``; ``keys``, of the keys that no row waited for; ``engine``, by its
    own query; ``rows`` where our reader can count the rows of the files but not read them; or ``files`` (vacuum: every
    live file and deletion vector is there). ``dvs_before``, ``dvs_after``: files with a DV.
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


def engine_sql(
    table: Table, session: SqlSession | Callable[[], SqlSession], job: str, *, catalog: str | None = None
) -> EngineSqlReport:
    """Run ``job``, one of JOBS, on the whole table through ``session``, and check every version that came of it.
    ``session``: or what starts one, once the table has been looked at. ``catalog``: what the session calls the table's
    catalog, or ``catalog.database.table``, where its path does not tell.

    Other writers may commit meanwhile: versions are compared one by one, and only those that say they move rows.

    Raises
    ------
    RefusedError : the format has no such route, or the session not the engine's extension, no catalog that has the
        table, or another table by that name; nothing was run.
    UsageError : no such job, or a catalog that is none.
    UnsupportedFeatureError : the table can't even be looked at here, so nothing could be checked; nothing was run.
    DvMaintenanceError : the engine failed.
    """
    if not isinstance(table, EngineSqlTable):
        raise RefusedError(f"{table.format} tables have no SQL for that", table=table.uri)
    if job not in JOBS:
        raise UsageError(f"unknown job {job!r}", table=table.uri, next_step=f"use one of {', '.join(JOBS)}")
    before = table.snapshot()
    if callable(session):
        session = session()
    extension = table.engine_extension
    if extension not in str(session.conf.get("spark.sql.extensions", "")):
        raise RefusedError(
            f"the Spark session has no {extension.rsplit('.', 1)[-1]}",
            table=table.uri,
            version=before.version,
            next_step=table.engine_advice,
        )
    name = table.engine_name(_settings(session), catalog)
    _check_meant(table, session, name, before)
    statements = table.engine_statements(job, name, before)
    for number, statement in enumerate(statements):
        _run(table, session, statement, before.version, statements[:number])
    changes = table.changes_since(before.version)
    after = table.snapshot(changes.version)
    compared: list[_Comparison] = []
    if job == "vacuum":
        by, problems = "files", _missing(table, after)
    else:
        moved = [change.version for change in changes.commits if table.engine_moves(change)]
        compared = [found for version in moved if (found := _checked(table, session, name, version)) is not None]
        by = max((each.by for each in compared), key=_STRENGTH.index, default=_STRENGTH[0])
        problems = tuple(each.problem for each in compared if each.problem)
    return EngineSqlReport(
        table=table.uri,
        format=table.format,
        job=job,
        statement="; ".join(statements),
        version_before=before.version,
        version_after=after.version,
        checked=tuple(each.version for each in compared),
        by=by,
        dvs_before=health(before).counts.files_with_dv,
        dvs_after=health(after).counts.files_with_dv,
        verified=not problems,
        problems=problems,
    )


def _settings(session: SqlSession) -> Mapping[str, str]:
    """All of a session's; a property with Spark, of classic and of Connect sessions."""
    found = getattr(session.conf, "getAll", session.conf)
    return dict(found() if callable(found) else found)


def _check_meant(table: EngineSqlTable, session: SqlSession, name: EngineName, before: Snapshot) -> None:
    """That a session means this very table by its name: another warehouse may have one of the same."""
    probe = table.engine_probe(name, before)
    if probe is None:
        return
    query, expected = probe
    try:
        found = [tuple(row) for row in session.sql(query).collect()]
    except Exception as error:
        raise RefusedError(
            f"the Spark session could not look at {_spelled(name)}: {_first_line(error)}",
            table=table.uri,
            version=before.version,
            next_step="check the catalog's settings and what it calls the table",
        ) from error
    if found != [expected]:
        raise RefusedError(
            f"what the Spark session calls {_spelled(name)} is another table, or at another version",
            table=table.uri,
            version=before.version,
            next_step="name the catalog that has this one, and run again if somebody rolled it back meanwhile",
        )


def _spelled(name: EngineName) -> str:
    return ".".join(part for part in (name.catalog, name.database, name.table) if part)


def _run(table: Table, session: SqlSession, statement: str, version: int, earlier: Sequence[str]) -> None:
    try:
        session.sql(statement).collect()
    except Exception as error:
        ran = f"{'; '.join(earlier)} ran; " if earlier else ""
        raise DvMaintenanceError(
            f"the engine did not run {statement!r}: {_first_line(error)}",
            table=table.uri,
            version=version,
            done=f"{ran}see the table's history: the engine may have committed a part of it",
            next_step="mend what the engine says and run it again",
        ) from error


@dataclass(frozen=True, slots=True)
class _Comparison:
    version: int
    by: str
    problem: str | None


# From the strongest to the weakest.
_STRENGTH: Final = ("content", "keys", "engine", "rows")


def _checked(table: EngineSqlTable, session: SqlSession, name: EngineName, version: int) -> _Comparison | None:
    """``_compare``, whatever happens: the engine has committed, and what can't be checked has to be told."""
    try:
        return _compare(table, session, name, version)
    except DvMaintenanceError as error:
        return _Comparison(version, "rows", f"version {version} is not checked: {error.message}")


def _compare(table: EngineSqlTable, session: SqlSession, name: EngineName, version: int) -> _Comparison | None:
    """Rows of the files that are only in the version before with rows of those only in ``version``; ``None`` if both
    have the same files.
    """
    old, new = table.snapshot(table.parent_of(version)), table.snapshot(version)
    waiting = table.engine_waiting(old, new)
    problem = None
    try:
        old_keys, new_keys = _keys(table, old), _keys(table, new)
        if old_keys == new_keys and waiting is None:
            return None
        left_out = None if waiting is None else _hashes(table, waiting.all)
        keys = () if waiting is None else waiting.keys
        prints = [
            _fingerprint(table, old, old_keys - new_keys, keys, left_out),
            _fingerprint(table, new, new_keys - old_keys, keys, left_out),
        ]
        if waiting is not None:
            problem = _waited(table, new, waiting)
    except RefusedError:  # our reader does not know what is in the files
        return _compare_unread(table, session, name, old, new)
    if not old.schema.equals(new.schema):
        problem = f"version {version} has other columns than the one before"
    elif prints[0] != prints[1]:
        problem = f"version {version} does not hold the rows of the one before ({prints[0].rows} and {prints[1].rows})"
    return _Comparison(version, "content" if waiting is None else "keys", problem)


def _compare_unread(
    table: EngineSqlTable, session: SqlSession, name: EngineName, old: Snapshot, new: Snapshot
) -> _Comparison:
    queries = [table.engine_rows(name, each) for each in (old, new)]
    if None in queries:
        counts = [_live_rows(old), _live_rows(new)]
        wrong = None in counts or counts[0] != counts[1]
        problem = f"version {new.version}: {counts[0]} live rows became {counts[1]}" if wrong else None
        return _Comparison(new.version, "rows", problem)
    try:
        answers = [[tuple(row) for row in session.sql(str(query)).collect()] for query in queries]
    except Exception as error:  # noqa: BLE001 - the job ran: that nobody knows how it went is a finding
        return _Comparison(new.version, "engine", f"version {new.version} is not checked: {_first_line(error)}")
    problem = None
    if answers[0] != answers[1] or len(answers[0]) != 1:
        problem = f"version {new.version} does not hold the rows of the one before, as the engine itself reads them"
    return _Comparison(new.version, "engine", problem)


def _waited(table: EngineSqlTable, new: Snapshot, waiting: WaitingRows) -> str | None:
    """What is wrong with the rows that waited: a key that is there twice, or one that is not there at all."""
    waited = _hashes(table, waiting.all)
    found = _hashes(table, table.scan_tasks(new, waiting.keys))
    found = found[np.isin(found, waited)]
    if len(np.unique(found)) < len(found):
        return f"version {new.version} has a key twice: one of its rows should have been replaced"
    added = np.setdiff1d(_hashes(table, waiting.added), _hashes(table, waiting.taken))
    lost = len(np.setdiff1d(added, found))
    return f"version {new.version} lacks {lost} rows that waited to be seen" if lost else None


def _hashes(table: Table, tasks: Iterable[ScanTask]) -> Any:
    """Of every row that the tasks read."""
    from dv_maintenance.engine.scan import scan

    parts = [row_hashes(batch) for task in tasks for batch in scan(task, table.storage.options)]
    return np.concatenate([np.empty(0, np.uint64), *parts])


_Key = tuple[FileKey | str, ...]


def _keys(table: Table, snapshot: Snapshot) -> set[_Key]:
    return {_key(task) for task in table.scan_tasks(snapshot)}


def _key(task: ScanTask) -> _Key:
    """What is read for a row of ``snapshot.files``: the files that hold its rows, with their DV."""
    (source,) = task.sources
    return (source.key, source.uri, *(part.uri for part in source.parts))


def _fingerprint(
    table: Table, snapshot: Snapshot, keys: set[_Key], columns: Sequence[str], left_out: Any
) -> Fingerprint:
    """Of the rows of some files, without those of which the hash of these ``columns`` is ``left_out``."""
    from dv_maintenance.engine.scan import scan

    def batches() -> Iterator[pa.RecordBatch]:
        for task in table.scan_tasks(snapshot):
            if _key(task) in keys:
                for batch in scan(task, table.storage.options):
                    if left_out is None:
                        yield batch
                    else:
                        yield batch.filter(pa.array(~np.isin(row_hashes(batch.select(list(columns))), left_out)))

    return fingerprint(batches())


def _live_rows(snapshot: Snapshot) -> int | None:
    if snapshot.files["physical_rows"].null_count:
        return None
    return int(pc.sum(pc.subtract(snapshot.files["physical_rows"], snapshot.files["deleted_rows"])).as_py() or 0)


def _missing(table: EngineSqlTable, snapshot: Snapshot) -> tuple[str, ...]:
    """Files that are gone or of another size, and deletion vectors that can't be read."""
    storage = table.storage

    def problem(source: SourceFile) -> str | None:
        try:
            size = storage.head(source.uri).size
            if source.dv is not None:
                load(source.dv, storage.get_range, rows=source.rows)
        except FileNotFoundError:
            return f"{source.uri} is live and gone"
        except DvMaintenanceError as error:
            return error.message
        return None if size == source.size else f"{source.uri} has {size} bytes, not {source.size}"

    try:
        with ThreadPoolExecutor(_HEAD_THREADS) as pool:
            return tuple(found for found in pool.map(problem, table.engine_sources(snapshot)) if found is not None)
    except DamagedTableError as error:
        return (error.message,)


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[0] if lines else type(error).__name__)[:500]
