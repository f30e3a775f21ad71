"""A live file as the log describes it: everything that a commit needs to remove or replace the file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self

from dv_maintenance.dv import DvDescriptor
from dv_maintenance.errors import DamagedTableError
from dv_maintenance.tables.delta.log.actions import Action
from dv_maintenance.tables.model import FileKey


@dataclass(frozen=True, slots=True)
class LiveFile:
    """A live file of a log.

    path, dv : exactly as they were read, since their spelling identifies the file and the DV.
    rest : the other fields that an ``add`` and a ``remove`` share, if the log has them.
    clustering_provider : see ``rows.clustering``.
    """

    path: str
    size: int
    partition_values: Mapping[str, str | None]
    dv: DvDescriptor | None = None
    rest: Mapping[str, Any] = field(default_factory=dict)
    clustering_provider: str | None = None

    @property
    def key(self) -> FileKey:
        return FileKey(self.path, None if self.dv is None else self.dv.unique_id)

    @property
    def deleted_rows(self) -> int:
        return 0 if self.dv is None else self.dv.cardinality

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> Self:
        """From a row of a snapshot's files."""
        dv, values, tags = row["dv"], row["partition_values"], row["tags"]
        rest = {
            "tags": None if tags is None else dict(tags),
            "baseRowId": row["base_row_id"],
            "defaultRowCommitVersion": row["default_row_commit_version"],
        }
        return cls(
            row["path"],
            row["size"],
            dict(values or ()),
            None
            if dv is None
            else DvDescriptor(dv["storage_type"], dv["path_or_inline"], dv["offset"], dv["size"], dv["cardinality"]),
            {key: value for key, value in rest.items() if value is not None},
            row["clustering_provider"],
        )

    @classmethod
    def from_add(cls, body: Mapping[str, Any]) -> Self:
        """From an ``add`` action of a commit. Raises DamagedTableError."""
        dv, size, values = body.get("deletionVector"), body.get("size"), body.get("partitionValues")
        if type(size) is not int or not isinstance(values, dict | None):
            raise DamagedTableError(f"the add of {body['path']} has no size, or its partitionValues are not an object")
        shared = ("tags", "baseRowId", "defaultRowCommitVersion")
        return cls(
            body["path"],
            size,
            values or {},
            None if dv is None else DvDescriptor.from_json(dv),
            {key: body[key] for key in shared if body.get(key) is not None},
            body.get("clusteringProvider"),
        )

    def tagged(self, tags: Mapping[str, str]) -> Self:
        """With more tags."""
        return replace(self, rest={**self.rest, "tags": {**self.rest.get("tags", {}), **tags}})

    def remove(self, deleted_at: int, *, data_change: bool) -> Action:
        """The ``remove`` action; ``deleted_at`` in epoch milliseconds."""
        dv = {} if self.dv is None else {"deletionVector": self.dv.to_json()}
        return {
            "remove": {
                "path": self.path,
                "deletionTimestamp": deleted_at,
                "dataChange": data_change,
                "extendedFileMetadata": True,
                "partitionValues": dict(self.partition_values),
                "size": self.size,
                **{key: self.rest[key] for key in ("tags",) if key in self.rest},
                **dv,
                **{key: value for key, value in self.rest.items() if key != "tags"},
            }
        }
