"""Formats that number their versions in steps of one."""

from __future__ import annotations

from collections.abc import Sequence

from dv_maintenance.tables.model import Change, Changes


class NumberedVersions:
    """See ``Table``."""

    __slots__ = ()

    def parent_of(self, version: int) -> int:
        return version - 1

    def follows(self, version: int, earlier: int) -> bool:
        return earlier < version


def numbered_changes(since: int | None, newest: int, commits: Sequence[Change], *, first: int) -> Changes:
    """The changes after a version. Versions that were cleaned up are not in ``commits``; they count as data-changing,
    because their content is unknown. ``first``: the number of a table's first version.
    """
    begin = first if since is None else max(first, since + 1)
    unseen = set(range(begin, newest + 1)).difference(change.version for change in commits)
    changed = [change.version for change in commits if change.data_changed]
    return Changes(since, newest, max([*changed, *unseen], default=None), tuple(commits))
