"""What a reader of a table sees: the rows of a snapshot, and those that options of the table add or take away.

``scan.fallback-branch``: a reader takes each partition that has no file which it opens in this branch from the fallback
branch. With the number of a snapshot, that branch is read as it was at the time of the snapshot.

``query-auth.enabled``: the catalog says which rows and values a reader may see. The files hold all of them.

Source: FallbackReadFileStoreTable and TableQueryAuth of Paimon.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc

from dv_maintenance.errors import RefusedError, TableNotFoundError
from dv_maintenance.files.arrays import int64s
from dv_maintenance.storage import Storage
from dv_maintenance.tables.paimon.layout import Layout
from dv_maintenance.tables.paimon.log.snapshots import all_versions, read_snapshot_file
from dv_maintenance.tables.paimon.rows.tasks import scan_tasks
from dv_maintenance.tables.paimon.snapshot import PaimonSnapshot, load_snapshot

if TYPE_CHECKING:
    from dv_maintenance.tables.paimon.log.schema import Schema
    from dv_maintenance.tables.paimon.served import ServedTable, Target
    from dv_maintenance.tables.work import ScanTask

_MAIN: Final = "main"
_AUTH: Final = "query-auth.enabled"


def read_tasks(target: Target, snapshot: PaimonSnapshot, columns: Sequence[str] | None = None) -> list[ScanTask]:
    """See ``ComposedTable.read_tasks``.

    Raises
    ------
    RefusedError : the catalog hides rows or values from the user, or can't be asked; or the fallback branch does not
        exist, had no snapshot yet at the time of this one, or has other columns.

    Other errors are those of ``scan_tasks``, also for the fallback branch.
    """
    names = [each.name for each in snapshot.table_schema.fields] if columns is None else list(columns)
    check_authorized(target.server, snapshot, names)
    tasks = scan_tasks(snapshot.layout, snapshot, columns)
    added = fallback(snapshot)
    if added is None:
        return tasks
    # Columns have the same ids and types in both branches, but one may have renamed them.
    others = {
        own.name: other
        for own, other in zip(snapshot.table_schema.fields, added.table_schema.fields, strict=True)
        if own.name in names
    }
    chosen = [others[name].name for name in names]
    renamed = [
        replace(task, schema=pa.schema([f.with_name(n) for f, n in zip(task.schema, names, strict=True)]))
        for task in scan_tasks(added.layout, added, chosen)
    ]
    return [*tasks, *renamed]


# -- scan.fallback-branch ----------------------------------------------------------------------------------------------


def fallback(snapshot: PaimonSnapshot) -> PaimonSnapshot | None:
    """The fallback branch with only the files that readers of ``snapshot`` open; ``None`` if the table names none."""
    layout = _fallback_layout(snapshot)
    if layout is None:
        return None
    try:
        version = _version_then(snapshot, layout) if snapshot.by_version else None
        found = load_snapshot(Storage(layout.uri, layout.storage.options), version)
    except TableNotFoundError:
        raise _refused(snapshot, f"its fallback branch {layout.branch or _MAIN} does not exist") from None
    own, other = snapshot.table_schema, found.table_schema
    # A table without a key may fall back on one with a key, but not the other way round.
    if _columns(own) != _columns(other) or own.primary_keys not in ((), other.primary_keys):
        raise _refused(snapshot, f"its fallback branch {layout.branch or _MAIN} has other columns")
    here = {snapshot.partitions[code].row for code in pc.unique(snapshot.files["partition_code"]).to_pylist()}
    missing = int64s([code for code, each in enumerate(found.partitions) if each.row not in here])
    return replace(found, files=found.files.filter(pc.is_in(found.files["partition_code"], value_set=missing)))


def _fallback_layout(snapshot: PaimonSnapshot) -> Layout | None:
    name = snapshot.options.fallback_branch
    branch = None if name == _MAIN else name
    return Layout(snapshot.layout.storage, branch) if name and branch != snapshot.layout.branch else None


def _version_then(snapshot: PaimonSnapshot, layout: Layout) -> int:
    """The newest snapshot of a branch at the time of ``snapshot``. If it had none yet, Paimon takes the number 1."""
    versions = all_versions(layout)
    before = bisect_right(versions, snapshot.timestamp, key=lambda n: read_snapshot_file(layout, n).timestamp)
    if not before and versions[:1] != [1]:
        branch = layout.branch or _MAIN
        raise _refused(snapshot, f"its fallback branch {branch} has no snapshot that is as old as this one")
    return versions[max(before - 1, 0)]


def _columns(schema: Schema) -> list[object]:
    fields = [(each.id, replace(each.type, nullable=True)) for each in schema.fields]
    return [*fields, schema.partition_keys]


def _refused(snapshot: PaimonSnapshot, what: str) -> RefusedError:
    return RefusedError(
        f"{what} (scan.fallback-branch)",
        at=snapshot,
        next_step="correct the option, or read the branches one by one with Paimon",
    )


# -- query-auth.enabled ------------------------------------------------------------------------------------------------


def check_authorized(server: ServedTable | None, snapshot: PaimonSnapshot, columns: Sequence[str]) -> None:
    """Refuse a table whose catalog hides rows or values from the user.

    Raises
    ------
    RefusedError : so it does, or it is unknown because the table was opened by its path.
    StorageDeniedError : the user may not read these columns.
    """
    if not snapshot.options.flag(_AUTH):
        return
    if server is None:
        raise RefusedError(
            f"its catalog decides which rows a reader may see ({_AUTH})",
            at=snapshot,
            next_step="name the table by its REST catalog, which is then asked, or read it with Paimon",
        )
    if hidden := server.hides(columns):
        raise RefusedError(
            f"its catalog hides {hidden} from this user ({_AUTH}), and the files hold all of them",
            at=snapshot,
            next_step="read it with Paimon, whose readers apply the catalog's rules",
        )
