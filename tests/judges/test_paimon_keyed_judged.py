"""Primary-key tables purged by us, file by file: Paimon's own engine reads the same rows. It goes on to look up rows in
our files, to replace and delete them, to compact and to expire.
"""

from __future__ import annotations

import random
import time
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from paimon_judging import in_order, judge_files, judge_rows, opened, our_rows, same
from support.paimon_engine import DV, DV64, PaimonEngine
from test_paimon_reading import NESTED, VALUES

from dv_maintenance.engine.local import LocalEngine
from dv_maintenance.errors import RefusedError
from dv_maintenance.maintenance.execution.apply import maintain, purge
from dv_maintenance.maintenance.health import health
from dv_maintenance.maintenance.planning.policy import Policy
from dv_maintenance.testing.history import InterferingEngine

COLUMNS = {"pt": "STRING NOT NULL", "id": "INT NOT NULL", "v": "STRING", "n": "INT", "at": "TIMESTAMP(6)"}
WRITER = {"write-only": "true"}
COMPACTOR = {"write-only": "false", "num-sorted-run.compaction-trigger": "20"}
# What is new is compacted without the large file below.
ALONE = COMPACTOR | {"compaction.max-size-amplification-percent": "1000000", "compaction.size-ratio": "0"}
KINDS: dict[str, dict[str, str]] = {
    "plain": {**DV, "bucket": "1"},
    "buckets": {**DV64, "bucket": "2"},
    "dynamic": {**DV, "bucket": "-1", "dynamic-bucket.target-row-num": "60"},
    "thin": {**DV, "bucket": "1", "data-file.thin-mode": "true"},
    "partial": {**DV, "bucket": "1", "merge-engine": "partial-update"},
    "sums": {**DV, "bucket": "1", "merge-engine": "aggregation", "fields.n.aggregate-function": "sum"},
    "lookup": {**DV, "bucket": "1", "changelog-producer": "lookup"},
    "sequence": {**DV, "bucket": "1", "sequence.field": "n"},
    "orc": {**DV, "bucket": "1", "file.format": "orc"},
    "thin orc": {**DV, "bucket": "1", "file.format": "orc", "data-file.thin-mode": "true"},
    "avro": {**DV, "bucket": "1", "file.format": "avro"},
    "thin avro": {**DV64, "bucket": "1", "file.format": "avro", "data-file.thin-mode": "true"},
    "mixed": {**DV, "bucket": "1", "file.format": "orc", "file.format.per.level": "0:avro,5:parquet"},
    # Of a bitmap that names rows by their old positions, a filter would show others.
    "indexed": {**DV, "bucket": "1", "file-index.bitmap.columns": "v"},
    "indexed beside": {
        **DV,
        "bucket": "1",
        "file-index.bitmap.columns": "v",
        "file-index.in-manifest-threshold": "1 B",
    },
}
FILTERS: list[tuple[Any, ...]] = [
    ("=", "id", 17),
    (">", "id", 150),
    ("=", "v", "v3-30"),
    ("in", "v", "v1-151", "v1-178", "v2-45"),
    ("null", "n"),
    ("not null", "n"),
    ("<", "n", 20),
    ("and", (">=", "id", 40), ("<", "id", 60)),
]


class Keyed:
    """A table with a key, written and compacted by Paimon."""

    def __init__(self, engine: PaimonEngine, path: Path, kind: str, draw: random.Random) -> None:
        self.engine, self.path, self.draw, self.round = engine, path, draw, 0
        engine.create(path, COLUMNS, key=["pt", "id"], partition=["pt"], options={**WRITER, **KINDS[kind]})

    def write(self, ids: range, step: int = 1, *, compacted: bool = True) -> None:
        self.round += 1
        rows = [
            ("ab"[n % 2], n, f"v{self.round}-{n}", None if n % 9 == 0 else n * self.round % 97, None)
            for n in ids[:: max(step, 1)]
        ]
        self.engine.append(self.path, rows, options=COMPACTOR if compacted else None)

    def delete(self, ids: range) -> None:
        gone = [row for row in self.engine.rows(self.path) if row["id"] in ids]
        self.engine.append(self.path, [list(row.values()) for row in gone], kinds=["-D"] * len(gone), options=COMPACTOR)

    def settle(self) -> None:
        """Nothing waits in level 0."""
        while opened(self.path).snapshot().hidden.num_rows:
            assert self.engine.compact(self.path, full=False, options=COMPACTOR)


def filled(engine: PaimonEngine, path: Path, kind: str, seed: int = 0) -> Keyed:
    table = Keyed(engine, path, kind, random.Random(seed))
    table.write(range(200))
    engine.compact(path, options=COMPACTOR)
    table.write(range(0, 200, 3))
    table.write(range(100, 130))
    if kind not in {"partial", "sums"}:
        table.delete(range(60, 70))
    table.settle()
    assert health(opened(path).snapshot()).counts.files_with_dv
    return table


@pytest.mark.parametrize(
    "kind", [pytest.param(each, marks=() if each == "plain" else pytest.mark.deep) for each in KINDS]
)
def test_paimon_goes_on_after_a_purge(paimon_engine: PaimonEngine, tmp_path: Path, kind: str) -> None:
    engine, ours, theirs = paimon_engine, tmp_path / "ours", tmp_path / "theirs"
    tables = [filled(engine, path, kind) for path in (ours, theirs)]
    before, asked = in_order(judge_rows(engine, ours)), engine.ask(ours, FILTERS)
    version = engine.version(ours)
    levels = sorted(file["level"] for file in engine.files(ours, version).values())
    report = purge(opened(ours), LocalEngine())
    assert report.verified, report.problems
    assert health(opened(ours).snapshot()).counts.files_with_dv == 0
    assert in_order(judge_rows(engine, ours)) == before
    assert engine.ask(ours, FILTERS) == asked == engine.ask(ours, FILTERS, all_rows=True)
    assert sorted(file["level"] for file in engine.files(ours, engine.version(ours)).values()) == levels
    judge_files(engine, ours, engine.version(ours))
    assert in_order(engine.rows(ours, version)) == before

    # A twin that was not purged: the same statements lead to the same rows.
    for table in tables:
        table.write(range(0, 220, 7))
        if kind not in {"partial", "sums"}:
            table.delete(range(150, 160))
        table.settle()
    judge_files(engine, ours, engine.version(ours))
    assert in_order(judge_rows(engine, ours)) == in_order(engine.rows(theirs))
    report = maintain(opened(ours), LocalEngine(), Policy(max_deleted_ratio=0))
    assert report.verified, report.problems
    assert in_order(judge_rows(engine, ours)) == in_order(engine.rows(theirs))
    for table in tables:
        table.write(range(50, 230, 11))
        engine.compact(table.path, options=COMPACTOR)
    assert in_order(judge_rows(engine, ours)) == in_order(engine.rows(theirs))
    engine.expire(ours)
    assert engine.orphans(ours, time.time_ns() // 1_000_000 + 3_600_000) == []
    assert in_order(judge_rows(engine, ours)) == in_order(engine.rows(theirs))


@pytest.mark.parametrize("engine_options", [{}, pytest.param({"merge-engine": "first-row"}, marks=pytest.mark.deep)])
def test_files_sorted_by_other_columns(
    paimon_engine: PaimonEngine, tmp_path: Path, engine_options: dict[str, str]
) -> None:
    """With ``pk-clustering-override`` files are sorted by other columns than keys. They keep that order, and Paimon
    goes on as with a twin that was not purged.
    """
    engine, paths = paimon_engine, (tmp_path / "ours", tmp_path / "theirs")
    columns = {"id": "INT NOT NULL", "v": "STRING", "n": "INT"}
    options = {**DV, **WRITER, **engine_options, "bucket": "1", "clustering.columns": "v"}
    for path in paths:
        engine.create(path, columns, key=["id"], options={**options, "pk-clustering-override": "true"})
        engine.append(path, [(n, f"v{n * 7919 % 2000:04d}", n) for n in range(2000)], options=COMPACTS)
        engine.append(path, [(n, f"v{n * 13 % 2000:04d}", -n) for n in range(0, 2000, 39)], options=COMPACTS)
    ours = paths[0]
    assert health(opened(ours).snapshot()).counts.deleted_rows == 52
    before = in_order(judge_rows(engine, ours))
    report = purge(opened(ours), LocalEngine())
    assert report.verified, report.problems
    assert health(opened(ours).snapshot()).counts.deleted_rows == 0
    assert in_order(judge_rows(engine, ours)) == before
    assert engine.ask(ours, CLUSTERED) == engine.ask(ours, CLUSTERED, all_rows=True)
    largest = max(opened(ours).snapshot().files["path"].to_pylist(), key=lambda each: (ours / each).stat().st_size)
    stored = pq.read_table(ours / largest, columns=["v"], partitioning=None)["v"].to_pylist()
    assert stored == sorted(stored)
    for turn in range(3 if engine_options else 1):
        for path in paths:
            engine.append(path, [(n, f"w{n:04d}", turn) for n in range(turn, 2100, 83)], options=COMPACTS)
        assert in_order(judge_rows(engine, ours)) == in_order(engine.rows(paths[1]))
        assert purge(opened(ours), LocalEngine()).verified
        assert in_order(judge_rows(engine, ours)) == in_order(engine.rows(paths[1]))
    engine.expire(ours)
    assert engine.orphans(ours, time.time_ns() // 1_000_000 + 3_600_000) == []
    assert in_order(judge_rows(engine, ours)) == in_order(engine.rows(paths[1]))


COMPACTS = {"write-only": "false"}
CLUSTERED: list[tuple[Any, ...]] = [("=", "v", "v0013"), (">", "v", "v1900"), ("=", "id", 39), ("<", "n", 0)]


@pytest.mark.parametrize("kind", ["orc", pytest.param("avro", marks=pytest.mark.deep)])
def test_every_type_in_other_files(paimon_engine: PaimonEngine, tmp_path: Path, kind: str) -> None:
    engine, path = paimon_engine, tmp_path / "table"
    columns: dict[str, Any] = {"id": "CHAR(6) NOT NULL", "day": "DATE NOT NULL"}
    kinds, nested = VALUES, set(NESTED)
    if kind == "orc":
        # Fractions of a second before 1970 are refused, as in append tables.
        late = {
            name: [each for each in values if getattr(each, "year", 1970) >= 1970] for name, values in VALUES.items()
        }
        kinds = {name: values for name, values in (late | {"DATE": VALUES["DATE"]}).items() if "ZONE" not in name}
        nested = NESTED_IN_ORC
    columns |= {f"c{at}": each for at, each in enumerate(kinds)}
    columns |= {name: each for name, (each, _) in NESTED.items() if name in nested}
    examples = [*kinds.values(), *(values for name, (_, values) in NESTED.items() if name in nested)]
    options = {**DV, **WRITER, "bucket": "1", "file.format": kind}
    engine.create(path, columns, key=["id", "day"], options=options)

    def rows(ids: range) -> list[list[Any]]:
        return [[f"k{n}", date(2026, 1, 1 + n % 9), *(each[n % len(each)] for each in examples)] for n in ids]

    engine.append(path, rows(range(200)), options=COMPACTOR)
    engine.compact(path, options=COMPACTOR)
    engine.append(path, rows(range(0, 200, 13)), options=ALONE)
    assert health(opened(path).snapshot()).counts.deleted_rows == 16
    before = in_order(judge_rows(engine, path))
    assert purge(opened(path), LocalEngine()).verified
    assert health(opened(path).snapshot()).counts.deleted_rows == 0
    assert in_order(judge_rows(engine, path)) == before
    engine.append(path, rows(range(0, 200, 7)), options=ALONE)
    assert in_order(judge_rows(engine, path)) == before
    engine.compact(path, options=COMPACTOR)
    assert in_order(judge_rows(engine, path)) == before


NESTED_IN_ORC = {"numbers", "deep", "by_name", "one"}


def test_retractions_make_a_bucket_one_that_is_merged(paimon_engine: PaimonEngine, tmp_path: Path) -> None:
    """They get above level 0 before deletion vectors are turned on. Then no deletion vector names what they retract:
    Paimon merges the files of the bucket, and a file says nothing alone. After its compaction all is well.
    """
    engine, path = paimon_engine, tmp_path / "table"
    columns = {"pt": "STRING NOT NULL", "id": "INT NOT NULL", "v": "STRING"}
    options = {**WRITER, "bucket": "1", "deletion-vectors.modifiable": "true"}
    engine.create(path, columns, key=["pt", "id"], partition=["pt"], options=options)
    engine.append(path, [(pt, n, "old") for n in range(4000) for pt in "ab"], options=COMPACTOR)
    engine.compact(path, options=COMPACTOR)
    engine.append(path, [("a", n, "new") for n in range(20)], kinds=["-D"] * 10 + ["+I"] * 10)
    engine.append(path, [("a", n, "new") for n in range(5000, 5010)])
    engine.compact(path, full=False, options=ALONE | {"num-sorted-run.compaction-trigger": "2"})
    engine.alter(path, ("option", "deletion-vectors.enabled", "true"))
    engine.append(path, [(pt, n, "newest") for n in range(5, 60, 5) for pt in "ab"], options=ALONE)
    files = opened(path).snapshot().files.select(["partition", "level", "retractions", "deleted_rows"]).to_pylist()
    assert {(file["partition"], file["retractions"]) for file in files if file["retractions"]} == {("pt=a", 10)}
    rows = engine.rows(path)
    assert len(rows) == 2 * 4000 + 1
    with pytest.raises(RefusedError, match="only retract others, so its files are merged on read"):
        our_rows(path)
    report = purge(opened(path), LocalEngine())
    assert {step.partition for step in report.steps} == {"pt=b"}
    assert any("only retract others" in each.reason for each in report.left_alone)
    same(engine.rows(path), rows)
    engine.compact(path, options=COMPACTOR)
    same(judge_rows(engine, path), rows)


def test_a_bucket_where_rows_wait_is_left_alone(paimon_engine: PaimonEngine, tmp_path: Path) -> None:
    """Before a purge and during it. The others are purged, and a twin that was not purged goes the same way."""
    engine, ours, theirs = paimon_engine, tmp_path / "ours", tmp_path / "theirs"
    tables = [filled(engine, path, "plain") for path in (ours, theirs)]
    for table in tables:
        table.write(range(0, 100, 2), compacted=False)  # in partition a
    before = in_order(judge_rows(engine, ours))
    report = purge(opened(ours), LocalEngine())
    assert report.verified, report.problems
    assert {step.partition for step in report.steps} == {"pt=b"}
    waits = next(each for each in report.left_alone if "level 0" in each.reason)
    assert waits.deleted_rows
    assert purged_partitions(ours) == {"pt=b"}
    assert in_order(judge_rows(engine, ours)) == before
    judge_files(engine, ours, engine.version(ours))

    for table in tables:
        table.settle()
        table.write(range(0, 220, 7))
        table.delete(range(150, 160))
        table.settle()
    assert in_order(judge_rows(engine, ours)) == in_order(engine.rows(theirs))
    judge_files(engine, ours, engine.version(ours))

    def meanwhile() -> None:
        for table in tables:
            table.write(range(1, 100, 2), compacted=False)  # in partition b

    report = purge(opened(ours), InterferingEngine(LocalEngine(), meanwhile))
    assert report.verified, report.problems
    assert {step.partition for step in report.steps} == {"pt=a"}
    assert sum("level 0" in each.reason for each in report.left_alone) == 1
    assert purged_partitions(ours) == {"pt=a"}
    assert in_order(judge_rows(engine, ours)) == in_order(engine.rows(theirs))
    for table in tables:
        engine.compact(table.path, options=COMPACTOR)
        table.write(range(50, 230, 11))
        table.settle()
    assert in_order(judge_rows(engine, ours)) == in_order(engine.rows(theirs))
    assert purge(opened(ours), LocalEngine()).verified
    engine.expire(ours)
    assert in_order(judge_rows(engine, ours)) == in_order(engine.rows(theirs))
    assert engine.orphans(ours, time.time_ns() // 1_000_000 + 3_600_000) == []


def purged_partitions(path: Path) -> set[str]:
    """Those without deletion vectors."""
    files = opened(path).snapshot().files.select(["partition", "dv_id"]).to_pylist()
    return {each["partition"] for each in files} - {each["partition"] for each in files if each["dv_id"]}


@pytest.mark.deep
def test_rows_that_wait_for_a_compaction_stop_a_purge(paimon_engine: PaimonEngine, tmp_path: Path) -> None:
    """Before it, and during it: then nothing is committed, and no row comes back."""
    engine, path = paimon_engine, tmp_path / "table"
    table = filled(engine, path, "plain")
    before = in_order(judge_rows(engine, path))
    raced = InterferingEngine(LocalEngine(), lambda: table.write(range(10), compacted=False))
    report = purge(opened(path), raced)
    assert not report.steps
    assert any("level 0" in each.reason for each in report.left_alone)
    assert in_order(judge_rows(engine, path)) == before
    files = {Path(file).name for file in opened(path).snapshot().files["path"].to_pylist()}
    files |= {Path(file).name for file in opened(path).snapshot().hidden["path"].to_pylist()}
    assert {each.name for each in path.rglob("data-*.parquet")} >= files
    with pytest.raises(RefusedError, match="wait for a compaction"):
        purge(opened(path), LocalEngine())
    table.settle()
    after = in_order(judge_rows(engine, path))
    assert len(after) == len(before)
    assert purge(opened(path), LocalEngine()).verified
    assert in_order(judge_rows(engine, path)) == after


def large(engine: PaimonEngine, path: Path) -> Keyed:
    """A table of one large file with a deletion vector, and nothing in level 0."""
    table = Keyed(engine, path, "plain", random.Random(0))
    table.write(range(20_000))
    engine.compact(path, options=COMPACTOR)
    table.write(range(0, 20_000, 10))
    table.settle()
    return table


def test_a_writer_that_compacts_knows_files_of_before(paimon_engine: PaimonEngine, tmp_path: Path) -> None:
    """So a purge needs ``write-only``. Without that, rows that a writer replaces come back: its deletion vector is of a
    file that is gone, and Paimon notices no conflict.
    """
    engine, path = paimon_engine, tmp_path / "table"
    large(engine, path)
    planned = engine.stage_append(path, [("ab"[n % 2], n, "new", 1, None) for n in range(0, 60, 3)], options=ALONE)
    assert purge(opened(path), LocalEngine()).verified
    planned()
    assert len(engine.rows(path)) > 20_000
    for file in (path / "schema").iterdir():
        file.write_text(file.read_text().replace('"write-only" : "true"', '"write-only" : "false"'))
    with pytest.raises(RefusedError, match="write-only is not true"):
        purge(opened(path), LocalEngine())


def test_a_streaming_compaction_remembers_files(paimon_engine: PaimonEngine, tmp_path: Path) -> None:
    """So a purge is refused while it is at work. Without that, rows that it replaces come back: the second half."""
    engine, path = paimon_engine, tmp_path / "table"
    table = large(engine, path)
    table.write(range(0, 50, 5), compacted=False)
    assert engine.checkpoint(path, 1, ALONE) == 2
    assert not opened(path).snapshot().hidden.num_rows
    with pytest.raises(RefusedError, match=r"a streaming job compacts it.*Stop that job"):
        purge(opened(path), LocalEngine())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dv_maintenance.tables.paimon.rows.keyed.streaming_compaction", lambda *_: None)
        assert purge(opened(path), LocalEngine()).verified
    assert len(engine.rows(path)) == 20_000
    table.write(range(0, 60, 3), compacted=False)
    engine.checkpoint(path, 2, ALONE)
    engine.end_stream(path)
    assert len(engine.rows(path)) > 20_000
