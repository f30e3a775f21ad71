"""The ``Table`` protocol for Lance: each method is a function of a module of this folder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

from dv_maintenance.errors import DvMaintenanceError
from dv_maintenance.storage import Storage
from dv_maintenance.tables.binding import Receiver, deferred
from dv_maintenance.tables.guard import VACUUM_DEFAULTS, VacuumRequest
from dv_maintenance.tables.lance.layout import stored_path
from dv_maintenance.tables.lance.snapshot import load_snapshot
from dv_maintenance.tables.rows import DeletesOnly
from dv_maintenance.tables.table import check_branch
from dv_maintenance.tables.versions import NumberedVersions

if TYPE_CHECKING:
    import pyarrow as pa

    from dv_maintenance.tables.lance import file_log, fsck, writable
    from dv_maintenance.tables.lance.commit import deletes, preflight, rewrites
    from dv_maintenance.tables.lance.log import history, refs, versions
    from dv_maintenance.tables.lance.rows import tasks
    from dv_maintenance.tables.lance.snapshot import LanceSnapshot
    from dv_maintenance.tables.lance.verbs import rename_manifests
    from dv_maintenance.tables.predicate import Predicate
    from dv_maintenance.tables.reports import UndeleteReport, VacuumReport
    from dv_maintenance.tables.rows import RowWriteTask
    from dv_maintenance.tables.table import Table
else:
    file_log, fsck, writable = deferred(__package__, "file_log", "fsck", "writable")
    deletes, preflight, rewrites = deferred(f"{__package__}.commit", "deletes", "preflight", "rewrites")
    history, refs, versions = deferred(f"{__package__}.log", "history", "refs", "versions")
    (tasks,) = deferred(f"{__package__}.rows", "tasks")
    (rename_manifests,) = deferred(f"{__package__}.verbs", "rename_manifests")

_of_storage = Receiver[Storage]("storage")
_of_root = Receiver[Storage]("root")


@dataclass(frozen=True, slots=True)
class LanceTable(NumberedVersions, DeletesOnly):
    """See ``dv_maintenance.tables.table.Table`` for what each method promises.

    The folder of a branch (``TABLE/tree/NAME``) is an ordinary table.

    storage : the table's folder.
    protected : URIs of clones whose files a vacuum keeps.
    """

    storage: Storage
    protected: tuple[str, ...] = ()
    format: ClassVar[str] = "lance"

    @property
    def uri(self) -> str:
        return self.storage.uri

    path_of = staticmethod(stored_path)

    version = _of_storage(versions.latest_version)
    probe = _of_storage(versions.probe)
    stamp = _of_storage(versions.stamp)

    def snapshot(self, version: int | None = None) -> LanceSnapshot:
        return load_snapshot(self.storage, version)

    def advanced(self, kept: LanceSnapshot, version: int) -> LanceSnapshot | None:
        """Fragments of ``kept`` that did not change are not parsed again."""
        try:
            return load_snapshot(self.storage, version, known=kept)
        except DvMaintenanceError:
            # Whatever is wrong, a full read reports it better.
            return None

    changes_since = _of_storage(history.changes_since)
    oldest_dv = _of_storage(history.oldest_dv)
    history = _of_storage(history.history)
    file_log = _of_storage(file_log.file_log)

    def check_writable(self, snapshot: LanceSnapshot, operation: str) -> None:
        self.storage.fence.check_open()
        writable.check_writable(snapshot, operation)

    scan_tasks = _of_storage(tasks.scan_tasks)
    rewrite_tasks = _of_storage(tasks.rewrite_tasks)
    commit = _of_storage(rewrites.commit)
    commit_changes = _of_storage(deletes.commit_deletes)

    def may_match(self, snapshot: LanceSnapshot, predicate: Predicate) -> pa.BooleanArray:
        import pyarrow as pa

        del predicate  # manifests have no column statistics
        return pa.array([True] * snapshot.files.num_rows, pa.bool_())

    def row_write_tasks(self, snapshot: LanceSnapshot, target_bytes: int) -> tuple[RowWriteTask, RowWriteTask]:
        del target_bytes
        raise writable.refused(snapshot, "update")

    def retention(self, snapshot: LanceSnapshot) -> int:
        from dv_maintenance.tables.lance.vacuum.retention import own_retention

        return own_retention(snapshot.manifest, self.uri)

    def vacuum(self, request: VacuumRequest = VACUUM_DEFAULTS) -> VacuumReport:
        from dv_maintenance.tables.lance.vacuum.run import vacuum

        return vacuum(self.storage, replace(request, clones=self.protected))

    def undelete(self, *, since: int | None = None, until: int | None = None, dry_run: bool = False) -> UndeleteReport:
        from dv_maintenance.tables.lance.layout import check_folders
        from dv_maintenance.tables.lance.vacuum.undelete import LanceUndeleteRules
        from dv_maintenance.tables.quarantine import undelete

        check_folders(self.storage)
        rules = LanceUndeleteRules(self.storage)
        return undelete(self.storage, self.version, rules, since=since, until=until, dry_run=dry_run)

    def is_clone(self) -> bool:
        return bool(versions.load_manifest(self.storage)[1].base_paths)

    def protecting(self, clones: Sequence[str]) -> LanceTable:
        return LanceTable(self.storage, (*self.protected, *clones))

    rename_manifests = _of_storage(rename_manifests.rename_manifests)
    preflight = _of_storage(preflight.preflight)
    needed_files = _of_storage(fsck.needed_files)
    stored_sources = _of_storage(fsck.stored_sources)
    remedies = _of_storage(fsck.remedies)

    log_faults = _of_storage(fsck.log_faults)

    tags = _of_root(refs.tags)
    branches = _of_root(refs.branches)

    def branch(self, name: str) -> LanceTable:
        """One of the ``branches``. Raises UsageError if there is no such branch."""
        known = self.branches()
        check_branch(self.uri, name, known)
        place = self.root
        return LanceTable(Storage(place.uri_of(known[name].path), place.options), self.protected)

    @property
    def root(self) -> Storage:
        """The folder of the table, also for a branch."""
        # Only a branch can be in such a folder, and only its manifest shows how much of the path is its name.
        if "/tree/" not in self.uri:
            return self.storage
        return refs.root(self.storage, versions.load_manifest(self.storage)[1].branch)


if TYPE_CHECKING:

    def _conforms(table: LanceTable) -> Table[LanceSnapshot]:
        return table
