"""The health of a table: files, deletion vectors (DVs) and deleted rows, in total and per partition."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, Final

from dv_maintenance.maintenance.planning.facts import FileFacts, file_counts, file_facts
from dv_maintenance.report import Report
from dv_maintenance.tables.model import Snapshot, parse_partition
from dv_maintenance.units import count, iso_timestamp

_HEALTH: Final = "health"


@dataclass(frozen=True, slots=True)
class Counts:
    """Live files and their rows.

    files_with_unknown_rows : files whose row count the log does not contain. If there are any, ``physical_rows``,
        ``live_rows`` and ``deleted_ratio`` are ``None``: a sum over the other files would be wrong.
    deleted_ratio : deleted rows / physical rows, rounded to 6 digits; 0 if there are no rows.
    """

    files: int
    files_with_dv: int
    files_with_unknown_rows: int
    physical_rows: int | None
    deleted_rows: int
    live_rows: int | None
    deleted_ratio: float | None
    size_bytes: int


@dataclass(frozen=True, slots=True)
class PartitionHealth:
    """One partition: values by column, as the log spells them, and its counts."""

    partition: dict[str, str | None]
    counts: Counts


@dataclass(frozen=True, slots=True, repr=False)
class Health(Report):
    """The state of one version.

    timestamp : epoch milliseconds.
    partitions : partitions with live files, ordered by name. A table without partition columns has one partition,
        without values.
    """

    version: int
    timestamp: int
    counts: Counts
    partitions: tuple[PartitionHealth, ...]
    warnings: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """As ``dvm health --json`` prints it."""
        return {
            "table": self.table,
            "format": self.format,
            "version": self.version,
            "timestamp": iso_timestamp(self.timestamp),
            **asdict(self.counts),
            "partitions": [{"partition": each.partition, **asdict(each.counts)} for each in self.partitions],
            "warnings": list(self.warnings),
        }


def health(snapshot: Snapshot) -> Health:
    """Counts of a snapshot, computed once. Reads no data file and no DV.

    Raises
    ------
    DamagedTableError : the log's numbers contradict each other.
    """
    found: Health | None = snapshot.derived.get(_HEALTH)
    if found is None:
        found = snapshot.derived[_HEALTH] = _health(snapshot)
    return found


def _health(snapshot: Snapshot) -> Health:
    facts = file_facts(snapshot)
    rows = file_counts(snapshot).tolist()
    partitions = tuple(
        PartitionHealth(parse_partition(name), _counts(*row))
        for name, row in sorted(zip(facts.partitions, rows, strict=True))
        if row[0]
    )
    whole = _counts(*(sum(column) for column in zip(*rows, strict=True)) if rows else [0] * 6)
    return Health(
        table=snapshot.table,
        format=snapshot.format,
        version=snapshot.version,
        timestamp=snapshot.timestamp,
        counts=whole,
        partitions=partitions,
        warnings=(*snapshot.warnings, *_warnings(facts, whole)),
    )


def total(counts: Iterable[Counts]) -> Counts:
    """The sum of the counts of several partitions."""
    each = tuple(counts)
    return _counts(
        files=sum(one.files for one in each),
        files_with_dv=sum(one.files_with_dv for one in each),
        unknown=sum(one.files_with_unknown_rows for one in each),
        physical=sum(one.physical_rows or 0 for one in each),
        deleted=sum(one.deleted_rows for one in each),
        size=sum(one.size_bytes for one in each),
    )


def _counts(files: int, files_with_dv: int, unknown: int, physical: int, deleted: int, size: int) -> Counts:
    return Counts(
        files=files,
        files_with_dv=files_with_dv,
        files_with_unknown_rows=unknown,
        physical_rows=None if unknown else physical,
        deleted_rows=deleted,
        live_rows=None if unknown else physical - deleted,
        deleted_ratio=None if unknown else round(deleted / physical, 6) if physical else 0.0,
        size_bytes=size,
    )


def _warnings(facts: FileFacts, total: Counts) -> list[str]:
    warnings = []
    if total.files_with_unknown_rows:
        with_dv = int((~facts.known & facts.has_dv).sum())
        warnings.append(
            f"the log does not give the number of rows of {count(total.files_with_unknown_rows, 'file')}"
            + (f", {with_dv} of them with a deletion vector" if with_dv else "")
            + ": rows and ratios that include them are unknown"
        )
    return warnings
