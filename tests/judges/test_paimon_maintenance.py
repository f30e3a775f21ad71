"""Append tables maintained by us: Paimon's own engine reads the same rows at every snapshot, goes on writing, deleting,
compacting and expiring, and no delete of its is lost, whenever it comes.
"""

from __future__ import annotations

import json
import random
import time
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from paimon_judging import Intruder, in_order, judge_files, judge_rows, opened, our_rows
from support.paimon_engine import DV, DV64, EngineConflictError, PaimonEngine, Row
from test_paimon_reading import NESTED, VALUES

from dv_maintenance.dml.delete import delete
from dv_maintenance.engine.local import LocalEngine
from dv_maintenance.errors import ConflictError, RefusedError
from dv_maintenance.files.parquet_footer import open_parquet_file, with_bytes
from dv_maintenance.maintenance.execution.apply import maintain, purge
from dv_maintenance.maintenance.health import health
from dv_maintenance.maintenance.planning.policy import Policy
from dv_maintenance.maintenance.vacuum import vacuum
from dv_maintenance.tables.guard import VacuumRequest
from dv_maintenance.testing.history import InterferingEngine

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ALL_DELETED_FILES = {"compaction.delete-ratio-threshold": "0", "compaction.min.file-num": "2"}
HOUR = 3_600_000


def go_on(engine: PaimonEngine, path: Path, new: list[Any]) -> None:
    """What others do with a table that we had: by its end nothing of ours is left but what is live."""
    before = len(judge_rows(engine, path))
    judge_files(engine, path, engine.version(path))
    engine.append(path, [new])
    gone = engine.delete(path, lambda row: row["id"] % 4 == 2)
    judge_files(engine, path, engine.version(path))
    assert engine.compact(path, options=ALL_DELETED_FILES)
    assert len(judge_rows(engine, path)) == before + 1 - gone
    engine.expire(path)
    assert engine.orphans(path, time.time_ns() // 1_000_000 + HOUR) == []
    assert len(judge_rows(engine, path)) == before + 1 - gone
    judge_files(engine, path, engine.version(path))


def no_dvs(path: Path) -> bool:
    return health(opened(path).snapshot()).counts.files_with_dv == 0


def simple(engine: PaimonEngine, path: Path, **options: Any) -> None:
    engine.create(path, {"id": "INT", "pt": "STRING", "v": "STRING"}, **options)
    for start in (0, 40, 80):
        engine.append(path, [(number, "ab"[number % 2], f"v{number}") for number in range(start, start + 40)])
    engine.delete(path, lambda row: row["id"] % 3 == 0)
    engine.delete(path, lambda row: row["id"] % 5 == 0 and row["id"] < 70)


@pytest.mark.parametrize(
    ("options", "parted"),
    [
        pytest.param(DV, True, id="32-partitioned"),
        pytest.param(DV64, False, id="64"),
        pytest.param(DV, False, id="32", marks=pytest.mark.deep),
        pytest.param(DV64, True, id="64-partitioned", marks=pytest.mark.deep),
    ],
)
def test_a_purge(paimon_engine: PaimonEngine, tmp_path: Path, options: dict[str, str], parted: bool) -> None:
    engine, path = paimon_engine, tmp_path / "table"
    simple(engine, path, options=options, partition=["pt"][:parted])
    was = {version: in_order(engine.rows(path, version)) for version in range(1, engine.version(path) + 1)}
    report = purge(opened(path), LocalEngine())
    assert report.verified, report.problems
    assert no_dvs(path)
    assert engine.version(path) > max(was)
    assert in_order(judge_rows(engine, path)) == was[max(was)]
    for version, rows in was.items():
        assert in_order(engine.rows(path, version)) == rows
    go_on(engine, path, [1000, "a", "new"])


def test_partitions_whose_folders_are_escaped(paimon_engine: PaimonEngine, tmp_path: Path) -> None:
    """``at=2026-01-01T10%3A00``: the name of the folder is that, percent signs and all, and is not decoded again."""
    engine, path = paimon_engine, tmp_path / "table"
    engine.create(path, {"id": "INT", "at": "TIMESTAMP(3)", "s": "STRING"}, partition=["at", "s"], options=DV)
    texts = ["a:b", "a/b", "100%", "a=b", "#?", '*"']
    moments = [datetime(2026, 1, 1, hour, 30, 5) for hour in range(len(texts))]
    for number, (moment, text) in enumerate(zip(moments, texts, strict=True)):
        engine.append(path, [(10 * number + at, moment, text) for at in range(4)])
    engine.delete(path, lambda row: row["id"] % 10 == 1)
    rows = in_order(engine.rows(path))
    assert len(rows) == 3 * len(texts)
    report = purge(opened(path), LocalEngine())
    assert (report.verified, report.problems) == (True, ())
    assert no_dvs(path)
    assert in_order(engine.rows(path)) == rows
    vacuum(opened(path), VacuumRequest(retention=0, allow_short_retention=True))
    assert in_order(engine.rows(path)) == rows
    judge_files(engine, path, engine.version(path))


def test_what_stays_deleted_beside_a_compaction(paimon_engine: PaimonEngine, tmp_path: Path) -> None:
    """One index file holds the deletion vectors of files that are rewritten, and of others."""
    engine, path = paimon_engine, tmp_path / "table"
    engine.create(path, {"id": "INT", "v": "STRING"}, options=DV)
    for start in range(0, 600, 100):
        engine.append(path, [(number, f"v{number}") for number in range(start, start + 100)])
    engine.delete(path, lambda row: row["id"] % 100 < row["id"] // 10)
    before = in_order(engine.rows(path))
    report = maintain(opened(path), LocalEngine(), Policy(max_deleted_ratio=0.3, min_file_size=0))
    assert report.verified, report.problems
    counts = health(opened(path).snapshot()).counts
    assert 0 < counts.files_with_dv < 5
    assert in_order(judge_rows(engine, path)) == before
    judge_files(engine, path, engine.version(path))
    go_on(engine, path, [1000, "new"])


def test_every_type_and_changed_schemas(paimon_engine: PaimonEngine, tmp_path: Path) -> None:
    engine, path = paimon_engine, tmp_path / "table"
    columns = {"id": "INT", **{f"c{number}": kind for number, kind in enumerate(VALUES)}}
    columns |= {name: kind for name, (kind, _) in NESTED.items()}
    values = [*VALUES.values(), *(examples for _, examples in NESTED.values())]
    rows = [[number, *(each[number % len(each)] for each in values)] for number in range(12)]
    rows += [[number, *(None for _ in values)] for number in (12, 13)]
    engine.create(path, columns, options=DV)
    engine.append(path, rows)
    engine.delete(path, lambda row: row["id"] in {0, 5, 13})
    engine.alter(path, ("rename", "c0", "flag"), ("drop", "c1"), ("add", "later", "DECIMAL(20, 5)"))
    engine.append(path, [[20, True, *(None for _ in values[2:]), "123456789012345.12345"]])
    before = in_order(engine.rows(path))
    assert purge(opened(path), LocalEngine()).verified
    assert in_order(judge_rows(engine, path)) == before
    policy = Policy(min_input_files=2)
    assert maintain(opened(path), LocalEngine(), policy).verified
    assert in_order(judge_rows(engine, path)) == before
    go_on(engine, path, [30, *(None for _ in values)])


def test_filters_find_what_was_rewritten(paimon_engine: PaimonEngine, tmp_path: Path) -> None:
    """Paimon skips files by the statistics that we wrote."""
    engine, path = paimon_engine, tmp_path / "table"
    simple(engine, path, options=DV)
    left = [row["id"] for row in engine.rows(path)]
    assert purge(opened(path), LocalEngine()).verified
    for number in range(0, 120, 7):
        found = engine.rows(path, where=("id", number))
        assert [row["id"] for row in found if row["id"] == number] == [number] * left.count(number)
    assert engine.rows(path, where=("id", 5000)) == []


# -- others meanwhile ---------------------------------------------------------------------------------------------

MULTIPLE = 7


def gone_too(row: Row) -> bool:
    return bool(row["id"] % MULTIPLE == 1)


def test_a_delete_before_our_commit_is_carried_over(paimon_engine: PaimonEngine, tmp_path: Path) -> None:
    engine, path = paimon_engine, tmp_path / "table"
    simple(engine, path, options=DV)
    expected = in_order([row for row in engine.rows(path) if not gone_too(row)])
    runs = InterferingEngine(LocalEngine(), lambda: engine.delete(path, gone_too))
    report = purge(opened(path), runs)
    assert report.verified, report.problems
    assert sum(step.rows_carried for step in report.steps) > 0
    assert in_order(judge_rows(engine, path)) == expected
    go_on(engine, path, [1000, "a", "new"])


def test_paimons_commit_sees_ours(paimon_engine: PaimonEngine, tmp_path: Path) -> None:
    """A delete planned on files that we rewrote is refused by Paimon, and can be done again."""
    engine, path = paimon_engine, tmp_path / "table"
    simple(engine, path, options=DV)
    before = engine.rows(path)
    late = engine.stage_delete(path, gone_too)
    assert purge(opened(path), LocalEngine()).verified
    with pytest.raises(EngineConflictError):
        late()
    assert in_order(judge_rows(engine, path)) == in_order(before)
    assert engine.delete(path, gone_too)
    assert in_order(judge_rows(engine, path)) == in_order([row for row in before if not gone_too(row)])


class Other:
    """A writer that does one thing, and knows what is left of the rows there were; ids from 1000 on are new."""

    def __init__(self, engine: PaimonEngine, path: Path, what: str) -> None:
        self.engine, self.path, self.what = engine, path, what
        self.before = engine.rows(path)
        self.after = self.before
        self.new = 0
        # Planned and written before our run begins, to be committed in its midst.
        self._late = engine.stage_delete(path, gone_too) if what == "late delete" else None

    def __call__(self) -> None:
        match self.what:
            case "delete":
                self.engine.delete(self.path, gone_too)
            case "update":
                self.engine.delete(self.path, gone_too, new=[(1000, "a", "updated")])
            case "append":
                self.engine.append(self.path, [(1000, "b", "new")])
            case "compact":
                self.engine.compact(self.path, options=ALL_DELETED_FILES)
        if self._late is not None:
            try:
                self._late()
            except EngineConflictError:
                return
        self.new += self.what in {"update", "append"}
        if self.what in {"delete", "update", "late delete"}:
            self.after = [row for row in self.before if not gone_too(row)]


def race(engine: PaimonEngine, folder: Path, intruder: Intruder, what: str, at: int, parted: bool = False) -> int:
    """A purge in whose middle somebody else does something; the number of its calls to the storage."""
    path = folder / f"{what}-{at}"
    simple(engine, path, options=DV if at % 2 else DV64, partition=["pt"][:parted])
    other = Other(engine, path, what)
    try:
        report = intruder.during(lambda: purge(opened(path), LocalEngine()), at, other)
        assert report.verified, report.problems
    except ConflictError:
        assert what == "compact"
    calls = intruder.calls
    if at > calls:
        other()
    rows = judge_rows(engine, path)
    assert in_order([row for row in rows if row["id"] < 1000]) == in_order(other.after)
    assert len(rows) - len(other.after) == other.new
    judge_files(engine, path, engine.version(path))
    return calls


OTHERS = ["delete", "late delete", "update", "append", "compact"]


@pytest.mark.parametrize("what", ["delete", "late delete", "compact"])
def test_others_at_some_moments(
    paimon_engine: PaimonEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    intruder = Intruder(monkeypatch)
    calls = race(paimon_engine, tmp_path, intruder, what, 1)
    for at in sorted(random.Random(what).sample(range(2, calls + 1), 1)):
        race(paimon_engine, tmp_path, intruder, what, at)


@pytest.mark.deep
@pytest.mark.parametrize("parted", [False, True], ids=["flat", "partitioned"])
@pytest.mark.parametrize("what", OTHERS)
def test_others_at_every_moment(
    paimon_engine: PaimonEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str, parted: bool
) -> None:
    """Before each call to the storage that a purge makes, its commit included."""
    intruder, at, calls = Intruder(monkeypatch), 1, 1
    while at <= calls:
        calls = max(calls, race(paimon_engine, tmp_path, intruder, what, at, parted))
        at += 1
    assert at > 60


# -- our deletes --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "parted"),
    [
        pytest.param(DV64, True, id="64-partitioned"),
        pytest.param(DV, False, id="32", marks=pytest.mark.deep),
    ],
)
def test_our_deletes(
    paimon_engine: PaimonEngine, spark: SparkSession, tmp_path: Path, options: dict[str, str], parted: bool
) -> None:
    engine, path = paimon_engine, tmp_path / "table"
    simple(engine, path, options=options, partition=["pt"][:parted])
    left = engine.rows(path)
    for condition, goes in (
        ("id % 4 = 1", lambda row: row["id"] % 4 == 1),
        ("v IN ('v7', 'v44') OR id > 110", lambda row: row["v"] in {"v7", "v44"} or row["id"] > 110),
        ("pt = 'b' AND id < 40", lambda row: row["pt"] == "b" and row["id"] < 40),
    ):
        delete(opened(path), spark, condition)
        left = [row for row in left if not goes(row)]
        assert in_order(judge_rows(engine, path)) == in_order(left)
        judge_files(engine, path, engine.version(path))
    go_on(engine, path, [1000, "a", "new"])


def test_our_deletes_beside_indexes_of_files(paimon_engine: PaimonEngine, tmp_path: Path) -> None:
    """And nanoseconds: a deletion vector touches neither."""
    engine, path = paimon_engine, tmp_path / "table"
    indexes = {"file-index.bloom-filter.columns": "id", "file-index.bitmap.columns": "v"}
    columns = {"id": "INT", "v": "STRING", "t": "TIMESTAMP(9)"}
    engine.create(path, columns, options=DV | indexes)
    for first in (0, 40):
        engine.append(path, [(n, f"v{n % 7}", datetime(2026, 1, 1, 0, 0, 0, n)) for n in range(first, first + 40)])
    left = [row for row in engine.rows(path) if row["id"] not in {3, 4, 41}]
    delete(opened(path), LocalEngine(), "id IN (3, 4, 41)")
    filters = [("=", "id", 5), ("=", "v", "v3"), ("in", "id", 3, 41, 42), ("<>", "v", "v1")]

    def judged() -> None:
        assert in_order(engine.rows(path)) == in_order(left)
        assert engine.ask(path, filters) == engine.ask(path, filters, all_rows=True)

    judged()
    left = [row for row in left if row["id"] >= 40]
    delete(opened(path), LocalEngine(), "id < 40")  # the whole file
    assert len(opened(path).snapshot().files) == 1
    judged()
    engine.expire(path)
    assert engine.orphans(path, time.time_ns() // 1_000_000 + HOUR) == []
    judged()


NANOS = [-1, 0, 1, -86_400_000_000_005, 1_700_000_000_123_456_789, -86_400_000_000_000, -999_999, -1_500_000, None]
LOCAL = "TIMESTAMP(9) WITH LOCAL TIME ZONE"


def test_nanoseconds_of_parquet_files(paimon_engine: PaimonEngine, tmp_path: Path) -> None:
    """Paimon stores them in INT96, also before 1970, and other timestamps of the file not."""
    engine, path = paimon_engine, tmp_path / "table"
    columns = {"id": "INT", "t": "TIMESTAMP(9)", "z": LOCAL, "a": {"type": "ARRAY", "element": "TIMESTAMP(9)"}}
    columns |= {"u": "TIMESTAMP(6)", "m": "TIMESTAMP(3)"}
    engine.create(path, columns, options=DV)
    rows = [
        [at, each, None if each is None else each - 10**18, [each, None], -each // 1000 if each else 0, -at * 1000]
        for at, each in enumerate([when if when is None else when + at for at in range(6) for when in NANOS])
    ]
    for start in range(0, len(rows), 18):
        engine.append(path, rows[start : start + 18])
    engine.delete(path, lambda row: row["id"] % 3 == 1)
    before = in_order(judge_rows(engine, path))
    stored = int96_of(path, "t", "z") - {None}
    assert purge(opened(path), LocalEngine()).verified
    assert no_dvs(path)
    assert in_order(judge_rows(engine, path)) == before
    # The same bytes as Paimon's.
    assert int96_of(path, "t", "z") - {None} < stored
    kinds = [leaf.physical_type for leaf in leaves_of(path)]
    assert kinds == ["INT32", "INT96", "INT96", "INT96", "INT64", "INT64"]
    filters = [(kind, name, when) for kind in ("=", ">", "<=") for name in "tz" for when in NANOS if when is not None]
    filters += [("null", "t"), ("not null", "z"), (">", "u", 0), ("<", "m", -9000), ("=", "z", -1 - 10**18)]
    answers = engine.ask(path, filters)
    assert answers == engine.ask(path, filters, all_rows=True)
    assert len(set(answers)) > 20
    assert maintain(opened(path), LocalEngine(), Policy(min_input_files=2)).verified
    assert len(opened(path).snapshot().files) == 1
    assert in_order(judge_rows(engine, path)) == before
    assert engine.ask(path, filters) == answers
    go_on(engine, path, [1000, 1, 2, [3], 4, 5000])


def test_nanoseconds_of_any_year(paimon_engine: PaimonEngine, tmp_path: Path) -> None:
    """Arrow's nanoseconds end in 2262: they are moved as they are stored, but for those of partitions."""
    engine, path = paimon_engine, tmp_path / "table"
    columns = {"id": "INT", "t": "TIMESTAMP(9)", "z": LOCAL, "a": {"type": "ARRAY", "element": "TIMESTAMP(9)"}}
    engine.create(path, columns | {"p": "TIMESTAMP(9)"}, partition=["p"], options=DV)
    years = [-62_135_596_800, -20_000_000_000, -1, 0, 20_000_000_000, 253_402_300_799]
    times = [each * 10**9 + 123_456_789 for each in years * 8]
    rows = [(at, when, -when, [when, None], 1_700_000_000_123_456_789) for at, when in enumerate(times)]
    for start in (0, 24):
        engine.append(path, rows[start : start + 24])
    engine.delete(path, lambda row: row["id"] % 3 == 1)
    before = in_order(engine.rows(path))
    assert str(years[-1] * 10**9 + 123_456_789) in str(before)
    with pytest.raises(RefusedError, match="before 1677 or after 2262"):
        our_rows(path)
    assert purge(opened(path), LocalEngine()).verified
    assert no_dvs(path)
    assert in_order(engine.rows(path)) == before
    named = [(name, each[at]) for each in rows[::5] for at, name in ((1, "t"), (2, "z"), (4, "p"))]
    filters = [(kind, *each) for kind in ("=", "<", ">=") for each in named]
    answers = engine.ask(path, filters)
    assert answers == engine.ask(path, filters, all_rows=True)
    assert maintain(opened(path), LocalEngine(), Policy(min_input_files=2)).verified
    assert len(opened(path).snapshot().files) == 1
    assert in_order(engine.rows(path)) == before
    assert engine.ask(path, filters) == answers


def leaves_of(path: Path) -> list[Any]:
    """Of the first live file."""
    footer = pq.read_metadata(path / opened(path).snapshot().files["path"][0].as_py())
    return [footer.schema.column(leaf) for leaf in range(len(footer.schema))]


def int96_of(path: Path, *columns: str) -> set[bytes | None]:
    """What is stored in the live files."""
    found = set()
    for name in opened(path).snapshot().files["path"].to_pylist():
        footer = pq.read_metadata(path / name)
        leaves = [footer.schema.names.index(each) for each in columns]
        with open_parquet_file(pa.OSFile(str(path / name)), with_bytes(footer, leaves)) as file:
            for column in file.read(list(columns)).columns:
                found |= {*column.to_pylist()}
    return found


def test_nanoseconds_of_orc_files(paimon_engine: PaimonEngine, tmp_path: Path) -> None:
    engine, path = paimon_engine, tmp_path / "table"
    columns = {"id": "INT", "t": "TIMESTAMP(9)", "z": LOCAL}
    exact = {"file.format": "orc", "orc.timestamp-ltz.legacy.type": "false"}
    engine.create(path, columns, options=DV | exact)
    base = 1_700_000_000_123_456_789
    engine.append(path, [(n, None if n % 5 == 0 else base + n, base * 2 - n) for n in range(40)])
    engine.delete(path, lambda row: row["id"] % 3 == 0)
    before = in_order(judge_rows(engine, path))
    assert str(base + 1) in before[0]
    assert purge(opened(path), LocalEngine()).verified
    assert no_dvs(path)
    assert in_order(judge_rows(engine, path)) == before
    filters = [("=", "t", base + 7), (">", "t", base + 30), ("<=", "z", base * 2 - 20), ("null", "t")]
    answers = engine.ask(path, filters)
    assert answers == engine.ask(path, filters, all_rows=True)
    assert answers[0].startswith("1 rows")
    # From one format into the other, and back.
    for written, other in (("parquet", "orc"), ("orc", "parquet")):
        engine.alter(path, ("option", "file.format", written))
        engine.append(path, [(n, base + n, base) for n in range(100, 110)])
        engine.delete(path, lambda row: row["id"] in {5, 102})
        engine.alter(path, ("option", "file.format", other))
        before = in_order(engine.rows(path))
        assert maintain(opened(path), LocalEngine(), Policy(min_input_files=2)).verified
        names = opened(path).snapshot().files["file_name"].to_pylist()
        assert [name.rpartition(".")[2] for name in names] == [other]
        assert in_order(engine.rows(path)) == before
        assert engine.ask(path, filters) == engine.ask(path, filters, all_rows=True)


def delete_race(engine: PaimonEngine, spark: SparkSession, folder: Path, intruder: Intruder, what: str, at: int) -> int:
    """A delete of ours in whose middle somebody else does something; the number of its calls to the storage."""
    path = folder / f"{what}-{at}"
    simple(engine, path, options=DV if at % 2 else DV64)
    other = Other(engine, path, what)
    intruder.during(lambda: delete(opened(path), spark, "id % 4 = 1"), at, other)
    if at > intruder.calls:
        other()
    rows = judge_rows(engine, path)
    expected = [row for row in other.after if row["id"] % 4 != 1]
    assert in_order([row for row in rows if row["id"] < 1000]) == in_order(expected)
    assert len(rows) - len(expected) == other.new
    judge_files(engine, path, engine.version(path))
    return intruder.calls


def test_others_during_a_delete_of_ours(
    paimon_engine: PaimonEngine, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    intruder = Intruder(monkeypatch)
    calls = delete_race(paimon_engine, spark, tmp_path, intruder, "delete", 10_000)
    delete_race(paimon_engine, spark, tmp_path, intruder, "delete", calls - 3)


@pytest.mark.deep
@pytest.mark.parametrize("what", ["delete", "late delete", "update", "compact"])
def test_others_at_every_moment_of_a_delete_of_ours(
    paimon_engine: PaimonEngine, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    intruder, at, calls = Intruder(monkeypatch), 1, 1
    while at <= calls:
        calls = max(calls, delete_race(paimon_engine, spark, tmp_path, intruder, what, at))
        at += 1
    assert at > 20


@pytest.mark.deep
@pytest.mark.parametrize("version", [1, 2])
def test_snapshots_of_an_old_format(paimon_engine: PaimonEngine, tmp_path: Path, version: int) -> None:
    """They have no counts, and at first no number of their format. The next snapshot is of today's."""
    engine, path = paimon_engine, tmp_path / "t"
    engine.create(path, {"id": "INT", "pt": "STRING", "v": "STRING"}, partition=["pt"])
    for start in (0, 40, 80):
        engine.append(path, [(number, "ab"[number % 2], f"v{number}") for number in range(start, start + 40)])
    new = {"version", "watermark", "statistics", "totalRecordCount", "deltaRecordCount", "changelogRecordCount"}
    for file in (path / "snapshot").glob("snapshot-*"):
        body = {key: value for key, value in json.loads(file.read_text()).items() if key not in new}
        file.write_text(json.dumps(body | ({"version": version} if version > 1 else {})))
    rows = engine.rows(path)
    assert maintain(opened(path), LocalEngine(), Policy(min_input_files=2)).verified
    body = json.loads((path / "snapshot" / f"snapshot-{engine.version(path)}").read_text())
    assert (body["version"], body["totalRecordCount"], body["deltaRecordCount"]) == (3, 120, 0)
    assert len(opened(path).snapshot().files) == 2
    assert in_order(engine.rows(path)) == in_order(rows)
    engine.append(path, [(200, "a", "new")])
    assert engine.compact(path, options={"compaction.min.file-num": "2"})
    assert len(engine.rows(path)) == 121
    engine.expire(path)
    assert engine.orphans(path, time.time_ns() // 1_000_000 + HOUR) == []
