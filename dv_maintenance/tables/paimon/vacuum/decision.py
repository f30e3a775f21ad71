"""Which snapshots and changelogs of a Paimon table a vacuum deletes, and what keeps files after that: decisions without
side effects. They can be repeated for what keeps files by then.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

from dv_maintenance.errors import ConflictError, DvMaintenanceError
from dv_maintenance.tables.paimon.layout import Layout
from dv_maintenance.tables.paimon.vacuum import expiry
from dv_maintenance.tables.paimon.vacuum.changelogs import NOTHING, ChangelogPlan, changelog_plan, refuse_overwrite
from dv_maintenance.tables.paimon.vacuum.expiry import Rules, Stamp, first_kept, oldest_shown
from dv_maintenance.tables.paimon.vacuum.holders import Branch, Holders, Ref, changes_in_deltas, moved
from dv_maintenance.tables.paimon.vacuum.retention import Retention

TAGGED: Final = "in a tagged snapshot"
SERVED: Final = "in a snapshot or tag that only its REST catalog names"
BRANCHED: Final = "in another branch"
CHANGELOG: Final = "in a changelog that outlives its snapshot"


class MovedError(Exception):
    """The table changed before anything was deleted. Plan again, and raise ``final`` if that fails, too."""

    def __init__(self, final: DvMaintenanceError) -> None:
        super().__init__(final)
        self.final = final


@dataclass(frozen=True, slots=True)
class Terms:
    """What a vacuum decides by.

    retention : how long snapshots, changelogs and unnamed files are kept.
    now : epoch milliseconds.
    pins : ids of snapshots that must be kept.
    options : of the table, with which its readers do not open the newest snapshot.
    """

    layout: Layout
    retention: Retention
    now: int
    pins: frozenset[int]
    options: Mapping[str, str]

    @property
    def rules(self) -> Rules:
        return Rules(self.now - self.retention.kept_for, self.retention.least, self.retention.most)

    def holds(self, holders: Holders) -> Mapping[str, int]:
        """The consumers, pins and options that keep snapshots, each with its snapshot."""
        changelogs = self.retention.changelogs
        consumers = {} if changelogs is not None and changelogs.alone_consumed else holders.consumers
        # Snapshots expire oldest first, so a pin keeps all snapshots after it, too.
        pins = self.pins & holders.branches[self.layout.branch].snapshots.keys()
        shown = self.shown(holders)
        return {
            **consumers,
            **{f"pin {number}": number for number in pins},
            **({} if shown is None else {"the table's options": shown}),
        }

    def shown(self, holders: Holders) -> int | None:
        """See ``expiry.oldest_shown``."""
        own = holders.branches[self.layout.branch]
        return oldest_shown(self.options, _stamps(own), own.tags.keys() | own.served.keys())

    def first_kept(self, holders: Holders) -> int:
        return first_kept(_stamps(holders.branches[self.layout.branch]), self.rules, self.holds(holders))

    def changelogs(self, holders: Holders, expired: tuple[int, ...], *, deltas: bool) -> ChangelogPlan:
        """The changelogs to write and to delete when these snapshots are deleted."""
        changelogs, own = self.retention.changelogs, holders.branches[self.layout.branch]
        if changelogs is None:
            return NOTHING
        rules = Rules(self.now - changelogs.kept_for, changelogs.least, changelogs.most)
        planned = changelog_plan(self.layout, own, expired, rules, holders.consumers, deltas=deltas)
        refuse_overwrite(self.layout, own, planned.to_write)
        return planned


@dataclass(frozen=True, slots=True)
class Decision:
    """Which snapshots and changelogs are deleted.

    expired : ids of snapshots to delete, oldest first.
    changelogs : changelogs to write for the expired snapshots, and changelogs to delete.
    deltas : as in ``Ref``.
    """

    terms: Terms
    holders: Holders
    expired: tuple[int, ...] = ()
    changelogs: ChangelogPlan = NOTHING
    deltas: bool = True

    @property
    def branch(self) -> Branch:
        return self.holders.branches[self.terms.layout.branch]

    def reasons(self) -> Mapping[int, str]:
        """Id of each kept snapshot -> why it is kept."""
        terms, stamps = self.terms, _stamps(self.branch)
        if not stamps:
            return {}
        shown = terms.shown(self.holders)
        return expiry.reasons(stamps, terms.rules, terms.holds(self.holders), terms.pins, shown)

    def kept_changelogs(self) -> Mapping[int, Ref]:
        """The changelogs of this branch after the vacuum."""
        every = {**self.changelogs.to_write, **self.branch.changelogs}
        return {number: ref for number, ref in every.items() if number not in self.changelogs.to_delete}

    def kept(self) -> Iterator[tuple[Ref, str]]:
        """All references that need files, each with the reason. Those of this branch come first, except changelogs."""
        own, why, expired = self.branch, self.reasons(), set(self.expired)
        for number, ref in reversed(list(own.snapshots.items())):
            if number not in expired:
                yield ref, why.get(number, expiry.RECENT)
        yield from ((ref, TAGGED) for ref in own.tags.values())
        yield from ((ref, SERVED) for branch in self.holders.branches.values() for ref in branch.served.values())
        for name, branch in self.holders.branches.items():
            if name != self.terms.layout.branch:
                yield from ((ref, BRANCHED) for ref in (*branch.snapshots.values(), *branch.tags.values()))
                yield from ((ref, CHANGELOG) for ref in branch.changelogs.values())
        yield from ((ref, CHANGELOG) for ref in self.kept_changelogs().values())

    def names(self) -> Iterator[tuple[str, str]]:
        """Names and reasons of this branch's snapshots and changelogs, because they may have checksum files."""
        yield from ((f"snapshot-{number}", why) for number, why in self.reasons().items() if number not in self.expired)
        yield from ((f"changelog-{number}", CHANGELOG) for number in self.kept_changelogs())

    def again(self, after: Holders) -> Decision:
        """Decide again right before the first deletion, only about what this decision deletes. Raises MovedError."""
        own, terms, planned = after.branches[self.terms.layout.branch], self.terms, self.changelogs
        if reason := moved(self.branch, own):
            raise MovedError(conflict(terms.layout, self.branch.newest, reason))
        first = terms.first_kept(after)
        expired = tuple(number for number in self.expired if number < first and number in own.snapshots)
        current = terms.changelogs(after, expired, deltas=self.deltas)
        # Changelogs that other processes have written since wait for the next run: their files are not in the plan.
        going = current.to_delete & (planned.to_delete | current.to_write.keys())
        first = min((current.to_write.keys() | own.changelogs.keys()) - going, default=0)
        changelogs = ChangelogPlan(current.to_write, frozenset(number for number in going if number < first))
        return replace(self, holders=after, expired=expired, changelogs=changelogs)


def conflict(layout: Layout, version: int, what: str) -> ConflictError:
    return ConflictError(f"the table changed while it was being vacuumed: {what}", table=layout.uri, version=version)


def decide(terms: Terms, holders: Holders) -> Decision:
    """What a vacuum of a branch with snapshots deletes. Raises RefusedError: a changelog would be overwritten."""
    stamps, first = _stamps(holders.branches[terms.layout.branch]), terms.first_kept(holders)
    expired = tuple(stamp.id for stamp in stamps if stamp.id < first)
    deltas = terms.retention.changelogs is None or changes_in_deltas(terms.layout)
    return Decision(terms, holders, expired, terms.changelogs(holders, expired, deltas=deltas), deltas)


def _stamps(branch: Branch) -> list[Stamp]:
    return [Stamp(number, ref.timestamp) for number, ref in branch.snapshots.items()]
