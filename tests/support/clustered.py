"""Clustered tables without an engine: files that say what delta-spark would make them say."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

import pyarrow as pa

from dv_maintenance.tables.delta.load import load_snapshot
from dv_maintenance.tables.delta.log.replay import full_state
from dv_maintenance.testing.delta_builder import DeltaBuilder

__all__ = ["cluster_by", "cluster_files", "clustered"]


def clustered(builder: DeltaBuilder, schema: pa.Schema, columns: Sequence[str], **properties: str) -> DeltaBuilder:
    builder.create(schema, features=["clustering", "domainMetadata"], properties=properties)
    cluster_by(builder, [[column] for column in columns])
    return builder


def cluster_by(builder: DeltaBuilder, columns: Sequence[Sequence[str]]) -> int:
    configuration = json.dumps({"clusteringColumns": columns, "domainName": "delta.clustering"})
    domain = {"domain": "delta.clustering", "configuration": configuration, "removed": False}
    return builder.commit([{"domainMetadata": domain}])


def cluster_files(
    builder: DeltaBuilder, paths: Iterable[str], unit: str, columns: Sequence[str], provider: str | None = "liquid"
) -> int:
    """Add these files again, as files of a unit."""
    chosen, actions = {*paths}, []
    for row in full_state(builder.storage, load_snapshot(builder.storage)).adds.to_pylist():
        if row["path"] in chosen:
            known = {name: value for name, value in row.items() if value is not None}
            known |= {name: dict(known[name]) for name in ("partitionValues", "tags") if name in known}
            tags = {**known.get("tags", {}), "ZCUBE_ID": unit, "ZCUBE_ZORDER_BY": json.dumps(list(columns))}
            known |= {"tags": tags, "dataChange": False, **({"clusteringProvider": provider} if provider else {})}
            actions.append({"add": known})
    return builder.commit(actions)
