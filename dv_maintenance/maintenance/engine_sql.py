"""Maintenance by the SQL of the table's own engine, for tables that are refused here. The result is checked here.

The engine runs the statement, and our own reader compares the rows of the files that it removed with the rows of the
files that it added. The check runs after the engine's commit: a difference is reported, not prevented.

Some rows are invisible until a compaction. The rows of all other keys are compared, and each key of the waiting rows
must appear exactly once; the engine decides which of its rows that is. Where our reader can't read a file, the
engine's own query is compared before and after.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dv_maintenance.errors import DamagedTableError, DvMaintenanceError, RefusedError, UsageError
from dv_maintenance.files.variants import comparable
from dv_maintenance.maintenance.health import health
from dv_maintenance.report import Report
from dv_maintenance.tables.capabilities import EngineSqlTable
from dv_maintenance.tables.dv_codecs import load
from dv_maintenance.tables.fingerprint import Fingerprint, fingerprint, row_hashes
from dv_maintenance.tables.model import FileKey, has_variant, logical_type
from dv_maintenance.tables.registry import title_of

if TYPE_CHECKING:
    from dv_maintenance.tables.capabilities import EngineName, WaitingRows
    from dv_maintenance.tables.model import Snapshot
    from dv_maintenance.tables.table import Table
    from dv_maintenance.tables.work import ScanTask, SourceFile

JOBS: Final = ("optimize", "purge", "vacuum")
_HEAD_THREADS: Final = 16


class SqlSession(Protocol):
    """The part of a Spark session that is needed, classic or Connect."""

    @property
    def conf(self) -> Any: ...

    def sql(self, query: str, /) -> Any: ...


@dataclass(frozen=True, slots=True, repr=False)
class EngineSqlReport(Report):
    """The report of a maintenance job that ran as engine SQL.

    statement : the SQL that was run.
    checked : versions whose rows were compared with those of the previous version.
    by : the weakest check that was used: ``content``; ``keys``, content of the keys without waiting rows; ``engine``, a
        query of the engine; ``rows``, row counts of files that can't be read here; or ``files`` (vacuum: every live
        file and deletion vector exists).
    dvs_before, dvs_after : number of files with a DV.
    """

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


def engine_sql(
    table: Table, session: SqlSession | Callable[[], SqlSession], job: str, *, catalog: str | None = None
) -> EngineSqlReport:
    """Run ``job`` on the whole table through the table's engine, and check every version that it committed.

    session : a Spark session, or a function that starts one; it is called after the table was inspected.
    job : one of JOBS.
    catalog : the session's name of the table's catalog, or ``catalog.database.table`` if the path does not contain
        them.

    Other writers may commit concurrently, so versions are compared one by one, and only those whose commits move rows.

    Raises
    ------
    RefusedError : the format has no such route; or the session lacks the engine's extension, has no catalog with the
        table, or has another table under its name. Nothing was run.
    UsageError : the job is unknown, or ``catalog`` is not the name of a catalog.
    UnsupportedFeatureError : the table can't be inspected here, so the result could not be checked; nothing was run.
    DvMaintenanceError : the engine failed.
    """
    if not isinstance(table, EngineSqlTable):
        raise RefusedError(f"maintenance by SQL is not supported for {title_of(table.format)} tables", table=table.uri)
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
        moved = [change.version for change in changes.commits if table.engine_only_moves_rows(change)]
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
    """All settings of a session. ``getAll`` is a property in some sessions and a method in others."""
    found = getattr(session.conf, "getAll", session.conf)
    return dict(found() if callable(found) else found)


def _check_meant(table: EngineSqlTable, session: SqlSession, name: EngineName, before: Snapshot) -> None:
    """Check that the session's table of this name is this very table: another warehouse may have one of the same."""
    probe = table.engine_probe(name, before)
    if probe is None:
        return
    query, expected = probe
    try:
        found = [tuple(row) for row in session.sql(query).collect()]
    except Exception as error:
        raise RefusedError(
            f"the Spark session could not read {_spelled(name)}: {_first_line(error)}",
            table=table.uri,
            version=before.version,
            next_step="check the catalog's settings and its name for the table",
        ) from error
    if found != [expected]:
        raise RefusedError(
            f"{_spelled(name)} in the Spark session is a different table, or at a different version",
            table=table.uri,
            version=before.version,
            next_step="name the catalog that has this table; run again if another writer has just rolled it back",
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
            next_step="fix the cause that the engine names, and run it again",
        ) from error


@dataclass(frozen=True, slots=True)
class _Comparison:
    version: int
    by: str
    problem: str | None


# From the strongest to the weakest.
_STRENGTH: Final = ("content", "keys", "engine", "rows")


def _checked(table: EngineSqlTable, session: SqlSession, name: EngineName, version: int) -> _Comparison | None:
    """As ``_compare``, but never raises: the engine has committed, and a version that can't be checked is a finding."""
    try:
        return _compare(table, session, name, version)
    except DvMaintenanceError as error:
        return _Comparison(version, "rows", f"version {version} was not checked: {error.message}")


def _compare(table: EngineSqlTable, session: SqlSession, name: EngineName, version: int) -> _Comparison | None:
    """Compare the rows of files that only the version before has with the rows of files that only ``version`` has.
    ``None`` if both have the same files.
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
        sides = ((old, old_keys - new_keys), (new, new_keys - old_keys))
        prints = [_fingerprint(table, *side, keys, left_out) for side in sides]
        if prints[0] != prints[1] and any(map(has_variant, new.schema)):
            # The engine may have shredded variants, or encoded them otherwise.
            prints = [_fingerprint(table, *side, keys, left_out, _with_comparable_variants) for side in sides]
        if waiting is not None:
            problem = _waited(table, new, waiting)
    except RefusedError:  # our reader can't read the files
        return _compare_unread(table, session, name, old, new)
    if not old.schema.equals(new.schema):
        problem = f"version {version} has different columns from the one before"
    elif prints[0] != prints[1]:
        problem = (
            f"version {version} does not hold the same rows as the one before ({prints[0].rows} and {prints[1].rows})"
        )
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
    except Exception as error:  # noqa: BLE001 - the job ran: an unknown result is a finding
        return _Comparison(new.version, "engine", f"version {new.version} was not checked: {_first_line(error)}")
    problem = None
    if answers[0] != answers[1] or len(answers[0]) != 1:
        problem = (
            f"version {new.version} does not hold the same rows as the one before, as the engine itself reads them"
        )
    return _Comparison(new.version, "engine", problem)


def _waited(table: EngineSqlTable, new: Snapshot, waiting: WaitingRows) -> str | None:
    """What is wrong with the rows that waited: a key appears twice, or is missing."""
    waited = _hashes(table, waiting.all)
    found = _hashes(table, table.scan_tasks(new, waiting.keys))
    found = found[np.isin(found, waited)]
    if len(np.unique(found)) < len(found):
        return f"version {new.version} has a key twice: one of its rows should have been replaced"
    added = np.setdiff1d(_hashes(table, waiting.added), _hashes(table, waiting.taken))
    lost = len(np.setdiff1d(added, found))
    return f"version {new.version} lacks {lost} rows that were waiting for compaction" if lost else None


def _hashes(table: Table, tasks: Iterable[ScanTask]) -> Any:
    """The hash of every row that the tasks read."""
    from dv_maintenance.engine.scan import scan

    parts = [row_hashes(batch) for task in tasks for batch in scan(task, table.storage.options)]
    return np.concatenate([np.empty(0, np.uint64), *parts])


_Key = tuple[FileKey | str, ...]


def _keys(table: Table, snapshot: Snapshot) -> set[_Key]:
    return {_key(task) for task in table.scan_tasks(snapshot)}


def _key(task: ScanTask) -> _Key:
    """Identifies what is read for an entry of ``snapshot.files``: the files that hold its rows, with their DV."""
    from dv_maintenance.engine.rows.side_by_side import parts_of

    (source,) = task.sources
    return (source.key, *(part.uri for part in parts_of(source)))


def _fingerprint(
    table: Table,
    snapshot: Snapshot,
    keys: set[_Key],
    columns: Sequence[str],
    left_out: Any,
    seen: Callable[[pa.RecordBatch], pa.RecordBatch] = lambda batch: batch,
) -> Fingerprint:
    """Fingerprint of the rows of some files, without rows whose ``columns`` have a hash in ``left_out``. ``seen``: what
    is compared of them.
    """
    from dv_maintenance.engine.scan import scan

    def batches() -> Iterator[pa.RecordBatch]:
        for task in table.scan_tasks(snapshot):
            if _key(task) in keys:
                for batch in scan(task, table.storage.options):
                    if left_out is None:
                        yield seen(batch)
                    else:
                        kept = ~np.isin(row_hashes(batch.select(list(columns))), left_out)
                        yield seen(batch.filter(pa.array(kept)))

    return fingerprint(batches())


def _with_comparable_variants(batch: pa.RecordBatch) -> pa.RecordBatch:
    columns = [_comparable(column, field) for column, field in zip(batch.columns, batch.schema, strict=True)]
    return pa.RecordBatch.from_arrays(columns, names=batch.schema.names)


def _comparable(array: pa.Array, field: pa.Field) -> pa.Array:
    if not has_variant(field):
        return array
    if logical_type(field) == "variant":
        return comparable(array)
    if pa.types.is_struct(field.type):
        parts = [_comparable(part, inner) for part, inner in zip(array.flatten(), field.type, strict=True)]
        return pa.StructArray.from_arrays(parts, names=[each.name for each in field.type], mask=array.is_null())
    if pa.types.is_map(field.type):
        items = _comparable(array.items, field.type.item_field)
        inside = pa.StructArray.from_arrays([array.keys, items], ["key", "value"])
    else:
        inside = _comparable(array.values, field.type.value_field)
    # Offsets and nulls as they are, whatever slice of the values this is.
    kind = pa.large_list if pa.types.is_large_list(field.type) else pa.list_
    return pa.Array.from_buffers(
        kind(inside.type), len(array), array.buffers()[:2], array.null_count, array.offset, children=[inside]
    )


def _live_rows(snapshot: Snapshot) -> int | None:
    if snapshot.files["physical_rows"].null_count:
        return None
    return int(pc.sum(pc.subtract(snapshot.files["physical_rows"], snapshot.files["deleted_rows"])).as_py() or 0)


def _missing(table: EngineSqlTable, snapshot: Snapshot) -> tuple[str, ...]:
    """Live files that are missing or have another size, and deletion vectors that can't be read."""
    storage = table.storage

    def problem(source: SourceFile) -> str | None:
        try:
            size = storage.head(source.uri).size
            if source.dv is not None:
                load(source.dv, storage.get_range, rows=source.rows)
        except FileNotFoundError:
            return f"{source.uri} is live, but does not exist"
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
