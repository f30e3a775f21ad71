"""Compare policies on the life of a table: what each would have cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from dv_maintenance.maintenance.planning.policy import Policy, target_file_size
from dv_maintenance.maintenance.simulation.bound import clairvoyant
from dv_maintenance.maintenance.simulation.replay import Replayed, replay
from dv_maintenance.maintenance.simulation.rules import by_meter, never, purge_every_night
from dv_maintenance.units import DAY

if TYPE_CHECKING:
    from dv_maintenance.maintenance.reads.model import Reads
    from dv_maintenance.maintenance.simulation.from_log import Past
    from dv_maintenance.tables.model import Snapshot

_RETENTION: Final = 7 * DAY


@dataclass(frozen=True, slots=True)
class Comparison:
    """What rules would have cost a table.

    rules : in the order given, then ``never`` and a purge every night.
    bound : what any rule would have cost at least, seconds of CPU.
    appended : bytes that writers added.
    statements : of writers.
    basis : the reads that were assumed.
    """

    past: Past
    rules: tuple[Replayed, ...]
    bound: float
    appended: int
    statements: int
    basis: str

    def amplification(self, written: int) -> float:
        """Bytes written in all per byte that writers added."""
        return 1 + written / self.appended if self.appended else 1.0


def compare(snapshot: Snapshot, past: Past, policies: Sequence[tuple[str, Policy]], reads: Reads | None) -> Comparison:
    """Replay a table's past under policies.

    Each is asked after every commit, as by a sensor, and plans by the same code. Prices, sizes and deadlines are those
    of the first policy. ``reads``: ``None``: the policies go by their thresholds, and no read is charged.

    Raises
    ------
    UsageError : the table's property of the target size is not a size.
    """
    first = policies[0][1]
    prices, target = first.prices, target_file_size(first, snapshot)
    small = target * 3 // 4 if first.min_file_size is None else first.min_file_size
    days = (_RETENTION if first.retention is None else first.retention) / DAY
    trace = past.trace
    rules = [never(), purge_every_night(prices.start)]
    for name, policy in policies:
        own = policy.model_copy(update={"target_file_size": target_file_size(policy, snapshot), "partitions": ()})
        retention = int(days * DAY)
        erasure = policy.erasure(retention)
        start = policy.prices.start
        rules.append(by_meter(name, own, reads, nightly=False, start=start, retention=retention, erasure=erasure))
    limit = first.erasure(int(days * DAY))
    within = None if limit is None else limit.purge_within
    found = [
        replay(trace, rule, prices, target=target, small=small, retention_days=days, purge_within=within)
        for rule in [*rules[2:], *rules[:2]]
    ]
    bound = clairvoyant(trace, prices, target=target, small=small, start=prices.start, retention_days=days)
    known = None if reads is None else f"{reads.per_day(trace.end):.4g} reads a day ({reads.source})"
    basis = known or "no reads are known: thresholds decide, and reads cost nothing"
    return Comparison(past, tuple(found), bound, trace.appended, trace.statements, basis)
