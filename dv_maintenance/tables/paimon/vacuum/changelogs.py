"""What an expired snapshot leaves behind where a table's changes outlive its snapshots (``changelog.*`` options).

Paimon's own expiry, checked by running (1.4.2; primary-key tables with each ``changelog-producer``, append tables with
and without deletion vectors):

* ``changelog/changelog-N`` is ``snapshot-N``, byte for byte, of every kind of commit: also what it names that goes. It
  is written first, then the hint ``changelog/LATEST``, then the snapshot goes; ``snapshot/EARLIEST`` comes last.
* With a producer, only the list of changes stays, with its manifests and changelog files. Data files and the other
  lists go with the snapshot.
* Without one, commits are the changes: the lists of base and delta stay, and data files that were *appended* until the
  changelog of the snapshot that deleted them goes. What a compaction wrote goes with the snapshots, and so do, in both
  cases, indexes, deletion vectors and statistics.
* Then changelogs expire by their own options, which default to those of the snapshots: oldest first, by their own time,
  counted from the newest snapshot, never the newest changelog, and none that a consumer has yet to read.
  ``changelog/EARLIEST`` follows. With ``consumer.changelog-only`` consumers hold changelogs, and no snapshots.
* Where the options do not say so any more, nothing is left behind, and changelogs that are there stay.

Paimon's expiry fails as long as ``changelog.num-retained.min`` reaches back behind the oldest changelog, and at gaps
between changelogs. Both do no harm here; but for its sake each snapshot leaves one, also where it goes at once: others
may just be leaving those before it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from dv_maintenance.errors import DamagedTableError, RefusedError
from dv_maintenance.tables.paimon.layout import Layout
from dv_maintenance.tables.paimon.log.documents import Document
from dv_maintenance.tables.paimon.vacuum.expiry import Rules, Stamp, first_changelog
from dv_maintenance.tables.paimon.vacuum.retained import Branch, Ref

__all__ = ["NOTHING", "Rest", "check_room", "is_same", "rest_of"]


@dataclass(frozen=True, slots=True)
class Rest:
    """``left``: changelogs of snapshots that expire, by id; ``outdated``: ids of those that go themselves, some of the
    ones just left among them.
    """

    left: Mapping[int, Ref]
    outdated: frozenset[int]


NOTHING: Final = Rest({}, frozenset())


def rest_of(
    layout: Layout, branch: Branch, expired: Sequence[int], rules: Rules, consumers: Mapping[str, int], *, deltas: bool
) -> Rest:
    """What becomes of the changelogs of a branch when these of its snapshots expire, as its ground is now. ``deltas``:
    as ``Ref`` has it, of what is left.
    """
    left = {
        number: replace(branch.snapshots[number], path=layout.changelog(number), rest=True, deltas=deltas)
        for number in expired
    }
    after = dict(sorted({**left, **branch.changelogs}.items()))
    if not after:
        return NOTHING
    stamps = [Stamp(number, ref.timestamp) for number, ref in after.items()]
    first = first_changelog(stamps, branch.newest, rules, consumers)
    return Rest(left, frozenset(number for number in after if number < first))


def check_room(layout: Layout, branch: Branch, left: Mapping[int, Ref]) -> None:
    """Refuse to leave a changelog where there is another one of that number, as a fast-forward may bring about."""
    for number, ref in left.items():
        there = branch.changelogs.get(number)
        if there is not None and not is_same(layout, ref.path, there.data, ref.data):
            raise RefusedError(
                f"{there.path} is there already, and not what snapshot {number} is about to leave behind: its changes "
                "would be lost",
                table=layout.uri,
                version=number,
                next_step="delete that file if nobody reads these changes any more, or let Paimon itself expire the "
                "table, which overwrites it: CALL sys.expire_snapshots",
            )


def is_same(layout: Layout, path: str, one: bytes, other: bytes) -> bool:
    """Whether two files say the same, in whatever order. What is absent and what is null are the same."""
    if one == other:
        return True
    try:
        return _told(layout, path, one) == _told(layout, path, other)
    except DamagedTableError:
        return False


def _told(layout: Layout, path: str, data: bytes) -> dict[str, Any]:
    body = Document.parse(layout.uri, path, data).body
    return {key: value for key, value in body.items() if value is not None and value != {}}
