"""The files that nothing needs: which have expired, which are young, and which are not the table's."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Container, Sequence
from dataclasses import dataclass
from typing import TypeVar

from dv_maintenance.storage import FileInfo
from dv_maintenance.tables.model import ExpiredFile

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class KnownFile:
    """What the name of a file says about it.

    key : what identifies the file, see ``Needed``.
    kind : as in ``ExpiredFile``; ``None`` if no writer of the format makes such names.
    sure : whether the name alone proves that the file is the table's; otherwise a version must have named it.
    """

    key: str
    kind: str | None
    sure: bool = True


@dataclass(frozen=True, slots=True)
class Unneeded:
    """Files that nothing needs.

    expired : those that may be deleted.
    young, foreign : how many others there are.
    unproven : whether one of these would have expired, had a version named it.
    """

    expired: list[ExpiredFile]
    young: int
    foreign: int
    unproven: bool


def unneeded(files: Collection[T], why: Callable[[T], str | None], kept: Counter[str]) -> list[T]:
    """The files that nothing needs. ``why`` says what needs a file, and ``kept`` counts it."""
    reasons = [why(file) for file in files]
    kept.update(filter(None, reasons))
    return [file for file, reason in zip(files, reasons, strict=True) if reason is None]


def divided(files: Sequence[tuple[FileInfo, KnownFile]], young: int, past: Container[str] = ()) -> Unneeded:
    """Divide files that nothing needs.

    young : epoch milliseconds; a file expires if everything that was written under its key is older.
    past : keys that expired versions named. Files with such keys expire at any age.
    """
    newest: dict[str, int] = {}
    for info, known in files:
        if known.kind is not None:
            newest[known.key] = max(newest.get(known.key, info.modified), info.modified)
    expired, counts, unproven = [], Counter[str](), False
    for info, known in files:
        is_past = known.key in past
        if known.kind is None or not (known.sure or is_past):
            counts["foreign"] += 1
            unproven |= known.kind is not None
        elif is_past or newest[known.key] < young:
            expired.append(ExpiredFile(info.path, known.kind, info.size, info.modified))
        else:
            counts["young"] += 1
            unproven = True
    return Unneeded(expired, counts["young"], counts["foreign"], unproven)
