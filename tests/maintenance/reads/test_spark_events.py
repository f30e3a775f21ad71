from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from support.spark_log import START, SparkLog, node, scan

from dv_maintenance.errors import UsageError
from dv_maintenance.maintenance.reads.spark_events import spark_reads
from dv_maintenance.maintenance.reads.spark_queries import locations, partitions
from dv_maintenance.maintenance.reads.state import SparkReads
from dv_maintenance.storage import Storage
from dv_maintenance.testing.delta_builder import DeltaBuilder

T = "s3a://lake/sales/orders"
TABLE = "s3://lake/sales/orders"
NOW = START + 86_400_000


def written(folder: Path, log: SparkLog, name: str = "app-1") -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(log.bytes())
    return path


def look(folder: Path | str, **options: Any) -> SparkReads:
    return spark_reads(str(folder), now=NOW, **options)


def counts(found: SparkReads, table: str = TABLE) -> tuple[int, dict[str, int]]:
    reads = found.of(table)
    if reads is None:
        return 0, {}
    return len(reads.times), {name: len(times) for name, times in reads.by_partition.items()}


def test_reads_by_table_and_partition(tmp_path: Path) -> None:
    log = SparkLog()
    log.read(T)
    log.read(T, "[isnotnull(day#4), (day#4 = 2026-01-02)]")
    log.read(T, "[day#4 IN (2026-01-02,2026-01-03)]")
    log.read("s3a://lake/other")
    written(tmp_path, log)
    found = look(tmp_path)
    assert counts(found) == (1, {"day=2026-01-02": 2, "day=2026-01-03": 1})
    assert counts(found, "s3://lake/other/") == (1, {})
    assert found.of("s3://lake") is None
    assert found.problems == []
    reads = found.of(TABLE)
    assert reads is not None
    assert (reads.since, reads.until, reads.source) == (START, START + 8000, "spark event logs")
    # Four reads ran within the first hour of this application: three of this table, the one with IN counted once.
    assert reads.per_day(reads.until, days=8000 / 86_400_000) * 8000 / 86_400_000 == pytest.approx(3)


def test_what_runs_is_counted_not_what_is_planned(tmp_path: Path) -> None:
    log = SparkLog()
    # Adaptive execution: one scan is planned again, one is reused, one never runs.
    query = log.start(scan(T, 10), scan(T, 20), scan(T, 30))
    log.update(query, scan(T, 40), scan(T, 20), scan(T, 20))
    log.ran(query, 40, 41)
    log.ran(query, 20, 21)
    log.end(query)
    # A cached result: its plan is shown, but not run again.
    query = log.start(node("InMemoryTableScan", scan(T, 20)))
    log.ran(query, 999)
    log.end(query)
    # Two scans of one query.
    query = log.start(scan(T, 50), scan(T, 60))
    log.ran(query, 50)
    log.ran(query, 60)
    written(tmp_path, log)
    assert counts(look(tmp_path)) == (4, {})


def test_reads_of_logs_changes_streams_and_our_own_jobs_do_not_count(tmp_path: Path) -> None:
    log = SparkLog()
    log.read(f"{T}/_delta_log/00000000000000000000.json")
    log.read(T, jobTags=["spark-session-1-tag-dv-maintenance-0f8fad5b-d9cb-469f-a165-70867728950e"])
    query = log.start(scan(T, 500, index="CdcAddFileIndex"))
    log.ran(query, 500)
    stream = "\nid = 0f8fad5b\nrunId = 0f8fad5b\nbatch = 12"
    query = log.start(scan(T, 600, index="TahoeBatchFileIndex"), scan(T, 700), description=stream)
    log.ran(query, 600, 700)
    query = log.start(scan(T, 800, index="TahoeBatchFileIndex"), description="DELETE")
    log.ran(query, 800)
    written(tmp_path, log)
    own = SparkLog(name="dv-maintenance")
    own.read(T)
    written(tmp_path, own, "app-2")
    assert counts(look(tmp_path)) == (2, {})


def test_a_statement_reads_its_target_once(tmp_path: Path) -> None:
    log = SparkLog()
    state = str(tmp_path / "state.json")
    for _ in range(3):
        merge = log.start(node("Execute MergeIntoCommand"))
        for part in range(3):  # search, write, delete
            at = 1000 * merge + 10 * part
            plan = scan(T, at, index="TahoeBatchFileIndex"), scan("s3a://lake/changes", at + 5)
            query = log.start(*plan, rootExecutionId=merge)
            log.ran(query, at, at + 5)
            log.end(query)
            written(tmp_path / "logs", log)
            look(tmp_path / "logs", state=state)
        log.end(merge)
    written(tmp_path / "logs", log)
    for found in (look(tmp_path / "logs"), look(tmp_path / "logs", state=state)):
        assert (counts(found), counts(found, "s3://lake/changes")) == ((3, {}), (9, {}))


def test_scans_that_do_not_show_a_location_are_named(tmp_path: Path) -> None:
    log = SparkLog()
    query = log.start(node("BatchScan dv_delta"), node("BatchScan default.orders"), node("BatchScan dv_delta"))
    log.end(query)
    written(tmp_path, log)
    assert look(tmp_path).unlocated() == {"dv_delta": 2, "default.orders": 1}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("InMemoryFileIndex(1 paths)[file:/data/my table%]", ("file:///data/my%20table%25",)),
        ("InMemoryFileIndex(1 paths)[file:/data/a, b]", ("file:///data/a,%20b",)),
        ("InMemoryFileIndex(3 paths)[s3a://b/one, s3n://b/two/, ...]", ("s3://b/one", "s3://b/two")),
        ("InMemoryFileIndex(2 paths)[s3a://b/a, ...]", ("s3://b/a",)),
        ("abfss://c@account.dfs.core.windows.net/t", ()),
        ("InMemoryFileIndex(1 paths)[s3n://KEY:secret@b/a@b:c]", ("s3://b/a@b:c",)),
        ("TahoeLogFileIndex(1 paths)[abfss://c@a.dfs.core.windows.net/t]", ("abfss://c@a.dfs.core.windows.net/t",)),
        ("", ()),
    ],
)
def test_locations(text: str, expected: tuple[str, ...]) -> None:
    assert locations(text) == expected


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        ("[]", None),
        ("[isnotnull(day#1)]", None),
        ("[(day#1 > 2026-01-02)]", None),
        ("[(cast(day#1 as string) = 2026-01-02)]", None),
        ("[((day#1 = 2026-01-02) OR (day#1 = 2026-01-03))]", None),
        ("[(day#1 = 2026-01-02), (hour#2L > 5)]", ("day=2026-01-02",)),
        ("[(shop#2 = a/b)]", ("shop=a%2Fb",)),
        ("[(at#2 = 2026-01-01 00:00:00)]", None),
        ("[n#2 INSET 1, 11, 2, (day#1 = 2026-01-02)]", tuple(f"n={n}/day=2026-01-02" for n in (1, 11, 2))),
        ("[(n#2 = 1), n#2 IN (1,2)]", ("n=1",)),
        ("[(n#2 = 3), n#2 IN (1,2)]", ()),
        ("[dynamicpruningexpression(day#1 IN dynamicpruning#7)]", None),
        ("[n#2 IN (" + ",".join(map(str, range(2000))) + ")]", None),
        ("[(name#2 = a, (b)]", None),
    ],
)
def test_partitions(filters: str, expected: tuple[str, ...] | None) -> None:
    assert partitions(filters) == expected


# -- files -------------------------------------------------------------------------------------------------------


def lz4(data: bytes) -> bytes:
    blocks = [data[at : at + 32768] for at in range(0, len(data), 32768)]
    packed = [(bytes(pa.Codec("lz4_raw").compress(each)), len(each)) for each in blocks]
    packed.append((b"", 0))
    return b"".join(b"LZ4Block" + struct.pack("<BIII", 0x25, len(each), size, 0) + each for each, size in packed)


def snappy(data: bytes) -> bytes:
    blocks = [data[at : at + 32768] for at in range(0, len(data), 32768)]
    packed = [bytes(pa.Codec("snappy").compress(each)) for each in blocks]
    head = b"\x82SNAPPY\x00" + struct.pack(">II", 1, 1)
    return head + b"".join(struct.pack(">I", len(each)) + each for each in packed)


def zstd(data: bytes) -> bytes:
    return bytes(pa.Codec("zstd").compress(data))


def long_log(queries: int = 200) -> SparkLog:
    log = SparkLog()
    for _ in range(queries):
        log.read(T)
    return log


@pytest.mark.parametrize(("suffix", "pack"), [("", bytes), (".zstd", zstd), (".lz4", lz4), (".snappy", snappy)])
def test_codecs(tmp_path: Path, suffix: str, pack: Any) -> None:
    folder = tmp_path / "logs"
    folder.mkdir()
    log = long_log()
    data = log.bytes()
    (folder / f"app-1{suffix}").write_bytes(pack(data))
    assert counts(look(folder)) == (200, {})
    # While the application runs the file ends anywhere.
    (folder / f"app-1{suffix}").rename(folder / f"app-1{suffix}.inprogress")
    written = pack(data)
    (folder / f"app-1{suffix}.inprogress").write_bytes(written[: len(written) * 2 // 3])
    state = str(tmp_path / "state.json")
    first = look(folder, state=state)
    assert first.problems == []
    (folder / f"app-1{suffix}").write_bytes(written)
    (folder / f"app-1{suffix}.inprogress").unlink()
    assert counts(look(folder, state=state)) == (200, {})
    assert counts(look(folder, state=state)) == (200, {})


def test_a_codec_that_is_not_supported_is_said(tmp_path: Path) -> None:
    (tmp_path / "app-1.lzf").write_bytes(b"ZV")
    written(tmp_path, long_log(2), "app-2")
    found = look(tmp_path)
    assert found.problems == ["app-1.lzf is compressed with lzf, which is not supported: its events are not counted"]
    assert counts(found) == (2, {})


def test_rolling_logs_and_queries_that_span_files(tmp_path: Path) -> None:
    log = long_log(12)
    at = next(at for at, line in enumerate(log.lines) if b"DriverAccumUpdates" in line and at > 20)
    state = str(tmp_path / "state.json")
    folder = tmp_path / "logs" / "eventlog_v2_app-1"
    folder.mkdir(parents=True)
    (folder / "appstatus_app-1.inprogress").touch()
    (folder / "events_9_app-1.zstd").write_bytes(zstd(b"".join(line + b"\n" for line in log.lines[:at])))
    before, _ = counts(look(tmp_path / "logs", state=state))
    assert before == sum(b"DriverAccumUpdates" in line for line in log.lines[:at])
    (folder / "events_10_app-1.zstd").write_bytes(zstd(b"".join(line + b"\n" for line in log.lines[at:])))
    assert counts(look(tmp_path / "logs", state=state)) == (12, {})
    assert counts(look(tmp_path / "logs")) == (12, {})
    # The history server compacts old files. The reads stay known.
    (folder / "events_9_app-1.zstd").rename(folder / "events_9_app-1.zstd.compact")
    assert counts(look(tmp_path / "logs", state=state)) == (12, {})


def test_a_state_keeps_the_reads_of_deleted_logs(tmp_path: Path) -> None:
    state = str(tmp_path / "made" / "state.json")
    path = written(tmp_path / "logs", long_log(5))
    assert counts(look(tmp_path / "logs", state=state)) == (5, {})
    path.unlink()
    assert counts(look(tmp_path / "logs", state=state)) == (5, {})
    assert look(tmp_path / "logs").of(TABLE) is None


def test_only_what_is_new_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state = str(tmp_path / "state.json")
    log = long_log(3)
    written(tmp_path / "logs", log)
    look(tmp_path / "logs", state=state)
    opened: list[str] = []
    real = Storage.open_input
    monkeypatch.setattr(Storage, "open_input", lambda self, path: opened.append(path) or real(self, path))
    before = Path(state).stat().st_mtime_ns
    assert counts(look(tmp_path / "logs", state=state)) == (3, {})
    assert opened == []
    assert Path(state).stat().st_mtime_ns == before
    log.read(T)
    written(tmp_path / "logs", log)
    assert counts(look(tmp_path / "logs", state=state)) == (4, {})
    assert opened == ["app-1"]


def test_a_look_that_takes_too_long_is_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state = str(tmp_path / "state.json")
    written(tmp_path / "logs", long_log(40))
    (tmp_path / "logs" / "app-2.zstd").write_bytes(zstd(long_log(40).bytes()))
    clock = iter(range(100_000))
    monkeypatch.setattr("time.monotonic", lambda: next(clock))
    found = look(tmp_path / "logs", state=state, seconds=60)
    assert 0 < counts(found)[0] < 40
    assert found.problems == [
        f"app-{at} has not been read to its end yet, so its reads are undercounted" for at in ("1", "2.zstd")
    ]
    seen = []
    while found.problems:
        found = look(tmp_path / "logs", state=state, seconds=60)
        seen.append(counts(found)[0])
    assert seen == sorted(seen)
    assert seen[-1] == 80
    # The same in one process, without a state.
    found = look(tmp_path / "logs", seconds=60)
    while found.problems:
        found = look(tmp_path / "logs", seconds=60, known=found)
    assert counts(found) == (80, {})


def test_old_reads_are_forgotten(tmp_path: Path) -> None:
    state = str(tmp_path / "state.json")
    log = long_log(3)
    log.time += 100 * 86_400_000
    log.read(T)
    written(tmp_path / "logs", log)
    found = spark_reads(str(tmp_path / "logs"), state=state, now=log.time)
    assert counts(found) == (1, {})
    reads = found.of(TABLE)
    assert reads is not None
    assert reads.until - reads.since == 90 * 86_400_000


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b"null", b'{"format": 1}', b'{"format": 7}', b"\xff"])
def test_a_damaged_state_is_not_used(tmp_path: Path, text: bytes) -> None:
    state = tmp_path / "state.json"
    state.write_bytes(text)
    written(tmp_path / "logs", long_log(5))
    found = look(tmp_path / "logs", state=str(state))
    assert counts(found) == (5, {})
    assert [problem.split(" ", 3)[:2] for problem in found.problems] == [["the", "state"]]
    assert look(tmp_path / "logs", state=str(state)).problems == []


def test_damaged_events_are_counted_and_hide_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dv_maintenance.maintenance.reads.spark_codecs._LONGEST", 1 << 20)
    monkeypatch.setattr("dv_maintenance.maintenance.reads.spark_codecs._CHUNK", 1 << 16)
    log = SparkLog()
    log.read(T)
    good = next(line for line in log.lines if b"SQLExecutionStart" in line)
    sql = b"org.apache.spark.sql.execution.ui.SparkListener"
    broken = [
        good[:100],
        b"\xff\xfe\x00",
        b"",
        b'{"Event":"' + sql + b'SQLExecutionStart"}',
        b'{"Event":"' + sql + b'DriverAccumUpdates","executionId":1,"accumUpdates":[["x",1]]}',
        b'{"Event":"' + sql + b'DriverAccumUpdates","executionId":1,"accumUpdates":7}',
        good.replace(b'"children":[', b'"children":[7,', 1),
        good.replace(b'"time":', b'"time":9', 1),
        good.replace(b'"time":', b'"time":-', 1),
        good.replace(b'"description":"', b'"description":"' + b"x" * (3 << 20), 1),
        b'{"Event":"' + sql + b'SQLExecutionStart","sparkPlanInfo":' + b'{"children":[' * 5000,
        good.replace(b"[s3a://lake/sales/orders]", b"[ ]", 1),
    ]
    lines = [log.lines[0], *broken]
    for _ in range(3):
        log.read(T)
    (tmp_path / "app-1").write_bytes(b"\n".join([*lines, *log.lines[1:], b"unfinished"]))
    found = look(tmp_path)
    assert counts(found) == (4, {})
    assert found.problems == [f"app-1 has {len(broken)} damaged events, not counted"]
    assert look(tmp_path, known=found).problems == found.problems
    assert found.since == START


def test_a_damaged_block_is_said_once_the_log_is_old(tmp_path: Path) -> None:
    log = long_log(300)
    data = bytearray(lz4(log.bytes()))
    data[len(data) // 2 :] = b"?" * (len(data) - len(data) // 2)
    (tmp_path / "app-1.lz4").write_bytes(data)
    modified = (tmp_path / "app-1.lz4").stat().st_mtime_ns // 1_000_000
    found = spark_reads(str(tmp_path), now=modified + 2 * 86_400_000)
    assert 0 < counts(found)[0] < 300
    assert [problem.split(" after ")[0] for problem in found.problems] == ["app-1.lz4 is damaged or incomplete"]


def test_other_files_are_said_and_not_read_to_their_end(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_bytes(b"hello\n" * 1000)
    (tmp_path / ".app-1.crc").write_bytes(b"x")
    written(tmp_path, long_log(2))
    found = look(tmp_path)
    assert counts(found) == (2, {})
    assert found.problems == ["notes.txt is not a Spark event log"]
    assert look(tmp_path / "missing").tables == {}


def test_in_object_storage(s3: tuple[str, dict[str, str]]) -> None:
    uri, options = s3
    storage = Storage(uri, options)
    log = long_log(4)
    storage.put("reads/logs/app-1.zstd.inprogress", zstd(log.bytes()))
    state = f"{uri}/reads/state.json"
    found = spark_reads(f"{uri}/reads/logs/", options, state=state, now=NOW)
    assert counts(found) == (4, {})
    storage.put("reads/logs/app-2", log.bytes())
    assert counts(spark_reads(f"{uri}/reads/logs", options, state=state, now=NOW)) == (8, {})
    assert json.loads(storage.get("reads/state.json"))["logs"].keys() == {"app-1.zstd", "app-2"}


def test_a_state_replaces_no_other_file(tmp_path: Path) -> None:
    """A file of a table was overwritten by `dvm watch`."""
    written(tmp_path / "logs", long_log(5))
    DeltaBuilder(str(tmp_path / "t")).create(pa.schema([("id", pa.int64())]))
    commit = tmp_path / "t" / "_delta_log" / f"{0:020d}.json"
    for state, said in [(commit, "is not a state of reads"), (tmp_path / "t" / "reads.json", "inside the Delta table")]:
        before = commit.read_bytes()
        with pytest.raises(UsageError, match=said):
            look(tmp_path / "logs", state=str(state))
        assert commit.read_bytes() == before
    assert not (tmp_path / "t" / "reads.json").exists()
