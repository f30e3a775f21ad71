"""Which vacuums are at work on a table, as its log tells: a ``VACUUM START`` that no ``VACUUM END`` followed.

Our own vacuums commit the first before they look for the last time at what is needed, and the second after their last
delete. So a commit that names files which were not live right before is safe from them if no vacuum is open in the
version that it is put on, and its files were looked for after that version was read. Two vacuums can't be told apart:
an END closes the latest START, which leaves one too many open rather than one too few.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from dv_maintenance.tables.delta.log.segment import commit_files, read_commits

if TYPE_CHECKING:
    from dv_maintenance.storage import Storage
    from dv_maintenance.tables.delta.log.actions import Action

__all__ = ["END", "START", "VacuumMark", "at_work", "marks_before", "marks_of"]

START: Final = "VACUUM START"
END: Final = "VACUUM END"

_LONGEST: Final = 7 * 86_400_000
"""Milliseconds after which a vacuum without END is taken for dead: no vacuum takes as long."""


@dataclass(frozen=True, slots=True)
class VacuumMark:
    """A ``VACUUM START`` or, where not ``started``, an END. ``cutoff``: epoch milliseconds, files that were modified
    before it may be deleted, by the clock of the vacuum; never earlier than what it goes by.
    """

    version: int
    started: bool
    cutoff: int = 0
    engine: str = "unknown"


def marks_of(version: int, info: Mapping[str, Any]) -> tuple[VacuumMark, ...]:
    """What the ``commitInfo`` of a version says about vacuums: one mark or none."""
    match info.get("operation"):
        case "VACUUM END":
            return (VacuumMark(version, started=False),)
        case "VACUUM START":
            parameters = info.get("operationParameters")
            retention = _retention(parameters if isinstance(parameters, dict) else {})
            stamp = info.get("timestamp")
            when = stamp if type(stamp) is int else time.time_ns() // 1_000_000
            return (VacuumMark(version, True, when - retention, str(info.get("engineInfo") or "unknown")),)
        case _:
            return ()


def at_work(marks: Iterable[VacuumMark]) -> list[VacuumMark]:
    """The STARTs among the marks of a stretch of history, oldest first, that none of its ENDs closes."""
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
    oldest = time.time_ns() // 1_000_000 - _LONGEST
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
    """Milliseconds; 0, the most dangerous one, where it is not said. Values are numbers or their text."""
    for name in ("specifiedRetentionMillis", "defaultRetentionMillis"):
        text = str(parameters.get(name, "")).strip('"')
        if text.isdecimal():
            return int(text)
    return 0
