"""Limits on a vacuum beyond what its table needs: a cap on what it may delete, and files that it must keep.

The cap stops a vacuum that works on wrong input: a log restored from an old backup, a root one folder too high, files
of another table. Such a vacuum takes most of the stored files for expired, although the history never named them.
Vacuums exist to delete files that the history removed, so the default cap does not count those.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from dv_maintenance.errors import RefusedError
from dv_maintenance.remedies import Remedy, setting
from dv_maintenance.units import DAY, count, epoch_millis

if TYPE_CHECKING:
    from dv_maintenance.tables.model import ExpiredFile

DEFAULT_SHARE: Final = 0.5
QUARANTINE_RETENTION: Final = 7 * DAY
_SMALL: Final = 100  # files: the default cap ignores runs that delete fewer


@dataclass(frozen=True, slots=True)
class VacuumGuard:
    """The limits that a caller sets on a vacuum.

    max_deleted_share : largest share of files or of bytes that one run may delete, however few files that is. ``None``:
        half of the files and half of the bytes, counting only files that the history does not name, in runs that
        delete at least a hundred of those.
    versions : pinned versions; all of their files are kept.
    streams : checkpoint folders of streaming readers; every file that they may still have to read is kept.
    quarantine : whether files are quarantined instead of deleted.
    quarantine_retention : milliseconds after which a later vacuum deletes what was quarantined.
    """

    max_deleted_share: float | None = None
    versions: tuple[int, ...] = ()
    streams: tuple[str, ...] = ()
    quarantine: bool = False
    quarantine_retention: int = QUARANTINE_RETENTION

    def refusal(
        self,
        files: Sequence[ExpiredFile],
        of_files: int,
        of_bytes: int | None,
        unexplained: Callable[[Sequence[ExpiredFile]], Sequence[ExpiredFile]] = tuple,
    ) -> str | None:
        """Why the run that would delete ``files`` is refused, or ``None``.

        of_files : number of files in the table's folder.
        of_bytes : their size, ``None`` if unknown.
        unexplained : filters files down to those that the history does not record as removed. Costly.
        """
        if self.max_deleted_share is not None:
            shares = _shares(files, of_files, of_bytes)
            return (
                _too_many(files, "", shares, self.max_deleted_share) if max(shares) > self.max_deleted_share else None
            )
        if not _too_much(files, of_files, of_bytes):
            return None
        unknown = unexplained(files)
        if not _too_much(unknown, of_files, of_bytes):
            return None
        shares = _shares(unknown, of_files, of_bytes)
        return _too_many(unknown, " that the table's history does not know", shares, DEFAULT_SHARE)

    def check(self, refusal: str | None, *, table: str, version: int) -> None:
        """Raises RefusedError: nothing was deleted."""
        if refusal is not None:
            raise RefusedError(
                refusal,
                table=table,
                version=version,
                next_step=Remedy(
                    "check with {} that this is the right table and that its log is complete; if all of these files "
                    "may be deleted, allow it once: {}",
                    (setting("dry_run"), setting("max_deleted_share", 1)),
                ),
            )

    def check_versions(self, there: Collection[int], noun: str, *, table: str, version: int) -> None:
        """Raises RefusedError: a pinned version does not exist. ``noun``: what the format calls a version."""
        if lost := set(self.versions).difference(there):
            raise RefusedError(
                f"{noun} {min(lost)} is to be protected, but does not exist",
                table=table,
                version=version,
                next_step=Remedy("remove it from {} if it is no longer needed", (setting("protected_versions"),)),
            )

    def refuse_streams(self, format_name: str, *, table: str, next_step: str) -> None:
        """Refuse protected streams for a format whose stream checkpoints can't be read here. Raises RefusedError."""
        if self.streams:
            raise RefusedError(
                f"stream checkpoints do not record what they have yet to read from {format_name} tables",
                table=table,
                next_step=next_step,
            )


def _too_much(files: Sequence[ExpiredFile], of_files: int, of_bytes: int | None) -> bool:
    """Whether both shares exceed the cap. One alone is normal: many small files can be most of the files, and a few
    large ones most of the bytes.
    """
    return len(files) >= _SMALL and min(_shares(files, of_files, of_bytes)) > DEFAULT_SHARE


def _shares(files: Sequence[ExpiredFile], of_files: int, of_bytes: int | None) -> tuple[float, float]:
    """The shares of files and of bytes."""
    size = sum(file.size for file in files)
    by_files = len(files) / max(of_files, len(files), 1)
    return by_files, by_files if of_bytes is None else size / max(of_bytes, size, 1)


def _too_many(files: Sequence[ExpiredFile], which: str, shares: tuple[float, float], allowed: float) -> str:
    return (
        f"the run would delete {count(len(files), 'file')}{which}, {shares[0]:.1%} of all files and {shares[1]:.1%} of "
        f"the bytes; max_deleted_share allows {allowed:.0%}"
    )


NO_GUARD: Final = VacuumGuard()


@dataclass(frozen=True, slots=True)
class VacuumRequest:
    """What a caller asks of a vacuum. Faces make one, and it is passed whole to the format.

    retention : milliseconds; ``None``: the table's own, or the format's default.
    dry_run : only find the files.
    lite : trust the log instead of listing the table, in formats with such a log. Finds no files that were written and
        never committed.
    allow_short_retention : accept a retention below the table's own.
    now : epoch milliseconds; ``None``: the clock.
    clones : paths or URIs of shallow clones, whose files are kept.
    clones_under : folders or prefixes that are searched for clones.
    guard : what else is protected, and how much one run may delete.
    """

    retention: int | None = None
    dry_run: bool = False
    lite: bool = False
    allow_short_retention: bool = False
    now: int | None = None
    clones: tuple[str, ...] = ()
    clones_under: tuple[str, ...] = ()
    guard: VacuumGuard = NO_GUARD

    @property
    def moment(self) -> int:
        """``now``, or the clock."""
        return epoch_millis(self.now)


VACUUM_DEFAULTS: Final = VacuumRequest()
