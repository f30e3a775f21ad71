"""What is read here although Iceberg's Java library refuses it: Spark, Flink and Trino can't open the table.

Specification: Table Metadata, Snapshot References, Partition Transforms. Each was tried with Spark and release 1.12.0.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from dv_maintenance.tables.fsck import LogFault, Repair

if TYPE_CHECKING:
    from dv_maintenance.tables.iceberg.log.metadata import Metadata

_EFFECT: Final = "Spark and other readers that use Iceberg's Java library can't read the table."
_REPAIR: Final = Repair(
    "Let the catalog go back to the metadata file before it, or correct the field in a copy and register that.",
    None,
    "What was committed since, if the catalog goes back.",
)
_POSITIVE: Final = ("min-snapshots-to-keep", "max-snapshot-age-ms", "max-ref-age-ms")
_TRANSFORM: Final = re.compile(r"identity|void|year|month|day|hour|(bucket|truncate)\[\d+\]")


def strict_faults(metadata: Metadata) -> Iterator[LogFault]:
    """Faults of the newest metadata file."""
    for problem in (*_sort_orders(metadata.body), *_refs(metadata.body), *_snapshots(metadata.body), *_names(metadata)):
        yield LogFault(metadata.path, problem, _EFFECT, _REPAIR)
    if str((metadata.body.get("refs") or {}).get("main", {}).get("type", "branch")).lower() == "tag":
        yield LogFault(metadata.path, "has a tag named main", "Spark reads the table, but can't write to it.", _REPAIR)


def _sort_orders(body: Mapping[str, Any]) -> Iterator[str]:
    default = body.get("default-sort-order-id")
    known = {each.get("order-id") for each in body.get("sort-orders") or ()}
    if default is not None and default not in known | {0}:
        yield f"names the default sort order {default}, which does not exist"


def _refs(body: Mapping[str, Any]) -> Iterator[str]:
    for name, ref in (body.get("refs") or {}).items():
        if str(ref.get("type")).lower() not in {"branch", "tag"}:
            yield f"has the reference {name} of the type {ref.get('type')!r}"
        for key in _POSITIVE:
            value = ref.get(key)
            if value is not None and not (type(value) is int and value > 0):
                yield f"has {key} {value!r} for the reference {name}"


def _snapshots(body: Mapping[str, Any]) -> Iterator[str]:
    snapshots = body.get("snapshots") or ()
    ids = [each.get("snapshot-id") for each in snapshots]
    if twice := {each for each in ids if ids.count(each) > 1} if len(set(ids)) < len(ids) else ():
        yield f"lists the snapshot {next(iter(twice))} twice"
    last = body.get("last-sequence-number") or 0
    if (newest := max((each.get("sequence-number") or 0 for each in snapshots), default=0)) > last:
        yield f"has the last sequence number {last}, although a snapshot has {newest}"


def _names(metadata: Metadata) -> Iterator[str]:
    seen: dict[str, str] = {}
    for name in metadata.schemas[metadata.current_schema].arrow.names:
        if (other := seen.setdefault(name.lower(), name)) is not name:
            yield f"has the columns {other} and {name}, which differ only in case"
    for number, fields in metadata.specs.items():
        for each in fields:
            if not _TRANSFORM.fullmatch(each.transform):
                yield f"has the transform {each.transform!r} in partition specification {number}"
