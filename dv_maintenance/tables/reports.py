"""What verbs of a table report. A format fills in what it did; the verb adds the table, and what it read back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from dv_maintenance.report import Report
from dv_maintenance.tables.model import ExpiredFiles, ExpiringFiles
from dv_maintenance.units import iso_timestamp


class _Number:
    """How many of the expired files are of a kind."""

    def __init__(self, kind: str) -> None:
        self._kind = kind

    def __get__(self, report: VacuumReport, owner: type[VacuumReport]) -> int:
        return sum(file.kind == self._kind for file in report.expired.files)


@dataclass(frozen=True, slots=True, repr=False)
class VacuumReport(Report):
    """What a vacuum deleted, or would under ``dry_run``.

    expired : the files, when they became unneeded, and what was kept.
    deleted : how many of them were deleted; 0 in a dry run.
    refused : in a dry run, why a real run would delete nothing.
    protected : each version, stream and clone that was protected, with the number of files that it names; it is listed
        even if none of them had expired.
    quarantine : the folder to which the files were moved instead of being deleted; in a dry run, the one above it.
    emptied : files of earlier runs that were deleted from the quarantine.
    data_files ... other_files : number of expired files, by kind.
    version_files : expired manifests of versions, in formats that have one per version.
    """

    expired: ExpiredFiles
    deleted: int
    dry_run: bool
    version_before: int
    version_after: int
    refused: str | None = None
    protected: tuple[str, ...] = ()
    quarantine: str | None = None
    emptied: int = 0

    data_files = _Number("data")
    dv_files = _Number("dv")
    change_files = _Number("change")
    index_files = _Number("index")
    transaction_files = _Number("transaction")
    version_files = _Number("manifest")
    other_files = _Number("other")

    @property
    def cutoff(self) -> int:
        """Epoch milliseconds."""
        return self.expired.cutoff

    @property
    def retention(self) -> int:
        """Milliseconds."""
        return self.expired.retention

    @property
    def bytes(self) -> int:
        """Total size of the expired files."""
        return sum(file.size for file in self.expired.files)

    @property
    def kept(self) -> Mapping[str, int]:
        """Number of files by reason, in plain words."""
        return self.expired.kept

    @property
    def expiring(self) -> tuple[ExpiringFiles, ...] | None:
        """Data files inside the retention, by the day on which they can go; ``None``: not recorded."""
        return self.expired.expiring

    @property
    def paths(self) -> tuple[str, ...] | None:
        """The expired files, relative to the table; only in a dry run."""
        return tuple(file.path for file in self.expired.files) if self.dry_run else None

    def facts(self) -> dict[str, Any]:
        names = (
            "table version_before version_after dry_run cutoff retention data_files dv_files change_files index_files "
            "transaction_files version_files other_files bytes deleted kept protected refused quarantine emptied "
            "expiring paths"
        )
        return {name: getattr(self, name) for name in names.split()}

    def to_json(self) -> dict[str, Any]:
        body = self.facts()
        body = {"table": body.pop("table"), "format": self.format, **body}
        body |= {"kept": dict(self.kept), "protected": list(self.protected)}
        for name in ("protected", "refused", "quarantine", "emptied"):
            if not body[name]:
                del body[name]
        expiring, paths = body.pop("expiring"), body.pop("paths")
        if expiring is not None:
            body["expiring"] = [
                {"from": iso_timestamp(each.at), "files": each.files, "bytes": each.bytes} for each in expiring
            ]
        return body if paths is None else {**body, "paths": list(paths)}


@dataclass(frozen=True, slots=True, repr=False)
class RestoreReport(Report):
    """What a restore did, or would do under ``dry_run``. Bytes are those of data files.

    version_before : the newest version before the restore.
    restored : the version whose state was restored.
    version_after : the committed version; ``version_before`` if nothing was committed.
    properties : names of the table properties that the restore changed.
    features : table features that it added again.
    verified : the committed version was read back, and has exactly the files, deleted rows and columns of the restored
        one.
    problems : what reading back found otherwise.
    """

    restored: int
    version_before: int
    version_after: int
    dry_run: bool
    files_restored: int
    bytes_restored: int
    files_removed: int
    bytes_removed: int
    files_after: int
    bytes_after: int
    dvs_restored: int
    schema_changed: bool
    properties: tuple[str, ...]
    features: tuple[str, ...]
    attempts: int
    verified: bool = False
    problems: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, repr=False)
class CheckpointReport(Report):
    """The result of a checkpoint.

    written : whether this run wrote the checkpoint: ``version`` had none, and this is not a dry run.
    present : whether ``version`` had a checkpoint before.
    last : the newest complete checkpoint before this run; ``None`` without one.
    replayed : commits after it, which readers replay.
    live_files : data files in the checkpoint.
    cutoff : epoch milliseconds; log files older than it could be deleted. ``None`` if none could.
    first_version : the first version of the log after this run; for a dry run, after the real one.
    pointer : why other readers could not use the pointer to the newest checkpoint; a run that is not dry renews it.
    """

    version: int
    written: bool
    present: bool
    last: int | None
    replayed: int
    live_files: int
    dry_run: bool
    cutoff: int | None
    first_version: int
    log_files_expired: int
    log_files_deleted: int
    pointer: str | None = None

    def to_json(self) -> dict[str, Any]:
        body = asdict(self)
        del body["replayed"]
        return body


@dataclass(frozen=True, slots=True, repr=False)
class PublishReport(Report):
    """Ratified commits that were published, or would be under ``dry_run``. ``version``: the newest version.

    copied : versions that the log itself lacked.
    replaced : versions whose copy was not what the catalog has ratified.
    right : other versions that the catalog still held.
    """

    version: int
    dry_run: bool
    copied: tuple[int, ...]
    replaced: tuple[int, ...]
    right: tuple[int, ...]


@dataclass(frozen=True, slots=True, repr=False)
class UndeleteReport(Report):
    """The result of an undelete.

    version : the newest version, which an undelete does not change.
    files, bytes : what was undeleted, or would be under ``dry_run``.
    taken : files kept in quarantine because a file of that name exists.
    gone : files that a concurrent run deleted from the quarantine.
    held : files kept in quarantine because their return would do harm; reason -> number.
    """

    version: int
    dry_run: bool
    files: int
    bytes: int
    taken: int
    gone: int
    held: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, repr=False)
class ManifestReport(Report):
    """The symlink manifests that were written.

    manifests : paths of the manifests written, relative to the table.
    files : number of data files that the manifests list.
    removed : paths of the manifests removed.
    purged : whether DVs were purged first; in a dry run, whether they would be.
    note : in formats without symlink manifests, why nothing was written.
    dry_run : nothing was written. If DVs would be purged first, the manifests are not known yet.
    """

    version: int
    manifests: tuple[str, ...]
    files: int
    removed: tuple[str, ...] = ()
    purged: bool = False
    note: str | None = None
    dry_run: bool = False


@dataclass(frozen=True, slots=True, repr=False)
class RenameReport(Report):
    """The result of renaming manifests.

    version : the newest version.
    renamed : manifests that got a new name, or would under ``dry_run``.
    done : manifests that had the new name before.
    """

    version: int
    renamed: int
    done: int
    dry_run: bool
