"""The run config of the maintenance assets: what one run does differently from the table's settings.

Every field has a default, so that sensors, schedules and backfills need no config.
"""

# Without `from __future__ import annotations`: Dagster reads the annotations of fields.

from typing import Any, Final

import dagster as dg
from pydantic import Field

DRY_RUN: Final = "dry_run"
"""The metadata entry that a dry run's observation has."""

_DRY_RUN = (
    "Change nothing. The plan becomes an observation of this asset, which counts as not materialized: later steps of "
    "the run are skipped."
)


class OptimizeRun(dg.Config):
    """What one run rewrites."""

    dry_run: bool = Field(default=False, description=_DRY_RUN)
    purge: bool = Field(
        default=False, description="Purge every deletion vector, even a single one, whatever the policy's thresholds."
    )
    policy: dict[str, Any] = Field(
        default={},
        description="Keys of the policy for this run, in place of the table's: {max_deleted_ratio: 0.01, max_bytes: "
        "10GiB}, or {partitions: [{day: 2026-11-20}]}.",
    )
    missing_ok: bool = Field(
        default=False, description="Accept partitions in this policy that no live file has. A backfill always does."
    )


class VacuumRun(dg.Config):
    """What one run of a vacuum deletes, and what it protects in addition to the table's policy."""

    dry_run: bool = Field(default=False, description=_DRY_RUN)
    retention: str | None = Field(
        default=None,
        description="Overrides the policy and the table's property: how long unneeded files are kept, such as 168h. "
        "Refused below the table's property unless allow_short_retention is set.",
    )
    allow_short_retention: bool = Field(
        default=False,
        description="Accept a retention below the table's property: running readers and time travel may break.",
    )
    protect_versions: list[int] = Field(default=[], description="More versions to keep readable.")
    protect_streams: list[str] = Field(default=[], description="More checkpoint folders of streaming readers.")
    protect: list[str] = Field(default=[], description="More shallow clones of the table.")
    clones_under: list[str] = Field(default=[], description="More folders to search for clones of the table.")
    max_deleted_share: float | None = Field(
        default=None, description="Overrides the policy: refuse to delete a larger share; 1 allows any."
    )
    quarantine: bool | None = Field(
        default=None, description="Overrides the policy: set files aside instead of deleting them."
    )
    quarantine_retention: str | None = Field(
        default=None,
        description="Overrides the policy: delete what earlier runs quarantined after this time, such as 7d.",
    )

    def guards(self) -> dict[str, Any]:
        """By the policy's keys."""
        return {
            "retention": self.retention,
            "protected_versions": self.protect_versions,
            "protected_streams": self.protect_streams,
            "clones": self.protect,
            "clones_under": self.clones_under,
            "max_deleted_share": self.max_deleted_share,
            "quarantine": self.quarantine,
            "quarantine_retention": self.quarantine_retention,
        }


class ManifestRun(dg.Config):
    """Whether one run writes."""

    dry_run: bool = Field(default=False, description=_DRY_RUN)
