"""When work that failed is tried again at the same version, without anyone asking for it."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Failures", "next_try"]

_HOUR = 3_600_000
_DAY = 24 * _HOUR


@dataclass(frozen=True, slots=True)
class Failures:
    """The failed runs of one table, version, jobs and settings.

    ``count`` : how many.
    ``ended`` : when the last one ended, epoch milliseconds; 0 without any.
    ``refusal`` : its error, if it would recur in the same run; ``None``: it may have passed.
    ``damage`` : that error is about the table's files, which somebody can restore without a commit.
    """

    count: int = 0
    ended: int = 0
    refusal: str | None = None
    damage: bool = False


def next_try(failures: Failures, readable_since: int | None, at_once: int) -> int | None:
    """The earliest time of the next run, epoch milliseconds; 0: now. ``None``: not before the table, its settings or
    the release of this package changes.

    Transient errors: ``at_once`` runs, then one after an hour, two hours, four, and so on up to a day. A damaged table
    waits like that from its first failure, unless the damage was seen to be gone since.

    readable_since : since when the newest version can be read, epoch milliseconds; 0: it can't; ``None``: not known.
    """
    if failures.refusal is not None and not failures.damage:
        return None
    if failures.refusal is not None and readable_since is not None and readable_since > failures.ended:
        return 0
    waits = failures.count - (0 if failures.refusal is not None else at_once - 1)
    return failures.ended + min(_HOUR << min(waits - 1, 10), _DAY) if waits > 0 else 0
