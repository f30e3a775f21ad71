"""The changelog that an expired snapshot leaves if a table's changes outlive its snapshots (``changelog.*`` options).

Behavior of Paimon's own expiry, checked by running 1.4.2 (primary-key tables with each ``changelog-producer``, append
tables with and without deletion vectors):

* ``changelog/changelog-N`` equals ``snapshot-N``, byte for byte, for every kind of commit. It still names files that
  are deleted. The changelog is written first, then the hint ``changelog/LATEST``. Then the snapshot is deleted.
  ``snapshot/EARLIEST`` is updated last.
* With a producer, only the list of changes is kept, with its manifests and changelog files. Data files and the other
  lists are deleted with the snapshot.
* Without a producer, the commits themselves are the changes. The base and delta lists are kept. Data files that were
  *appended* are kept until the changelog of the snapshot that deleted them is deleted. Files that a compaction wrote
  are deleted with the snapshots.
* In both cases, indexes, deletion vectors and statistics are deleted with the snapshot.
* Then changelogs expire by their own options, which default to those of the snapshots. They expire oldest first, by
  their own time, and are counted from the newest snapshot. The newest changelog never expires, nor does one that a
  consumer has yet to read. ``changelog/EARLIEST`` is updated afterwards. With ``consumer.changelog-only``, consumers
  keep changelogs, but no snapshots.
* If the options no longer request changelogs, none is written, and existing ones are kept.

Paimon's expiry fails as long as ``changelog.num-retained.min`` reaches back beyond the oldest changelog, and at gaps
between changelogs. Neither affects this package. But to avoid such gaps, each snapshot leaves a changelog, even one
that is deleted at once: another process may be writing the changelogs before it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from dv_maintenance.errors import DamagedTableError, RefusedError
from dv_maintenance.tables.paimon.layout import Layout
from dv_maintenance.tables.paimon.log.documents import Document
from dv_maintenance.tables.paimon.vacuum.expiry import Rules, Stamp, first_changelog
from dv_maintenance.tables.paimon.vacuum.holders import Branch, Ref


@dataclass(frozen=True, slots=True)
class ChangelogPlan:
    """The changelogs of a vacuum.

    to_write : id -> the changelog to write for a snapshot that expires.
    to_delete : ids of the changelogs to delete; they may include some of ``to_write``.
    """

    to_write: Mapping[int, Ref]
    to_delete: frozenset[int]


NOTHING: Final = ChangelogPlan({}, frozenset())


def changelog_plan(
    layout: Layout, branch: Branch, expired: Sequence[int], rules: Rules, consumers: Mapping[str, int], *, deltas: bool
) -> ChangelogPlan:
    """The changelogs to write and to delete if snapshots of a branch expire.

    expired : ids of these snapshots.
    deltas : as in ``Ref``, for the changelogs to write.
    """
    to_write = {
        number: replace(branch.snapshots[number], path=layout.changelog(number), is_changelog=True, deltas=deltas)
        for number in expired
    }
    after = dict(sorted({**to_write, **branch.changelogs}.items()))
    if not after:
        return NOTHING
    stamps = [Stamp(number, ref.timestamp) for number, ref in after.items()]
    first = first_changelog(stamps, branch.newest, rules, consumers)
    return ChangelogPlan(to_write, frozenset(number for number in after if number < first))


def refuse_overwrite(layout: Layout, branch: Branch, to_write: Mapping[int, Ref]) -> None:
    """Refuse to overwrite a different changelog of the same number. A fast-forward may have left one."""
    for number, ref in to_write.items():
        there = branch.changelogs.get(number)
        if there is not None and not is_same(layout, ref.path, there.data, ref.data):
            raise RefusedError(
                f"{there.path} exists, and differs from the changelog of snapshot {number}: "
                "the changes in it would be lost",
                table=layout.uri,
                version=number,
                next_step="delete that file if these changes are no longer read, or let Paimon itself expire the "
                "table, which overwrites it: CALL sys.expire_snapshots",
            )


def is_same(layout: Layout, path: str, one: bytes, other: bytes) -> bool:
    """Whether two files have equal content, in any order of keys. A missing value counts as null."""
    if one == other:
        return True
    try:
        return _content(layout, path, one) == _content(layout, path, other)
    except DamagedTableError:
        return False


def _content(layout: Layout, path: str, data: bytes) -> dict[str, Any]:
    body = Document.parse(layout.uri, path, data).body
    return {key: value for key, value in body.items() if value is not None and value != {}}
