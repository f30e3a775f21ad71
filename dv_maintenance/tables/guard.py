"""What a vacuum is kept from, beyond what its table needs: how much it may delete, and what is to be protected.

The cap is for a vacuum that sees the wrong thing: a log that was put back from an old backup, a root one folder too
high, files of another table. Then it takes for expired what the history never named, and that is most of what there is.
What the history says that it took out is what vacuums are for: by default the cap leaves it aside.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from dv_maintenance.errors import RefusedError

if TYPE_CHECKING:
    from dv_maintenance.tables.model import ExpiredFile

__all__ = ["DEFAULT_SHARE", "NO_GUARD", "QUARANTINE_RETENTION", "VacuumGuard"]

DEFAULT_SHARE: Final = 0.5
QUARANTINE_RETENTION: Final = 7 * 86_400_000
_SMALL: Final = 100  # files: fewer are no matter for the default cap


@dataclass(frozen=True, slots=True)
class VacuumGuard:
    """``max_deleted_share``: the largest share, of files or of bytes, that one run may delete, however few they are;
    ``None``: half of both, of files that the history does not name, in runs that delete at least a hundred of those.
    ``versions``: pinned, all of their files stay. ``streams``: checkpoint folders of streaming readers, whatever they
    may still have to read stays. ``quarantine``: files are set aside instead of deleted, and deleted by a vacuum that
    runs ``quarantine_retention`` milliseconds later.
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
        """Why a run that would delete these ``files`` out of so many files and bytes is refused. ``of_bytes``: ``None``
        where nobody knows. ``unexplained``: those of files that the history does not say it took out; costly.
        """
        if self.max_deleted_share is not None:
            shares = _shares(files, of_files, of_bytes)
            return _told(files, "", shares, self.max_deleted_share) if max(shares) > self.max_deleted_share else None
        if not _too_much(files, of_files, of_bytes):
            return None
        unknown = unexplained(files)
        if not _too_much(unknown, of_files, of_bytes):
            return None
        shares = _shares(unknown, of_files, of_bytes)
        return _told(unknown, " that the table's history does not know", shares, DEFAULT_SHARE)

    def check(self, refusal: str | None, *, table: str, version: int) -> None:
        """Raises RefusedError: nothing was deleted."""
        if refusal is not None:
            raise RefusedError(
                refusal,
                table=table,
                version=version,
                next_step="see with --dry-run whether this is the right table and its log is whole; if all of that may "
                "go, allow it once: --max-deleted-share 1",
            )

    def refuse_streams(self, format_name: str, *, table: str, next_step: str) -> None:
        """For formats whose streaming readers leave no checkpoint that could be read here. Raises RefusedError."""
        if self.streams:
            raise RefusedError(
                f"checkpoints of streams do not say what they have yet to read of {format_name} tables",
                table=table,
                next_step=next_step,
            )


def _too_much(files: Sequence[ExpiredFile], of_files: int, of_bytes: int | None) -> bool:
    """Many small files may be most of the files, a few large ones most of the bytes: only both together are strange."""
    return len(files) >= _SMALL and min(_shares(files, of_files, of_bytes)) > DEFAULT_SHARE


def _shares(files: Sequence[ExpiredFile], of_files: int, of_bytes: int | None) -> tuple[float, float]:
    """Of files and of bytes."""
    size = sum(file.size for file in files)
    by_files = len(files) / max(of_files, len(files), 1)
    return by_files, by_files if of_bytes is None else size / max(of_bytes, size, 1)


def _told(files: Sequence[ExpiredFile], which: str, shares: tuple[float, float], allowed: float) -> str:
    return (
        f"the run would delete {len(files):,} files{which}, {shares[0]:.1%} of all files and {shares[1]:.1%} of the "
        f"bytes; max_deleted_share allows {allowed:.0%}"
    )


NO_GUARD: Final = VacuumGuard()
