"""The ``Table`` protocol for Paimon: each method is a function of a module of this folder."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, ClassVar

from dv_maintenance.errors import DvMaintenanceError, UsageError
from dv_maintenance.storage import Storage
from dv_maintenance.tables.binding import Receiver, deferred
from dv_maintenance.tables.guard import VACUUM_DEFAULTS, VacuumRequest
from dv_maintenance.tables.paimon.layout import Layout, table_layout
from dv_maintenance.tables.paimon.served import ServedTable, Target
from dv_maintenance.tables.paimon.snapshot import load_snapshot
from dv_maintenance.tables.registry import Location, at_root
from dv_maintenance.tables.rows import DeletesOnly
from dv_maintenance.tables.table import check_branch, refusal_of_rewrites
from dv_maintenance.tables.versions import NumberedVersions

if TYPE_CHECKING:
    from dv_maintenance.tables.fsck import LogFault
    from dv_maintenance.tables.paimon import file_log, fsck, writable
    from dv_maintenance.tables.paimon.commit import deletes, rewrites
    from dv_maintenance.tables.paimon.log import history, refs, snapshots
    from dv_maintenance.tables.paimon.rows import reading, rewrite_tasks, skipping, tasks
    from dv_maintenance.tables.paimon.snapshot import PaimonSnapshot
    from dv_maintenance.tables.paimon.vacuum import run
    from dv_maintenance.tables.paimon.verbs import engine_sql
    from dv_maintenance.tables.reports import UndeleteReport, VacuumReport
    from dv_maintenance.tables.rows import RowWriteTask
    from dv_maintenance.tables.table import Table
    from dv_maintenance.tables.work import SourceFile
else:
    file_log, fsck, writable = deferred(__package__, "file_log", "fsck", "writable")
    deletes, rewrites = deferred(f"{__package__}.commit", "deletes", "rewrites")
    history, refs, snapshots = deferred(f"{__package__}.log", "history", "refs", "snapshots")
    reading, rewrite_tasks, skipping, tasks = deferred(
        f"{__package__}.rows", "reading", "rewrite_tasks", "skipping", "tasks"
    )
    (run,) = deferred(f"{__package__}.vacuum", "run")
    (engine_sql,) = deferred(f"{__package__}.verbs", "engine_sql")

_of_place = Receiver[Storage]("place")
_of_layout = Receiver[Layout]("layout")
_of_target = Receiver[Target]("target")
_at_root = at_root(f"{__name__}:PaimonTable")


def open_at(location: Location) -> Table[Any]:
    """The table at a location. Raises UnsupportedFeatureError as ``registry.at_root``."""
    if isinstance(location.catalog, ServedTable):
        return PaimonTable(location.storage, location.catalog)
    return _at_root(location)


@dataclass(frozen=True, slots=True)
class PaimonTable(NumberedVersions, DeletesOnly):
    """A Paimon table, or a branch of one (``TABLE/branch/branch-NAME``).

    See ``dv_maintenance.tables.table.Table`` for what each method promises.

    place : the folder of the table or of the branch.
    server : of a table of a REST catalog.
    """

    place: Storage
    server: ServedTable | None = None
    format: ClassVar[str] = "paimon"

    @property
    def uri(self) -> str:
        return self.place.uri

    @property
    def storage(self) -> Storage:
        """The storage of the table's root, also for a branch: paths are relative to it."""
        return self.layout.storage

    @property
    def layout(self) -> Layout:
        return table_layout(self.place)

    @property
    def target(self) -> Target:
        return Target(self.place, self.server)

    def path_of(self, name: str) -> str:
        return name

    version = _of_layout(snapshots.latest_version)
    probe = _of_layout(snapshots.probe)
    stamp = _of_layout(snapshots.stamp)

    def snapshot(self, version: int | None = None) -> PaimonSnapshot:
        return load_snapshot(self.place, version)

    def advanced(self, kept: PaimonSnapshot, version: int) -> PaimonSnapshot | None:
        """Manifests that ``kept`` has read are not read again."""
        try:
            return None if version < kept.version else load_snapshot(self.place, version, known=kept)
        except DvMaintenanceError:
            # A full read reports whatever is wrong more precisely.
            return None

    changes_since = _of_place(history.changes_since)
    oldest_dv = _of_place(history.oldest_dv)
    history = _of_place(history.history)
    file_log = _of_place(file_log.file_log)

    def check_writable(self, snapshot: PaimonSnapshot, operation: str) -> None:
        self.place.fence.check_open()
        if operation == "vacuum":
            return run.check_cleanable(self.layout)
        if operation == "delete":
            reading.check_authorized(self.server, snapshot, snapshot.schema.names)
        return writable.check_writable(self.layout, snapshot, operation)

    engine_only_reason = refusal_of_rewrites

    scan_tasks = _of_layout(tasks.scan_tasks)
    read_tasks = _of_target(reading.read_tasks)
    rewrite_tasks = _of_layout(rewrite_tasks.rewrite_tasks)
    commit = _of_target(rewrites.commit_replacements)
    may_match = _of_layout(skipping.may_match)
    commit_changes = _of_target(deletes.commit_deletes)

    def row_write_tasks(self, snapshot: PaimonSnapshot, target_bytes: int) -> tuple[RowWriteTask, RowWriteTask]:
        del target_bytes
        raise writable.refused(snapshot, "update")

    def retention(self, snapshot: PaimonSnapshot) -> int:
        from dv_maintenance.tables.paimon.vacuum.retention import retention_of

        return retention_of(snapshot.properties, self.uri, None, allow_short=False).kept_for

    def vacuum(self, request: VacuumRequest = VACUUM_DEFAULTS) -> VacuumReport:
        return run.vacuum(self.target, request)

    def undelete(self, *, since: int | None = None, until: int | None = None, dry_run: bool = False) -> UndeleteReport:
        from dv_maintenance.tables.paimon.vacuum.undelete import PaimonUndeleteRules
        from dv_maintenance.tables.quarantine import undelete

        rules = PaimonUndeleteRules(self.storage)
        return undelete(self.storage, self.version, rules, since=since, until=until, dry_run=dry_run)

    @property
    def engine_extension(self) -> str:
        from dv_maintenance.tables.paimon.verbs.engine_sql import EXTENSION

        return EXTENSION

    @property
    def engine_advice(self) -> str:
        from dv_maintenance.tables.paimon.verbs.engine_sql import ADVICE

        return ADVICE

    engine_name = _of_layout(engine_sql.name_of)
    engine_probe = staticmethod(engine_sql.probe)
    engine_statements = staticmethod(engine_sql.statements)
    engine_only_moves_rows = _of_layout(engine_sql.only_moves_rows)
    engine_waiting = _of_layout(engine_sql.waiting)
    engine_rows = staticmethod(engine_sql.rows_query)

    def engine_sources(self, snapshot: PaimonSnapshot) -> Iterable[SourceFile]:
        """The files of the snapshot and of every tag."""
        tagged = (self.snapshot(tag.snapshot.id) for tag in self.tags().values())
        return engine_sql.sources(self.layout, chain([snapshot], tagged))

    needed_files = staticmethod(fsck.needed_files)
    stored_sources = _of_layout(engine_sql.stored_sources)
    remedies = staticmethod(fsck.remedies)

    def log_faults(self, snapshot: PaimonSnapshot) -> tuple[LogFault, ...]:
        del snapshot
        return ()

    tags = _of_layout(refs.tags)
    consumers = _of_layout(refs.consumers)
    branches = _of_layout(refs.branches)

    def branch(self, name: str) -> PaimonTable:
        """One of the ``branches``. Raises UsageError if there is no such branch, or the table is of a REST catalog."""
        known = self.branches()
        check_branch(self.uri, name, known)
        if self.server is not None:
            # By its folder, it would be changed without the server.
            opened = f"{self.server.name}$branch_{name}"
            raise UsageError("its branches are opened by their names", table=self.uri, next_step=f"open {opened}")
        root = self.layout.storage
        return PaimonTable(Storage(root.uri_of(f"branch/branch-{name}"), root.options))


if TYPE_CHECKING:

    def _conforms(table: PaimonTable) -> Table[PaimonSnapshot]:
        return table
