"""Files of append tables that are clustered, indexed, or outside the table: what becomes of them here, and whether
Paimon's own engine reads the same rows by its filters and goes on.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path

import pytest
from paimon_judging import ALL_DELETED_FILES, in_order, judge_files, judge_rows, opened
from support.paimon_engine import DV, DV64, EngineConflictError, EngineError, PaimonEngine

from dv_maintenance.dml.delete import delete
from dv_maintenance.engine.local import LocalEngine
from dv_maintenance.errors import RefusedError
from dv_maintenance.maintenance.execution.apply import maintain, purge
from dv_maintenance.maintenance.health import health
from dv_maintenance.maintenance.planning.plan import purge_plan
from dv_maintenance.maintenance.planning.policy import Policy
from dv_maintenance.maintenance.vacuum import vacuum
from dv_maintenance.tables.guard import VacuumRequest

HOUR = 3_600_000
COLUMNS = {"pt": "STRING", "id": "INT", "v": "STRING"}
CLUSTERED = {"clustering.incremental": "true", "clustering.columns": "id", "clustering.strategy": "order"}
INDEXED = {"file-index.bloom-filter.columns": "id", "file-index.bitmap.columns": "v", "file-index.bsi.columns": "id"}
FILTERS = [("=", "id", 17), (">", "id", 120), ("in", "id", 3, 4, 150, 999), ("=", "v", "v3"), ("<>", "v", "v1")]


def rows(ids: Iterable[int]) -> list[tuple[str, int, str]]:
    return [("ab"[n % 2], n, f"v{n % 7}") for n in ids]


def judged(engine: PaimonEngine, path: Path, expected: list[str]) -> None:
    assert in_order(judge_rows(engine, path)) == expected
    assert engine.ask(path, FILTERS) == engine.ask(path, FILTERS, all_rows=True)
    judge_files(engine, path, engine.version(path))


def ends(engine: PaimonEngine, path: Path) -> None:
    before = in_order(engine.rows(path))
    engine.expire(path)
    judged(engine, path, before)
    assert engine.orphans(path, time.time_ns() // 1_000_000 + HOUR) == []


def delete_ids(path: Path, ids: Iterable[int]) -> None:
    delete(opened(path), LocalEngine(), f"id IN ({', '.join(map(str, ids))})")


def levels(path: Path) -> list[int]:
    found: list[int] = sorted(opened(path).snapshot().files["level"].to_pylist())
    return found


def ids_in_files(path: Path, level: int) -> list[list[int]]:
    """The ids in each file of a level, in the order of its rows."""
    import pyarrow.parquet as pq

    files = opened(path).snapshot().files.to_pylist()
    return [pq.read_table(path / row["path"])["id"].to_pylist() for row in files if row["level"] == level]


@pytest.mark.parametrize(
    "options",
    [DV, *(pytest.param(DV64 | {"file.format": each}, marks=pytest.mark.deep) for each in ("orc", "avro"))],
)
def test_clustered_files_keep_their_level(paimon_engine: PaimonEngine, tmp_path: Path, options: dict[str, str]) -> None:
    engine, path = paimon_engine, tmp_path / "t"
    engine.create(path, COLUMNS, partition=["pt"], options=options | CLUSTERED)
    for first in (0, 50, 100):
        engine.append(path, rows(range(first + 49, first - 1, -1)))
    assert engine.cluster(path, full=True) == 2
    for first in (150, 170):
        engine.append(path, rows(range(first, first + 20)))
    top = max(levels(path))
    assert levels(path) == [0] * 4 + [top] * 2
    assert top > 0

    # A delete writes deletion vectors, for both kinds of files, and removes a file without live rows.
    left = [row for row in engine.rows(path) if row["id"] % 3 and row["id"] not in range(150, 170)]
    delete_ids(path, {*range(0, 190, 3), *range(150, 170)})
    judged(engine, path, in_order(left))
    assert levels(path) == [0] * 2 + [top] * 2

    report = purge(opened(path), LocalEngine())
    assert report.verified, report.problems
    assert health(opened(path).snapshot()).counts.files_with_dv == 0
    assert levels(path) == [0] * 2 + [top] * 2
    judged(engine, path, in_order(left))
    if "file.format" not in options:
        assert all(ids == sorted(ids) for ids in ids_in_files(path, top))

    # Small files of level 0 are merged with each other only.
    engine.append(path, rows(range(200, 210)))
    before = in_order(engine.rows(path))
    assert maintain(opened(path), LocalEngine(), Policy(min_input_files=2)).verified
    assert levels(path) == [0] * 2 + [top] * 2
    judged(engine, path, before)

    # Paimon goes on: it clusters what is new, applies vectors of ours, and then everything.
    delete_ids(path, range(1, 210, 11))
    before = in_order(engine.rows(path))
    engine.cluster(path)
    judged(engine, path, before)
    engine.append(path, rows(range(300, 310)))
    before = in_order(engine.rows(path))
    engine.cluster(path, full=True)
    assert levels(path) == [top] * 2
    judged(engine, path, before)
    assert health(opened(path).snapshot()).counts.files_with_dv == 0
    ends(engine, path)


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"file-index.in-manifest-threshold": "1 b"}, id="beside the files"),
        pytest.param({"file-index.in-manifest-threshold": "1 mb"}, id="in the manifest"),
    ],
)
def test_new_files_have_no_index(paimon_engine: PaimonEngine, tmp_path: Path, options: dict[str, str]) -> None:
    """Readers read them in full, until Paimon's own procedure gives them one."""
    engine, path = paimon_engine, tmp_path / "t"
    engine.create(path, COLUMNS, partition=["pt"], options=DV | INDEXED | options)
    for first in (0, 100):
        engine.append(path, rows(range(first, first + 100)))
    assert "without the index" not in str(opened(path).snapshot().warnings)
    engine.delete(path, lambda row: row["id"] % 3 == 0)
    before = in_order(engine.rows(path))
    (step, *_) = purge_plan(opened(path).snapshot()).steps
    assert "new files have no index (file-index.bitmap.columns, file-index.b" in step.reason
    assert purge(opened(path), LocalEngine()).verified
    snapshot = opened(path).snapshot()
    assert set(snapshot.files["companions"].to_pylist()) == {""}
    assert any("without the index that the table asks for" in note for note in snapshot.notes)
    judged(engine, path, before)

    # New files of Paimon's have one beside ours. Its procedure fails beside deletion vectors, and works after a purge.
    engine.append(path, rows(range(200, 220)))
    judged(engine, path, in_order(engine.rows(path)))
    engine.delete(path, lambda row: row["id"] % 5 == 0)
    before = in_order(engine.rows(path))
    with pytest.raises(EngineConflictError):
        engine.index(path)
    assert purge(opened(path), LocalEngine()).verified
    judged(engine, path, before)
    assert engine.index(path) == len(opened(path).snapshot().files)
    snapshot = opened(path).snapshot()
    assert "" not in snapshot.files["companions"].to_pylist()
    assert not any("without the index" in note for note in snapshot.notes)
    judged(engine, path, before)
    if options["file-index.in-manifest-threshold"] == "1 mb":
        with pytest.raises(EngineError, match="already in the the map"):
            engine.index(path)  # the same index again
    engine.delete(path, lambda row: row["id"] % 7 == 0)
    before = in_order(engine.rows(path))
    assert engine.compact(path, options=ALL_DELETED_FILES)
    judged(engine, path, before)
    vacuum(opened(path), VacuumRequest(retention=0, allow_short_retention=True))
    ends(engine, path)


@pytest.mark.parametrize("kind", ["parquet", pytest.param("avro", marks=pytest.mark.deep)])
def test_files_outside_the_table_move_into_it(paimon_engine: PaimonEngine, tmp_path: Path, kind: str) -> None:
    engine, path, outside = paimon_engine, tmp_path / "t", tmp_path / "out side"
    place = {"data-file.external-paths": f"file://{outside}", "data-file.external-paths.strategy": "round-robin"}
    engine.create(path, COLUMNS, partition=["pt"], options=DV | place | {"file.format": kind})
    for first in (0, 50, 100):
        engine.append(path, rows(range(first, first + 50)))
    assert len(stored(outside)) == 6
    assert not stored(path)

    # A delete leaves data files where they are.
    delete_ids(path, {*range(1, 150, 4), *range(20)})
    left = [row for row in engine.rows(path) if row["id"] % 4 != 1 and row["id"] >= 20]
    judged(engine, path, in_order(left))
    with pytest.raises(RefusedError, match="new data files belong outside the table") as caught:
        purge(opened(path), LocalEngine())
    assert "engine-sql" in str(caught.value.next_step)
    assert len(stored(outside)) == 6

    engine.alter(path, ("option", "data-file.external-paths.strategy", "none"))
    assert purge(opened(path), LocalEngine()).verified
    assert health(opened(path).snapshot()).counts.files_with_dv == 0
    assert len(stored(path)) < len(stored(outside)) == 6
    judged(engine, path, in_order(left))
    engine.append(path, rows(range(200, 220)))
    engine.delete(path, lambda row: row["id"] % 7 == 2)
    before = in_order(engine.rows(path))
    engine.compact(path, options=ALL_DELETED_FILES)
    judged(engine, path, before)

    # What only older snapshots need goes with them, where the option names the folder.
    engine.alter(path, ("option", "snapshot.num-retained.min", "1"))
    vacuum(opened(path), VacuumRequest(retention=0, allow_short_retention=True))
    live = {row["file_name"] for row in opened(path).snapshot().files.to_pylist()}
    assert {each.name for each in (*stored(outside), *stored(path))} == live
    ends(engine, path)


def stored(place: Path) -> list[Path]:
    return sorted(place.rglob("data-*"))
