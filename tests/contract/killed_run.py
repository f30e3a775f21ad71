"""The process of ``test_killed_runs``. A module of its own, so that the process need not import pytest."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

from dv_maintenance.engine.local import LocalEngine
from dv_maintenance.maintenance.execution.apply import apply
from dv_maintenance.maintenance.planning.plan import build_plan
from dv_maintenance.maintenance.planning.policy import Policy
from dv_maintenance.maintenance.planning.steps import MaintenancePlan
from dv_maintenance.tables.table import Table
from dv_maintenance.testing.backends import TableBackend

KILLED_AT = 9  # rewrites


def purge_file_by_file(table: Table) -> MaintenancePlan:
    """Also where the format has no partitions: any two files together are larger than a new one should be."""
    snapshot = table.snapshot()
    largest = max(snapshot.files["size"].to_pylist())
    return build_plan(snapshot, Policy(target_file_size=largest), purge=True)


def run_and_die(make: Callable[[str], TableBackend], place: str) -> None:
    def die(done: int, _: int) -> None:
        if done == KILLED_AT:
            os.kill(os.getpid(), signal.SIGKILL)

    table = make(place).open()
    apply(table, LocalEngine(), purge_file_by_file(table), on_progress=die)
