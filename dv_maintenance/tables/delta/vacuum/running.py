"""Vacuums that are running on a table according to its log: each ``VACUUM START`` without a ``VACUUM END``.

Vacuums of this package commit the START before their last check of the needed files, and the END after their last
delete. So a commit may safely name files that were not live right before it, on two conditions: no vacuum is open in
the version that the commit follows, and the commit's files were checked after that version was read. Marks do not
identify their vacuum. An END closes the latest START, so at worst one vacuum too many counts as open, never one too
few.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from dv_maintenance.tables.delta.log.segment import commit_files, read_commits
from dv_maintenance.units import DAY, epoch_millis, parse_count

if TYPE_CHECKING:
    from dv_maintenance.storage import Storage
    from dv_maintenance.tables.delta.log.actions import Action

START: Final = "VACUUM START"
END: Final = "VACUUM END"

_LONGEST: Final = 7 * DAY
"""Milliseconds after which a vacuum without an END counts as dead: no vacuum takes that long."""


@dataclass(frozen=True, slots=True)
class VacuumMark:
    """A ``VACUUM START`` or, if not ``started``, a ``VACUUM END``.

    cutoff : epoch milliseconds, on the vacuum's clock. Files modified before it may be deleted. Never earlier than the
        cutoff that the vacuum uses.
    engine : the writer of the mark, as its ``engineInfo`` names it.
    """

    version: int
    started: bool
    cutoff: int = 0
    engine: str = "unknown"


def marks_of(version: int, info: Mapping[str, Any]) -> tuple[VacuumMark, ...]:
    """The vacuum mark in the ``commitInfo`` of a version: one or none."""
    match info.get("operation"):
        case "VACUUM END":
            return (VacuumMark(version, started=False),)
        case "VACUUM START":
            parameters = info.get("operationParameters")
            retention = _retention(parameters if isinstance(parameters, dict) else {})
            stamp = info.get("timestamp")
            when = stamp if type(stamp) is int else epoch_millis()
            return (VacuumMark(version, True, when - retention, str(info.get("engineInfo") or "unknown")),)
        case _:
            return ()


def running_vacuums(marks: Iterable[VacuumMark]) -> list[VacuumMark]:
    """The STARTs that no END closes, oldest first. ``marks``: those of a stretch of history, oldest first."""
    found: list[VacuumMark] = []
    for mark in marks:
        if mark.started:
            found.append(mark)
        elif found:
            found.pop()
    return found


def marks_before(storage: Storage, version: int) -> list[VacuumMark]:
    """The marks of the versions up to this one, oldest first, as far back as a vacuum may still be at work.

    Raises
    ------
    DamagedTableError, StorageError : the log can't be read.
    """
    oldest = epoch_millis() - _LONGEST
    files = [file for file in commit_files(storage)[0] if file.end <= version and file.modified >= oldest]
    return [
        mark
        for file, actions in read_commits(storage, files)
        for info in _infos(actions)
        for mark in marks_of(file.end, info)
    ]


def _infos(actions: Sequence[Action]) -> list[Mapping[str, Any]]:
    return [action["commitInfo"] for action in actions if isinstance(action.get("commitInfo"), dict)]


def _retention(parameters: Mapping[str, Any]) -> int:
    """Milliseconds; 0, the most dangerous retention, if it is missing. Values are numbers or their text."""
    for name in ("specifiedRetentionMillis", "defaultRetentionMillis"):
        millis = parse_count(str(parameters.get(name, "")).strip('"'))
        if millis is not None:
            return millis
    return 0
