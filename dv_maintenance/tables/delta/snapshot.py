"""A Delta table at one version: the value. ``load`` reads it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dv_maintenance.tables.delta.log.actions import Metadata, Protocol, Transaction
from dv_maintenance.tables.delta.log.segment import LogSegment
from dv_maintenance.tables.model import Snapshot

__all__ = ["DeltaSnapshot"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaSnapshot(Snapshot):
    """One version of a Delta table. ``files`` has the schema ``files.FILES``.

    ``domains``: live domain metadata. ``transactions``: by application id. ``in_commit_timestamp``: epoch milliseconds,
    ``None`` where the feature is off. ``segment``: the files it was read from. ``duplicate_paths``: data files that are
    live more than once, which readers read twice (a few of them, for a message).
    """

    protocol: Protocol
    metadata: Metadata
    domains: Mapping[str, str]
    transactions: Mapping[str, Transaction]
    in_commit_timestamp: int | None
    segment: LogSegment
    duplicate_paths: tuple[str, ...] = ()
