"""From deleted rows to erased bytes: what is purged after a delete, and when the old files may go."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from dv_maintenance.engine.local import LocalEngine
from dv_maintenance.errors import RefusedError
from dv_maintenance.maintenance.checkpoint import checkpoint
from dv_maintenance.maintenance.erasure import expires_at, plan_purge_since
from dv_maintenance.maintenance.execution.apply import apply, maintain
from dv_maintenance.maintenance.health import health
from dv_maintenance.maintenance.planning.policy import Policy
from dv_maintenance.maintenance.vacuum import vacuum
from dv_maintenance.tables import open_table
from dv_maintenance.tables.guard import VacuumRequest
from dv_maintenance.tables.work import RewriteResult, RewriteTask
from dv_maintenance.testing.delta_builder import DeltaBuilder

DAY = 86_400_000


@pytest.fixture
def builder(tmp_path: Path) -> DeltaBuilder:
    """Version 1: 4 files of 100 rows. Version 2: one row of the first is deleted."""
    made = DeltaBuilder(str(tmp_path / "orders")).create(pa.schema([("id", pa.int64())]))
    made.append(pa.table({"id": range(400)}), files=4)
    delete(made, 7)
    return made


def delete(builder: DeltaBuilder, *ids: int) -> int:
    return builder.delete(lambda rows: pc.is_in(rows["id"], pa.array(ids)))


def purge_since(builder: DeltaBuilder, version: int) -> int:
    """Rows purged."""
    table = open_table(builder.storage.uri)
    report = apply(table, LocalEngine(), plan_purge_since(table, version))
    assert report.verified
    return sum(step.rows_purged for step in report.steps)


def test_only_files_with_newer_deletes_are_purged(builder: DeltaBuilder) -> None:
    before = delete(builder, 350)
    delete(builder, 8, 150)
    assert purge_since(builder, before) == 3, "8 and, of the same file, 7; 150"
    left = health(open_table(builder.storage.uri).snapshot()).counts
    assert (left.files_with_dv, left.deleted_rows) == (1, 1)
    assert purge_since(builder, before) == 0


@dataclass(frozen=True)
class _Meanwhile:
    """Works locally, and somebody deletes rows while it does."""

    builder: DeltaBuilder
    ids: tuple[int, ...]
    name: ClassVar[str] = "local"

    def run(self, tasks: Sequence[RewriteTask], **options: Any) -> list[RewriteResult]:
        results = LocalEngine().run(tasks, **options)
        delete(self.builder, *self.ids)
        return results

    def close(self) -> None:
        pass


def test_rows_that_a_compaction_took_along_are_purged_from_its_files(builder: DeltaBuilder) -> None:
    table = open_table(builder.storage.uri)
    before = table.version()
    done = maintain(table, _Meanwhile(builder, (150, 250)), Policy())
    assert sum(step.rows_carried for step in done.steps) == 2
    assert purge_since(builder, before) == 2
    assert health(table.snapshot()).counts.deleted_rows == 0


def test_a_vacuum_may_remove_the_old_files_from_then_on(builder: DeltaBuilder) -> None:
    purge_since(builder, 1)
    table = open_table(builder.storage.uri)
    moment = expires_at(table)
    assert vacuum(table, VacuumRequest(dry_run=True, now=moment - 60_000)).data_files == 0
    assert vacuum(table, VacuumRequest(dry_run=True, now=moment + 1)).data_files == 1


def test_the_retention_is_the_table_s_own_or_a_longer_one(builder: DeltaBuilder) -> None:
    table = open_table(builder.storage.uri)
    assert expires_at(table, now=0) == 7 * DAY
    assert expires_at(table, 30 * DAY, now=0) == 30 * DAY
    with pytest.raises(RefusedError):
        expires_at(table, DAY)


def test_a_log_that_was_cleaned_up_does(builder: DeltaBuilder) -> None:
    table = open_table(builder.storage.uri)
    checkpoint(table)
    delete(builder, 9)
    checkpoint(table, clean_log=True, now=table.snapshot().timestamp + 40 * DAY)
    now = table.snapshot().timestamp
    with pytest.raises(RefusedError):
        vacuum(table, VacuumRequest(dry_run=True, lite=True))
    assert expires_at(table, now=now) == now + 7 * DAY
