"""The ``Table`` protocol for Delta: each method is a function of a module of this folder."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

from dv_maintenance.storage import RawName, Storage
from dv_maintenance.tables.binding import Receiver, deferred
from dv_maintenance.tables.guard import VACUUM_DEFAULTS, VacuumRequest
from dv_maintenance.tables.versions import NumberedVersions

if TYPE_CHECKING:
    from dv_maintenance.tables.capabilities import EngineName, WaitingRows
    from dv_maintenance.tables.delta import advance, features, file_log, fsck, load
    from dv_maintenance.tables.delta.commit import ratification, rewrites, row_changes
    from dv_maintenance.tables.delta.log import history, log_cleanup, segment, timeline
    from dv_maintenance.tables.delta.rows import bounds, change_feed, clustering, new_rows, order, skipping, tasks
    from dv_maintenance.tables.delta.snapshot import DeltaSnapshot
    from dv_maintenance.tables.delta.vacuum import holders as clones
    from dv_maintenance.tables.delta.vacuum import retention
    from dv_maintenance.tables.delta.verbs import convert, downgrade, engine_sql, manifest, recount, restore
    from dv_maintenance.tables.model import Change, Snapshot
    from dv_maintenance.tables.registry import Location
    from dv_maintenance.tables.reports import UndeleteReport, VacuumReport
    from dv_maintenance.tables.table import Table
    from dv_maintenance.tables.work import SourceFile
else:
    advance, features, file_log, fsck, load = deferred(__package__, "advance", "features", "file_log", "fsck", "load")
    ratification, rewrites, row_changes = deferred(f"{__package__}.commit", "ratification", "rewrites", "row_changes")
    history, log_cleanup, segment, timeline = deferred(
        f"{__package__}.log", "history", "log_cleanup", "segment", "timeline"
    )
    bounds, change_feed, clustering, new_rows, order, skipping, tasks = deferred(
        f"{__package__}.rows", "bounds", "change_feed", "clustering", "new_rows", "order", "skipping", "tasks"
    )
    clones, retention = deferred(f"{__package__}.vacuum", "holders", "retention")
    convert, downgrade, engine_sql, manifest, recount, restore = deferred(
        f"{__package__}.verbs", "convert", "downgrade", "engine_sql", "manifest", "recount", "restore"
    )

_of_storage = Receiver[Storage]("storage")


@dataclass(frozen=True, slots=True)
class DeltaTable(NumberedVersions):
    """See ``dv_maintenance.tables.table.Table`` for what each method promises."""

    storage: Storage
    protected: tuple[str, ...] = ()
    """Locations of shallow clones; a vacuum keeps the files that they need."""
    format: ClassVar[str] = "delta"

    @property
    def uri(self) -> str:
        return self.storage.uri

    def path_of(self, name: str) -> str:
        return self.storage.path_of(RawName(name))

    version = _of_storage(segment.latest_version)
    probe = _of_storage(segment.probe)
    stamp = _of_storage(segment.stamp)
    snapshot = _of_storage(load.load_snapshot)
    advanced = _of_storage(advance.advanced)
    changes_since = _of_storage(history.changes_since)
    oldest_dv = _of_storage(history.oldest_dv)
    history = _of_storage(history.history)
    file_log = _of_storage(file_log.file_log)
    version_at = _of_storage(timeline.version_at)
    change_feed = _of_storage(change_feed.change_feed)

    check_writable = _of_storage(features.check_writable)
    scan_tasks = _of_storage(tasks.scan_tasks)
    rewrite_tasks = _of_storage(tasks.rewrite_tasks)
    commit = _of_storage(rewrites.commit_replacements)
    ordered_by = staticmethod(order.ordered_by)
    clustered_by = staticmethod(clustering.clustered_by)
    clustered = staticmethod(clustering.clustered)

    may_match = _of_storage(skipping.may_match)
    column_bounds = _of_storage(bounds.column_bounds)
    local_times = staticmethod(bounds.local_times)
    row_rules = staticmethod(new_rows.row_rules)
    row_write_tasks = _of_storage(new_rows.row_write_tasks)
    commit_changes = _of_storage(row_changes.commit_changes)

    retention = staticmethod(retention.own_retention)

    def vacuum(self, request: VacuumRequest = VACUUM_DEFAULTS) -> VacuumReport:
        from dv_maintenance.tables.delta.vacuum.run import vacuum

        return vacuum(self.storage, replace(request, clones=self.protected))

    def undelete(self, *, since: int | None = None, until: int | None = None, dry_run: bool = False) -> UndeleteReport:
        from dv_maintenance.tables.delta.permissions import check_permitted
        from dv_maintenance.tables.quarantine import undelete

        check_permitted(self.storage, "vacuum", ask=True)
        return undelete(self.storage, self.version, since=since, until=until, dry_run=dry_run)

    is_clone = _of_storage(clones.is_clone)

    def protecting(self, clones: Sequence[str]) -> DeltaTable:
        return DeltaTable(self.storage, (*self.protected, *clones))

    needed_files = _of_storage(fsck.needed_files)
    log_faults = _of_storage(fsck.log_faults)
    stored_sources = _of_storage(tasks.stored_sources)
    remedies = _of_storage(fsck.remedies)

    restore = _of_storage(restore.restore)
    checkpoint = _of_storage(log_cleanup.checkpoint)
    publish = _of_storage(ratification.publish)
    recount = _of_storage(recount.recount)
    downgrade_steps = _of_storage(downgrade.downgrade_steps)
    take_downgrade_step = _of_storage(downgrade.take_downgrade_step)
    adopted = _of_storage(convert.adopted)
    adopt = _of_storage(convert.adopt)
    write_manifests = _of_storage(manifest.write_manifests)

    engine_extension: ClassVar[str] = "io.delta.sql.DeltaSparkSessionExtension"
    engine_advice: ClassVar[str] = (
        f"put the engine's jars on its class path, and {engine_extension} into spark.sql.extensions"
    )
    engine_name = _of_storage(engine_sql.engine_name)
    engine_statements = staticmethod(engine_sql.statements)

    def engine_probe(self, name: EngineName, snapshot: Snapshot) -> tuple[str, tuple[Any, ...]] | None:
        del name, snapshot
        return None

    def engine_only_moves_rows(self, change: Change) -> bool:
        return not change.data_changed

    def engine_waiting(self, old: Snapshot, new: Snapshot) -> WaitingRows | None:
        del old, new
        return None

    def engine_rows(self, name: EngineName, snapshot: Snapshot) -> str | None:
        del name, snapshot
        return None

    def engine_sources(self, snapshot: DeltaSnapshot) -> Iterable[SourceFile]:
        return (task.sources[0] for task in self.scan_tasks(snapshot))


def opened(location: Location) -> DeltaTable:
    """The table at a location. Of one whose commits a catalog ratifies, the log is as the catalog says. Raises
    UnsupportedFeatureError for a catalog that does not say whether it does.
    """
    from dv_maintenance.tables.registry import NamedTable

    if location.catalog is None or isinstance(location.catalog, NamedTable):
        return DeltaTable(location.storage)
    from dv_maintenance.tables.delta.log.ratified import managed_storage

    return DeltaTable(managed_storage(location))


if TYPE_CHECKING:

    def _conforms(table: DeltaTable) -> Table[DeltaSnapshot]:
        return table
