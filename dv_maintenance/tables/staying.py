"""Replacements as a commit decides them on the newest version: those that stay, and what became of all of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from dv_maintenance.dv import DeletionVector
from dv_maintenance.tables.model import FileKey
from dv_maintenance.tables.publish import Published
from dv_maintenance.tables.table import CommitOutcome, Rebased, reasons_of

FileT = TypeVar("FileT")


@dataclass(frozen=True, slots=True)
class Stay(Generic[FileT]):
    """A replacement as it can be committed on the newest version.

    inputs : the inputs that are still live, as they are now.
    deleted : deleted rows of each output, in order.
    carried : whether an input is gone, or has another deletion vector than planned.
    """

    inputs: tuple[FileT, ...]
    deleted: tuple[DeletionVector, ...]
    carried: bool


def outcome_of(
    published: Published[Any],
    stay: Mapping[str, Stay[FileT]],
    lost: Mapping[str, str],
    key: Callable[[FileT], FileKey],
) -> CommitOutcome:
    """The outcome of a commit of what stays. ``key``: of an input."""
    return CommitOutcome(
        version=published.version,
        committed=tuple(stay),
        lost=tuple(lost),
        attempts=published.attempts,
        reason=reasons_of(lost),
        rebased=tuple(
            Rebased(name, tuple(map(key, each.inputs)), tuple(dv.cardinality for dv in each.deleted))
            for name, each in stay.items()
            if each.carried
        ),
    )
