"""What a run did."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dv_maintenance.maintenance.planning.facts import file_facts
from dv_maintenance.maintenance.planning.left_alone import NO_DV, LeftAlone, left_alone
from dv_maintenance.report import Report

if TYPE_CHECKING:
    from dv_maintenance.tables.model import Snapshot


@dataclass(frozen=True, slots=True)
class StepReport:
    """One committed step.

    version : the version whose commit contains it.
    attempts : commit attempts, including those of the steps that it replaces.
    rows_carried : rows that others deleted while the step ran. Deletion vectors of the new files delete them again,
        for a later purge.
    seconds : time of its work in the engine.
    row_groups, row_groups_copied, bytes_copied : row groups of the Parquet files read, and those of them that were
        copied without being decoded.
    """

    id: str
    action: str
    partition: str
    reason: str
    version: int
    files_removed: int
    files_added: int
    dvs_removed: int
    rows_purged: int
    rows_carried: int
    bytes_in: int
    bytes_out: int
    attempts: int
    seconds: float
    row_groups: int = 0
    row_groups_copied: int = 0
    bytes_copied: int = 0


@dataclass(frozen=True, slots=True, repr=False)
class ApplyReport(Report):
    """The result of a run. If there was nothing to do, it has no steps and one version, and is verified.

    verified : every version committed by this run was read back, and differs from its predecessor by exactly the files
        replaced.
    problems : what reading back found otherwise. No further batch is begun after that.
    """

    version_before: int
    version_after: int
    steps: tuple[StepReport, ...]
    verified: bool
    problems: tuple[str, ...]
    left_alone: tuple[LeftAlone, ...]


def nothing_to_purge(snapshot: Snapshot) -> ApplyReport | None:
    """The report of a purge, if no live file has a deletion vector; else ``None``. It needs
    neither a plan nor a policy: importing what makes them takes longer than all else that such a purge does.

    Raises DamagedTableError as ``file_facts``.
    """
    facts = file_facts(snapshot)
    if facts.has_dv.any():
        return None
    return ApplyReport(
        table=snapshot.table,
        format=snapshot.format,
        version_before=snapshot.version,
        version_after=snapshot.version,
        steps=(),
        verified=True,
        problems=(),
        left_alone=(left_alone(NO_DV, np.arange(len(facts)), snapshot, facts),) if len(facts) else (),
    )
