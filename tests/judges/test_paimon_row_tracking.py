"""Append tables with row tracking: each row keeps its id and its sequence number through a purge, a merge of small
files and a delete. Paimon's own engine reads both, and goes on to write, update, delete, compact and expire.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from paimon_judging import ALL_DELETED_FILES, in_order, judge_files, judge_rows, opened, our_rows
from support.paimon_engine import DV, DV64, PaimonEngine

from dv_maintenance.dml.delete import delete
from dv_maintenance.engine.local import LocalEngine
from dv_maintenance.maintenance.execution.apply import maintain, purge
from dv_maintenance.maintenance.health import health
from dv_maintenance.maintenance.planning.policy import Policy
from dv_maintenance.testing.history import InterferingEngine

COLUMNS = {"pt": "STRING", "id": "INT", "v": "STRING"}
TRACKED = {"row-tracking.enabled": "true"}
KINDS: dict[str, dict[str, str]] = {
    "parquet": DV,
    "orc": {**DV64, "file.format": "orc"},
    "without statistics": {**DV, "metadata.stats-mode": "none"},
}


def lineage(engine: PaimonEngine, path: Path) -> list[str]:
    return in_order(engine.rows(path, lineage=True))


def rows(ids: Iterable[int], more: tuple[object, ...] = ()) -> list[tuple[object, ...]]:
    return [("ab"[n % 2], n, f"v{n}", *more) for n in ids]


def update(engine: PaimonEngine, path: Path, every: int, rest: int) -> None:
    """As Spark's UPDATE does: a changed row keeps its id."""
    found = [row for row in engine.rows(path, lineage=True) if row["id"] % every == rest]
    gone = {row["id"] for row in found}
    new = [[*list(row.values())[:2], "changed", *list(row.values())[3:-1], None] for row in found]
    engine.delete(path, lambda row: row["id"] in gone, new=new, lineage=True)


def filled(engine: PaimonEngine, path: Path, kind: str) -> Path:
    engine.create(path, COLUMNS, partition=["pt"], options={**KINDS[kind], **TRACKED})
    engine.append(path, rows(range(100)))
    engine.append(path, rows(range(100, 150)))
    engine.alter(path, ("add", "n", "INT"), ("rename", "v", "w"))
    engine.append(path, rows(range(150, 200), (7,)))
    engine.delete(path, lambda row: row["id"] % 5 == 0)
    update(engine, path, 7, 3)
    engine.delete(path, lambda row: row["id"] in range(90, 110) or row["id"] % 21 == 3)
    return path


@pytest.mark.parametrize(
    "kind", [pytest.param(each, marks=() if each == "parquet" else pytest.mark.deep) for each in KINDS]
)
def test_rows_keep_ids_and_sequence_numbers(paimon_engine: PaimonEngine, tmp_path: Path, kind: str) -> None:
    engine = paimon_engine
    ours, theirs = (filled(engine, tmp_path / name, kind) for name in ("ours", "theirs"))
    before = lineage(engine, ours)
    assert before == lineage(engine, theirs)
    assert len({row["_SEQUENCE_NUMBER"] for row in engine.rows(ours, lineage=True)}) > 3
    report = purge(opened(ours), LocalEngine())
    assert report.verified, report.problems
    assert health(opened(ours).snapshot()).counts.files_with_dv == 0
    assert lineage(engine, ours) == before
    judge_files(engine, ours, engine.version(ours))
    filters = [("=", "id", 17), (">", "id", 150), ("=", "w", "changed"), ("null", "n")]
    assert engine.ask(ours, filters) == engine.ask(ours, filters, all_rows=True) == engine.ask(theirs, filters)

    # Both go on: new rows get the same ids in both.
    for path in (ours, theirs):
        engine.append(path, rows(range(200, 230), (9,)))
        engine.delete(path, lambda row: row["id"] % 11 == 0)
        update(engine, path, 13, 1)
    values = in_order([{**row, "_SEQUENCE_NUMBER": row["id"] >= 200} for row in engine.rows(ours, lineage=True)])
    assert values == in_order(
        [{**row, "_SEQUENCE_NUMBER": row["id"] >= 200} for row in engine.rows(theirs, lineage=True)]
    )
    before = lineage(engine, ours)
    report = maintain(opened(ours), LocalEngine(), Policy(min_input_files=2))
    assert report.verified, report.problems
    assert {each.partition for each in report.steps} == {"pt=a", "pt=b"}  # of files that store both, and of new ones
    assert lineage(engine, ours) == before
    engine.append(ours, rows(range(230, 260), (9,)))
    engine.delete(ours, lambda row: row["id"] % 19 == 0)
    before = lineage(engine, ours)
    assert engine.compact(ours, options=ALL_DELETED_FILES)
    assert lineage(engine, ours) == before
    engine.delete(ours, lambda row: row["id"] % 17 == 0)
    before = lineage(engine, ours)
    assert purge(opened(ours), LocalEngine()).verified  # of Paimon's own compacted files
    assert lineage(engine, ours) == before
    engine.expire(ours)
    assert lineage(engine, ours) == before
    assert engine.orphans(ours, time.time_ns() // 1_000_000 + 3_600_000) == []
    assert in_order(our_rows(ours)) == in_order(judge_rows(engine, ours))


def test_a_new_file_is_laid_out_as_paimon_compacts(paimon_engine: PaimonEngine, tmp_path: Path) -> None:
    engine = paimon_engine
    ours, theirs = (filled(engine, tmp_path / name, "parquet") for name in ("ours", "theirs"))
    purge(opened(ours), LocalEngine())
    engine.compact(theirs, options=ALL_DELETED_FILES)
    names = ["write_cols", "first_row_id", "source", "level"]
    described = []
    for path in (ours, theirs):
        files = opened(path).snapshot().files
        compacted = [row for row in files.to_pylist() if row["source"] == "compact"]
        assert compacted
        described.append({tuple(row[name] for name in names) for row in compacted})
        stored = [pq.read_schema(path / row["path"]) for row in compacted]
        described.append({(field.name, field.type) for each in stored for field in each})
    assert described[:2] == described[2:]


def test_a_delete_and_a_race(paimon_engine: PaimonEngine, tmp_path: Path) -> None:
    """A delete of ours is one of theirs. Rows that are deleted while a purge works stay deleted."""
    engine = paimon_engine
    ours, theirs = (filled(engine, tmp_path / name, "parquet") for name in ("ours", "theirs"))
    deleted = delete(opened(ours), LocalEngine(), "id > 160 AND id < 180")
    assert deleted.rows_deleted == engine.delete(theirs, lambda row: 160 < row["id"] < 180)
    assert lineage(engine, ours) == lineage(engine, theirs)
    raced = InterferingEngine(LocalEngine(), lambda: engine.delete(ours, lambda row: row["id"] % 9 == 2))
    report = purge(opened(ours), raced)
    assert report.verified, report.problems
    engine.delete(theirs, lambda row: row["id"] % 9 == 2)
    assert lineage(engine, ours) == lineage(engine, theirs)
    judge_files(engine, ours, engine.version(ours))
