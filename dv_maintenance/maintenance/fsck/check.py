"""Check one version of a table, explain each fault, and say how to repair it. Nothing is changed."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import reduce
from typing import TYPE_CHECKING, Final

import pyarrow.compute as pc

from dv_maintenance.errors import DamagedTableError, DvMaintenanceError, RefusedError
from dv_maintenance.files.arrays import int64s
from dv_maintenance.maintenance.fsck.faults import ARROW, CONTENT, COUNT, LOG, MISSING, NULLS, Fault
from dv_maintenance.maintenance.fsck.owners import owners_of, remedies_of_owners
from dv_maintenance.maintenance.fsck.quick import QuickCheck, quick_check
from dv_maintenance.maintenance.fsck.report import Damage, FsckReport
from dv_maintenance.remedies import run
from dv_maintenance.tables.file_log import FileLogTable
from dv_maintenance.tables.fsck import DATA, DV, INDEX, WAITING, FsckTable, LogFault, Repair
from dv_maintenance.tables.guard import VacuumRequest
from dv_maintenance.tables.registry import title_of

if TYPE_CHECKING:
    from dv_maintenance.maintenance.fsck.deep import Read
    from dv_maintenance.storage import Storage
    from dv_maintenance.tables.model import Snapshot
    from dv_maintenance.tables.table import Table

FEW: Final = 10_000
"""Checking this many files takes less than a second: verbs and sensors that must be fast check no more."""
_ATTEMPTS: Final = 5
_WITHOUT_VALUES: Final = "Readers of that column fail, or take its nulls for values; its other columns can be read."
_EFFECTS: Final = {
    NULLS: _WITHOUT_VALUES,
    COUNT: "It is whole; readers that compare it with the log refuse it, others read it.",
    ARROW: "Spark and DuckDB read it; deltalake, polars and pyarrow, which begin with that schema, fail.",
}
# Whole files: nothing has to be put back.
_OTHERWISE: Final = frozenset({NULLS, COUNT, ARROW})
_COPY_BACK: Final = Repair(
    "Copy each file back to exactly its path, from a backup or, with a versioned bucket, from its earlier object "
    "version. The table then reads as before.",
    None,
    "Nothing.",
)


def fsck(
    table: Table,
    version: int | None = None,
    *,
    deep: bool = False,
    on_progress: Callable[[int, int], None] | None = None,
) -> FsckReport:
    """Look for every file that readers of a version need; the newest version by default.

    deep : also read every data file's footer, every deletion vector, and NOT NULL columns that may have nulls.
    on_progress : called with work done and the total, in files.

    The table's history is read only if something is damaged.

    Raises
    ------
    RefusedError : the format has no such check.
    TableNotFoundError, UsageError, UnsupportedFeatureError, StorageError : as ``Table.snapshot``.
    """
    from dv_maintenance.maintenance.fsck.deep import Read, read, recounted

    if not isinstance(table, FsckTable):
        raise RefusedError(f"fsck is not supported for {title_of(table.format)} tables", table=table.uri)
    snapshot: Snapshot | None = None
    try:
        snapshot = table.snapshot(version)
        live = snapshot.files.num_rows if deep else 0
        step = None if on_progress is None else _steps(on_progress, live)
        looked = quick_check(table, snapshot, step=step)
        found = Read()
        if deep:
            known = {table.storage.uri_of(fault.path) for fault in looked.faults}
            total = sum(looked.files.values())
            further = None if step is None else lambda done: step(total + min(done, live), total)
            found = read(table, snapshot, looked.needed, known, further)
    except DamagedTableError as damage:
        return _of_log(table, version if snapshot is None else snapshot.version, damage, deep=deep)
    faults: Sequence[Fault] = [*recounted(table, snapshot, looked.faults[:FEW]), *looked.faults[FEW:], *found.faults]
    if version is None:
        faults = _still_needed(table, snapshot, faults)
    return _report(table, snapshot, looked, found, faults, deep=deep)


def damage_of(table: Table, snapshot: Snapshot, *, most: int | None = None) -> tuple[Damage, ...] | None:
    """The quick check of a newest version, without its history: what is missing or has another size.

    most : check only if the version has no more live files than this.

    ``None``: nothing was checked. Raises the errors of ``quick_check``.
    """
    if not isinstance(table, FsckTable) or (most is not None and snapshot.files.num_rows > most):
        return None
    faults = _still_needed(table, snapshot, quick_check(table, snapshot).faults)
    owners = owners_of(table, [fault.path for fault in faults])
    return tuple(_damage(table, snapshot, fault, None, owners) for fault in faults)


def _still_needed(table: FsckTable, snapshot: Snapshot, faults: Sequence[Fault]) -> Sequence[Fault]:
    """Without files that later versions no longer need, and that a cleaner may therefore delete any time: a table may
    move on during an inspection.
    """
    if not faults or table.version() == snapshot.version:
        return faults
    needed = set(table.needed_files(table.snapshot())["path"].to_pylist())
    return [fault for fault in faults if fault.path in needed]


def _steps(on_progress: Callable[[int, int], None], more: int) -> Callable[[int, int], None]:
    return lambda done, total: on_progress(done, total + more)


def _of_log(table: FsckTable, version: int | None, damage: DamagedTableError, *, deep: bool) -> FsckReport:
    """The log can't be read, or contradicts itself: no version of it can be compared with the storage."""
    found = Damage("", table.uri, LOG, LOG, damage.message, "This version can't be read.", 0, (), None, 0, None)
    further = (
        ()
        if damage.next_step is None
        else (Repair(_sentence(str(damage.next_step)), None, "It depends on what is restored."),)
    )
    back = _restorable(table) if version is None else ()
    return FsckReport(
        table=table.uri,
        format=table.format,
        version=damage.version if version is None else version,
        timestamp=None,
        deep=deep,
        files=0,
        dv_files=0,
        index_files=0,
        bytes=0,
        footers=0,
        dvs=0,
        unread=0,
        files_damaged=0,
        live_rows_damaged=None,
        damage=(found,),
        remedies=(_COPY_BACK, *back, *further),
    )


def _report(
    table: FsckTable, snapshot: Snapshot, looked: QuickCheck, found: Read, faults: Sequence[Fault], *, deep: bool
) -> FsckReport:
    hit = sorted({row for fault in faults for row in fault.files})
    since = _since(table, snapshot, faults) if faults else []
    owners = owners_of(table, [fault.path for fault in faults])
    own = table.log_faults(snapshot)
    log = (*own, *_older(table, {fault.reason for fault in own}))
    mended = tuple({fault.remedy: None for fault in log})
    return FsckReport(
        table=table.uri,
        format=table.format,
        version=snapshot.version,
        timestamp=snapshot.timestamp,
        deep=deep,
        files=looked.files.get(DATA, 0) + looked.files.get(WAITING, 0),
        dv_files=looked.files.get(DV, 0),
        index_files=looked.files.get(INDEX, 0),
        bytes=looked.bytes,
        footers=found.footers,
        dvs=found.dvs,
        unread=found.unread,
        files_damaged=len(hit),
        live_rows_damaged=_rows(snapshot, hit)[0],
        damage=(
            *(_damage(table, snapshot, fault, first, owners) for fault, first in zip(faults, since, strict=True)),
            *(_log_damage(table, fault) for fault in log),
        ),
        remedies=(*(_remedies(table, snapshot, faults, since, owners) if faults else ()), *mended),
        warnings=(*snapshot.warnings, *_miscounted(table, found)),
    )


def _damage(
    table: FsckTable, snapshot: Snapshot, fault: Fault, since: int | None, owners: Mapping[str, Storage]
) -> Damage:
    owner = owners.get(fault.path)
    of_owner = "" if owner is None else f" It belongs to {owner.uri}: this table is a shallow clone."
    live, deleted = _rows(snapshot, fault.files)
    names = snapshot.files["partition"].take(int64s(fault.files)).to_pylist()
    return Damage(
        path=fault.path,
        uri=table.storage.uri_of(fault.path),
        kind=fault.kind,
        fault=fault.fault,
        reason=fault.reason,
        effect=(_EFFECTS.get(fault.fault) or _effect(fault.kind, len(fault.files), live, deleted)) + of_owner,
        files=len(fault.files),
        partitions=tuple(sorted({name for name in names if name})),
        live_rows=live if fault.files else None,
        deleted_rows=deleted,
        since=since,
    )


def _miscounted(table: FsckTable, found: Read) -> Iterator[str]:
    if found.miscounted:
        path, rows, said = found.miscounted[0]
        files = _count(len(found.miscounted), "whole file")
        yield (
            f"the statistics of {files} have a wrong row count ({path}: {said:,}, its footer counts {rows:,}): "
            f"{run('recount', table.uri)} corrects them"
        )


def _older(table: FsckTable, known: Collection[str]) -> tuple[LogFault, ...]:
    """What only older versions, tags and branches need: without it, the files that they keep are unknown. ``known``:
    faults of the newest version.
    """
    try:
        table.vacuum(VacuumRequest(dry_run=True, lite=True))
    except DamagedTableError as damage:
        if damage.message in known:
            return ()
        how = str(damage.next_step or "Restore the file from a backup.")
        remedy = Repair(_sentence(how), None, "What only the damaged versions, tags or branches have.")
        # A branch is a table of its own.
        where = "" if damage.table in (None, table.uri) else f"{damage.table}: "
        effect = "The newest version can be read, but every vacuum stops."
        return (LogFault("", where + damage.message, effect, remedy),)
    except DvMaintenanceError:
        pass  # a vacuum is refused, or the storage failed: both say so themselves
    return ()


def _log_damage(table: FsckTable, fault: LogFault) -> Damage:
    uri = table.storage.uri_of(fault.path) if fault.path else table.uri
    return Damage(fault.path, uri, LOG, CONTENT, fault.reason, fault.effect, 0, (), None, 0, None)


def _rows(snapshot: Snapshot, files: Sequence[int]) -> tuple[int | None, int]:
    """Live and deleted rows of some files; ``None``: the log does not say how many rows one of them has."""
    chosen = snapshot.files.select(["physical_rows", "deleted_rows"]).take(int64s(files))
    deleted = int(pc.sum(chosen["deleted_rows"]).as_py() or 0)
    if chosen["physical_rows"].null_count:
        return None, deleted
    return int(pc.sum(chosen["physical_rows"]).as_py() or 0) - deleted, deleted


def _effect(kind: str, files: int, live: int | None, deleted: int) -> str:
    rest = "live rows" if live is None else _count(live, "live row")
    rows = "an unknown number of live rows" if live is None else rest
    if kind == WAITING:
        return "Its rows wait for a compaction, which will fail; no batch query reads them yet."
    if kind == INDEX:
        return "Queries that use this index fail; other scans succeed."
    if kind == DV:
        whose, theirs = ("a data file", "the file's") if files == 1 else (f"{files:,} data files", "their")
        return f"It marks {_count(deleted, 'row')} of {whose} as deleted: without it {theirs} {rest} can't be read."
    return f"{rows[0].upper()}{rows[1:]} can't be read."


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


# -- versions ---------------------------------------------------------------------------------------------------------


def _since(table: FsckTable, snapshot: Snapshot, faults: Sequence[Fault]) -> list[int | None]:
    """The first version that needs each of the faulty files."""
    unknown: list[int | None] = [None] * len(faults)
    if not isinstance(table, FileLogTable):
        return unknown
    try:
        log = table.file_log(snapshot, 0)
    except DvMaintenanceError:
        return unknown  # the log of that time is damaged or gone: what is missing is known all the same
    added = log.changes.filter(log.changes["added"])
    first: dict[str, int] = {}
    first_dv: dict[str, int] = {}
    columns = (added[name].to_pylist() for name in ("commit", "path", "dv_id"))
    for commit, path, dv in zip(*columns, strict=True):
        first.setdefault(path, commit)
        if dv is not None:
            first_dv.setdefault(dv, commit)
    found: list[int | None] = []
    for fault in faults:
        chosen = snapshot.files.select(["path", "dv_id"]).take(int64s(fault.files)).to_pylist()
        known = [first_dv.get(row["dv_id"]) if fault.kind == DV else first.get(row["path"]) for row in chosen]
        oldest = None if None in known else min((each for each in known if each is not None), default=None)
        found.append(None if oldest is None else log.commits[oldest].version)
    return found


def _back_to(table: FsckTable, since: Iterable[int | None]) -> int | None:
    """The newest version before all damage, if its own files exist and it is not empty. If files of that version are
    damaged, too, the search goes on before these, a few times.
    """
    for _ in range(_ATTEMPTS):
        versions = list(since)
        known = [each for each in versions if each is not None]
        if not known or len(known) < len(versions):
            return None
        try:
            back = table.parent_of(reduce(lambda one, other: other if table.follows(one, other) else one, known))
            older = table.snapshot(back)
            if not older.files.num_rows:
                return None
            faults = quick_check(table, older).faults
        except DvMaintenanceError:
            return None  # a vacuum took it, or it is damaged too
        if not faults:
            return back
        since = _since(table, older, faults)
    return None


def _restorable(table: FsckTable) -> tuple[Repair, ...]:
    """The newest of the last versions that a restore accepts, though the newest version of all can't be read."""
    from dv_maintenance.tables.capabilities import RestorableTable

    if not isinstance(table, RestorableTable):
        return ()
    try:
        newest = table.version()
        for back in range(newest - 1, max(newest - 1 - _ATTEMPTS, -1), -1):
            with suppress(DvMaintenanceError):
                table.restore(version=back, dry_run=True)
                lost = f"Everything committed after version {back}."
                how = f"Restore version {back}, the newest that can be read."
                return (Repair(how, run("restore", table.uri, version=back), lost),)
    except DvMaintenanceError:
        pass  # the log itself is gone
    return ()


def _remedies(
    table: FsckTable,
    snapshot: Snapshot,
    faults: Sequence[Fault],
    since: Sequence[int | None],
    owners: Mapping[str, Storage],
) -> tuple[Repair, ...]:
    """The way that loses least first."""
    from dv_maintenance.tables.quarantine import quarantined

    found = []
    if commands := sorted({fault.command for fault in faults if fault.fault == NULLS}):
        found.append(
            Repair(
                "Let the column be null with the table's own engine; then give the rows a value.",
                "; ".join(commands),
                "Nothing.",
            )
        )
    counts = {fault.kind for fault in faults if fault.fault == COUNT}
    if DATA in counts:  # or it was replaced: only the user knows
        how = "If it is the file that the version wrote, correct the numbers in the log."
        found.append(Repair(how, run("recount", table.uri), "Nothing, if it is that file."))
    elif counts:
        found.append(Repair("Correct the numbers in the log.", run("recount", table.uri), "Nothing."))
    if any(fault.fault == ARROW for fault in faults):
        how = "Write the file's rows again, with Spark or with a rewrite of the file: new files have a whole schema."
        found.append(Repair(how, None, "Nothing."))
    since = [each for fault, each in zip(faults, since, strict=True) if fault.fault not in _OTHERWISE]
    faults = [fault for fault in faults if fault.fault not in _OTHERWISE]
    if not faults:
        return (*found, _COPY_BACK) if DATA in counts else tuple(found)
    gone = [fault.path for fault in faults if fault.fault == MISSING]
    aside = len(quarantined(table.storage, gone)) if gone else 0
    if aside:
        found.append(
            Repair(
                f"A vacuum set {aside:,} of the missing files aside: put them back.",
                run("undelete", table.uri),
                "Nothing.",
            )
        )
    undone, cloned = remedies_of_owners({path: owners[path] for path in gone if path in owners}, table.uri)
    # An index is not in the log of files, and is made again.
    concerned = [each for fault, each in zip(faults, since, strict=True) if fault.kind != INDEX]
    # Removing a file from the table is a way only if it is gone: a damaged one may be mended.
    kinds = {fault.kind for fault in faults if fault.fault == MISSING or fault.kind not in {DATA, WAITING}}
    own = table.remedies(snapshot, kinds, _back_to(table, concerned) if concerned else None)
    return (*found, *undone, _COPY_BACK, *own, *cloned)


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:].rstrip('.')}."
