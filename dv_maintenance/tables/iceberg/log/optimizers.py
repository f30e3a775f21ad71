"""Who else maintains a table: signs of optimizers that rewrite files and expire snapshots by themselves."""

from __future__ import annotations

from itertools import islice
from typing import Final

from dv_maintenance.tables.iceberg.log.history import OURS
from dv_maintenance.tables.iceberg.log.metadata import Metadata
from dv_maintenance.tables.model import left_to
from dv_maintenance.units import count

_LOOKED_AT: Final = 50  # snapshots
_ENABLED: Final = "self-optimizing.enabled"
# What Amoro records about its commits, and the names of those that it makes by itself.
_PRODUCER: Final = "snapshot.producer"
_BY_ITSELF: Final = frozenset({"OPTIMIZE", "DATA_EXPIRATION", "CLEAN_DANGLING_DELETE"})
# S3 keeps this ending for the buckets of S3 Tables.
_TABLE_BUCKET: Final = "--table-s3"


def optimizer_of(metadata: Metadata) -> str:
    """See ``Snapshot.optimizer``."""
    if metadata.location.partition("://")[2].partition("/")[0].endswith(_TABLE_BUCKET):
        return "S3 Tables (its location is a table bucket)"
    enabled = metadata.properties.get(_ENABLED, "").strip().lower()
    if enabled == "true":
        return f"Amoro ({_ENABLED} is true)"
    recent = islice(metadata.ancestors(metadata.current), _LOOKED_AT)
    if enabled != "false" and any(each.summary.get(_PRODUCER) in _BY_ITSELF for each in recent):
        return f"Amoro (commits with {_PRODUCER} in their summary)"
    return ""


def optimizer_note(metadata: Metadata, optimizer: str) -> str:
    """What ``health`` says about it, or about rewrites that somebody else starts; "" without either."""
    if optimizer:
        return left_to(optimizer)
    recent = islice(metadata.ancestors(metadata.current), _LOOKED_AT)
    rewrites = [each for each in recent if each.operation == "replace" and OURS not in each.summary]
    if len(rewrites) < 2:
        return ""
    engine = rewrites[0].summary.get("engine-name", "an engine without a name")
    return (
        f"{count(len(rewrites), 'snapshot')} of the last {_LOOKED_AT} are rewrites by others, the newest by {engine}: "
        "if they run on a schedule, let only one of the two compact the table"
    )
