"""Why a step is worth running, and why a file is left alone, in one sentence each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from dv_maintenance.maintenance.planning.candidates import (
    ALONG,
    DEADLINE,
    DV,
    EMPTY,
    KEEP,
    PAID,
    RATIO,
    SMALL,
    UNKNOWN,
    WHYS,
)
from dv_maintenance.maintenance.planning.deadlines import NEVER
from dv_maintenance.maintenance.planning.run_limits import is_above_limit
from dv_maintenance.units import DAY, day_of, format_size

if TYPE_CHECKING:
    from dv_maintenance.maintenance.planning.candidates import Candidates, Codes, Metering
    from dv_maintenance.maintenance.planning.deadlines import Deadlines
    from dv_maintenance.maintenance.planning.drafts import Draft
    from dv_maintenance.maintenance.planning.facts import Bools, FileFacts, Ints
    from dv_maintenance.maintenance.planning.policy import Policy

# Days that are named one by one in the list of files left alone.
_NAMED_DAYS: Final = 5


def step_reason(draft: Draft, why: Codes, policy: Policy, candidates: Candidates) -> str:
    """In plain words, the strongest reason first."""
    counts = np.bincount(why[draft.rows], minlength=len(WHYS) + 1).tolist()
    if draft.action == "remove":
        return f"every row of {_files(counts[EMPTY])} is deleted: nothing to read, nothing to write"
    parts = {
        DEADLINE: _deadline(draft, why, candidates.deadlines, counts[DEADLINE]),
        PAID: _paid(draft, why, candidates.metering, counts[PAID]),
        ALONG: f"{_files(counts[ALONG])} at least halfway to a rewrite",
        RATIO: f"{_files(counts[RATIO])} with more than {percent(policy)} of the rows deleted",
        UNKNOWN: f"{_files(counts[UNKNOWN])} with a deletion vector but no row count in the log",
        DV: f"{_files(counts[DV])} with a deletion vector",
        SMALL: f"{_files(counts[SMALL])} too small to keep",
    }
    into = "one new file" if draft.files_after == 1 else f"about {draft.files_after} new files"
    reason = f"{', '.join(part for code, part in parts.items() if counts[code])}: rewrite into {into}"
    if policy.max_bytes is not None and is_above_limit(draft, policy):
        reason += f"; larger than max_bytes, {format_size(policy.max_bytes)}, so it gets its own run"
    return reason


def percent(policy: Policy) -> str:
    """The threshold of deleted rows.

    >>> from dv_maintenance.maintenance.planning.policy import Policy
    >>> percent(Policy(max_deleted_ratio=0.125))
    '12.5 %'
    """
    return f"{policy.max_deleted_ratio * 100:.4g} %"


def waiting(candidates: Candidates, facts: FileFacts, stay: Bools, policy: Policy, big: str) -> dict[str, Ints]:
    """Files that stay although they have a deletion vector, by reason."""
    stay = stay & facts.has_dv & (candidates.why == KEEP)
    metering = candidates.metering
    if metering is None:
        return {f"at most {percent(policy)} of its rows deleted, and {big}": np.flatnonzero(stay)}
    found: dict[str, Ints] = {}
    files = np.flatnonzero(stay)
    ripe_at = metering.ripe_at[files]
    days = np.where(ripe_at == NEVER, -1, ripe_at // DAY)
    for number, day in enumerate(np.unique(days[days >= 0]).tolist()):
        if number == _NAMED_DAYS:
            at = files[days >= day]
            found[f"its readers have paid less than a rewrite costs, due after {day_of(day * DAY)}"] = at
            break
        at = files[days == day]
        most = float(metering.share[at].max())
        found[f"its readers have paid at most {most:.1f} of a rewrite so far, due about {day_of(day * DAY)}"] = at
    found["reads of it cost nothing extra"] = files[days < 0]
    return found


def expected(candidates: Candidates, facts: FileFacts) -> Ints:
    """When each file that stays is expected to be rewritten, epoch milliseconds; ``NEVER`` if not because of time."""
    due = np.full(len(facts), NEVER)
    waits = facts.has_dv & (candidates.why == KEEP)
    if candidates.metering is not None:
        due = np.where(waits, candidates.metering.ripe_at, NEVER)
    if candidates.deadlines is not None:
        due = np.where(waits, np.minimum(due, candidates.deadlines.purge_by), due)
    return due


def kept_reasons(rows: Ints, groups: list[str], candidates: Candidates, facts: FileFacts) -> list[str]:
    """The sentence of each file: its own numbers where it has some, else the reason that it shares with others.

    groups : the shared reason of each row.
    """
    waits = (facts.has_dv[rows] & (candidates.why[rows] == KEEP)).tolist()
    metering, deadlines = candidates.metering, candidates.deadlines
    shares = [0.0] * len(rows) if metering is None else (metering.paid[rows] / np.maximum(metering.cost[rows], 1e-12))
    ripe = [NEVER] * len(rows) if metering is None else metering.ripe_at[rows].tolist()
    by = [NEVER] * len(rows) if deadlines is None else deadlines.purge_by[rows].tolist()
    found = []
    for wait, group, share, ripe_at, purge_by in zip(waits, groups, shares, ripe, by, strict=True):
        reason = group
        if wait and metering is not None and ripe_at != NEVER:
            reason = f"its readers have paid {share:.2g} of a rewrite so far, due about {day_of(ripe_at)}"
        if wait and purge_by != NEVER:
            reason += f"; its deleted rows must go by {day_of(purge_by)}"
        found.append(reason)
    return found


def _paid(draft: Draft, why: Codes, metering: Metering | None, count: int) -> str:
    if not count or metering is None:
        return ""
    ripe = draft.rows[why[draft.rows] == PAID]
    rewrites = float(metering.paid[ripe].sum() / max(metering.cost[ripe].sum(), 1e-12))
    since = day_of(int(metering.since[ripe].min()))
    return f"{_files(count)} whose readers have paid for {rewrites:.1f} rewrites since {since}"


def _deadline(draft: Draft, why: Codes, deadlines: Deadlines | None, count: int) -> str:
    if not count or deadlines is None:
        return ""
    due = draft.rows[why[draft.rows] == DEADLINE]
    by, since = int(deadlines.purge_by[due].min()), int(deadlines.since[due].min())
    return f"{_files(count)} that must go by {day_of(by)}, with rows deleted on {day_of(since)}"


def _files(count: int) -> str:
    return "1 file" if count == 1 else f"{count} files"
