"""Which snapshots of a table expire: a decision without side effects.

A snapshot expires if all snapshots before it expire, and

1. it is not one of the newest ``snapshot.num-retained.min``, nor the newest one;
2. no consumer has yet to read it or a snapshot before it;
3. it has been *superseded* for longer than the retention (readers could open it as the newest one until its successor
   was committed), or there are more than ``snapshot.num-retained.max``.

Paimon's own expiry uses the age of the snapshot itself. So it expires one more: the snapshot that was the newest when
the retention began. A tagged snapshot expires, too, but its files are kept, and the tag is a copy of it.

A changelog that outlives its snapshot expires by its own age, as in Paimon: readers never open it as the newest state.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from dv_maintenance.tables.reach.needed import pinned

CURRENT: Final = "in the newest snapshot"
RECENT: Final = "in a snapshot that was the newest one inside the retention"
AMONG_THE_NEWEST: Final = "in one of the newest snapshots, which the table keeps (snapshot.num-retained.min)"
SHOWN: Final = "in a snapshot that the table's own options show to readers"
CONSUMED: Final = "in a snapshot that a consumer has yet to read, or that comes after a pinned one"

_DIGITS: Final = 20


@dataclass(frozen=True, slots=True)
class Stamp:
    """When a snapshot was committed, epoch milliseconds."""

    id: int
    timestamp: int


@dataclass(frozen=True, slots=True)
class Rules:
    """When snapshots or changelogs expire.

    cutoff : epoch milliseconds. Snapshots that were superseded before it, and changelogs that are older, may expire.
    least, most : how many of the newest are kept, see ``Retention``.
    """

    cutoff: int
    least: int
    most: int | None = None


def oldest_shown(options: Mapping[str, str], stamps: Sequence[Stamp], tags: Collection[str]) -> int | None:
    """The oldest snapshot that these options (``Options.elsewhere``) make readers open; ``None`` if they open none, or
    what is kept anyway. Of options that are not resolved here, it is the oldest of all.

    stamps : of all snapshots, oldest first.
    """
    shown: set[int] = set()
    for name, value in options.items():
        if name in {"scan.tag-name", "scan.file-creation-time-millis", "scan.primary-branch", "branch"}:
            continue
        if name == "scan.version" and value in tags:
            continue
        number = int(value) if value.isascii() and value.isdecimal() and len(value) < _DIGITS else None
        if name in {"scan.snapshot-id", "scan.version"} and number is not None:
            shown |= {number} & {stamp.id for stamp in stamps}
        elif name == "scan.timestamp-millis" and number is not None:
            shown |= set([stamp.id for stamp in stamps if stamp.timestamp <= number][-1:])
        elif stamps:
            shown.add(stamps[0].id)
    return min(shown, default=None)


def first_kept(stamps: Sequence[Stamp], rules: Rules, consumers: Mapping[str, int]) -> int:
    """The oldest snapshot that is kept; all before it expire.

    stamps : at least one, oldest first, without gaps.
    consumers : name -> the snapshot that it reads next.
    """
    newest = stamps[-1].id
    end = newest - rules.least + 1
    if consumers:
        end = min(end, *consumers.values())
    forced = 0 if rules.most is None else newest - rules.most + 1
    for stamp, successor in pairwise(stamps):
        # Its own time must be old as well: a wrong clock of the successor's writer must not expire it.
        old = successor.timestamp < rules.cutoff and stamp.timestamp < rules.cutoff
        if stamp.id >= end or not (old or stamp.id < forced):
            return stamp.id
    return newest


def first_changelog(stamps: Sequence[Stamp], newest: int, rules: Rules, consumers: Mapping[str, int]) -> int:
    """The oldest changelog that is kept; all before it expire. The newest never expires.

    stamps : at least one, oldest first, possibly with gaps.
    newest : the newest snapshot, from which ``rules`` count.
    consumers : name -> the snapshot that it reads next.
    """
    end = min(newest - rules.least + 1, stamps[-1].id, *consumers.values())
    forced = 0 if rules.most is None else newest - rules.most + 1
    for stamp in stamps:
        if stamp.id >= end or not (stamp.timestamp < rules.cutoff or stamp.id < forced):
            return stamp.id
    return stamps[-1].id


def reasons(
    stamps: Sequence[Stamp],
    rules: Rules,
    consumers: Mapping[str, int],
    pins: frozenset[int] = frozenset(),
    shown: int | None = None,
) -> dict[int, str]:
    """Id of each kept snapshot -> why it is kept. ``consumers`` must include ``pins`` and ``shown``."""
    first, newest = first_kept(stamps, rules, consumers), stamps[-1].id
    found = {}
    for stamp in stamps:
        if stamp.id < first:
            continue
        if stamp.id == newest:
            found[stamp.id] = CURRENT
        elif stamp.id > newest - rules.least:
            found[stamp.id] = AMONG_THE_NEWEST
        elif stamp.id in pins:
            found[stamp.id] = pinned(stamp.id, "snapshot")
        elif stamp.id == shown:
            found[stamp.id] = SHOWN
        elif consumers and stamp.id >= min(consumers.values()):
            found[stamp.id] = CONSUMED
        else:
            found[stamp.id] = RECENT
    return found
