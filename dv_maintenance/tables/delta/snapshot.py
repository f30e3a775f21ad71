"""A Delta table at one version, as a value. ``load`` reads it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from dv_maintenance.tables.delta.log.actions import Metadata, Protocol, Transaction
from dv_maintenance.tables.delta.log.segment import LogSegment
from dv_maintenance.tables.model import Snapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaSnapshot(Snapshot):
    """One version of a Delta table. ``files`` has the schema ``files.FILES``.

    domains : live domain metadata, configuration by domain.
    transactions : by application id.
    in_commit_timestamp : epoch milliseconds; ``None`` if the feature is off.
    segment : the log files that the snapshot was read from.
    duplicate_paths : some of the data files that are live more than once, whose rows readers return more than once.
    """

    exact_rows: ClassVar[bool] = False  # ``numRecords`` (protocol: Per-file Statistics)

    protocol: Protocol
    metadata: Metadata
    domains: Mapping[str, str]
    transactions: Mapping[str, Transaction]
    in_commit_timestamp: int | None
    segment: LogSegment
    duplicate_paths: tuple[str, ...] = ()

    def units(self) -> Any:
        from dv_maintenance.tables.delta.rows.clustering import units

        return units(self)
