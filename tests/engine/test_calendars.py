"""Calendars of Parquet files, with values that Spark 4.1 gave (``RebaseDateTime``)."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from support.releases import needs_int96

from dv_maintenance.engine.parquet import calendars
from dv_maintenance.engine.parquet.calendars import (
    FIRST_MICRO,
    PROLEPTIC,
    FileCalendar,
    dates_to_proleptic,
    timestamps_to_proleptic,
)
from dv_maintenance.engine.parquet.reader import open_parquet
from dv_maintenance.engine.parquet.schema import describe
from dv_maintenance.engine.rewrite import rewrite
from dv_maintenance.engine.scan import scan
from dv_maintenance.errors import RefusedError
from dv_maintenance.storage import Storage
from dv_maintenance.tables.model import FileKey
from dv_maintenance.tables.predicate import Compare, bind
from dv_maintenance.tables.work import RewriteTask, ScanTask, SourceFile

INSTANT = pa.timestamp("us", "UTC")
NEW_YORK = {
    "org.apache.spark.version": "4.1.4",
    "org.apache.spark.legacyDateTime": "",
    "org.apache.spark.legacyINT96": "",
    "org.apache.spark.timeZone": "America/New_York",
}
SPARK_2 = {"org.apache.spark.version": "2.4.8"}
SPARK_4 = {"org.apache.spark.version": "4.1.4"}

# Days as they are stored -> as Spark reads them: 0001-01-01, 0100-02-29 (which only the Julian calendar has),
# 1500-03-01, 1582-10-04, 1582-10-15.
DAYS = {-719_164: -719_162, -682_946: -682_944, -171_595: -171_605, -141_428: -141_438, -141_427: -141_427}

# Microseconds as they are stored, and by zone what Spark adds to each.
MICROS = [
    -62_135_751_600_000_001,
    -60_000_000_000_123_456,
    -13_000_000_000_000_000,
    -12_219_292_800_000_001,
    -12_219_292_800_000_000,
    -2_717_650_800_000_001,
    -2_300_000_000_000_000,
    FIRST_MICRO - 1,
    FIRST_MICRO,
]
SECONDS_ADDED = {
    "UTC": [172_800, 172_800, -864_000, -864_000, 0, 0, 0, 0, 0],
    "GMT+05:30": [172_800, 172_800, -864_000, 0, 0, 0, 0, 0, 0],
    "-08:00": [172_800, 172_800, -864_000, -864_000, 0, 0, 0, 0, 0],  # Java takes such names for GMT
    "America/New_York": [None, 172_562, -864_238, -864_238, -864_238, -238, 0, 0, 0],
    "Asia/Kolkata": [171_392, 171_392, -865_408, -1_408, -1_408, 530, 530, 530, 0],
    "Europe/Amsterdam": [175_350, 175_350, -861_450, 2_550, 2_550, 2_550, 3_600, 3_600, 0],
    "Asia/Manila": [258_960, 258_960, -777_840, 86_160, 86_160, -240, -240, 0, 0],
    "Pacific/Apia": [None, 174_416, -862_384, 1_616, 1_616, 1_616, 88_016, 88_016, 0],
}


def days(values: list[int | None]) -> pa.Array:
    return pa.array(values, pa.int32()).view(pa.date32())


def micros(values: list[int | None]) -> pa.Array:
    return pa.array(values, pa.int64()).view(INSTANT)


def test_dates_are_moved_as_spark_does() -> None:
    stored = [*DAYS, None, 0, 19_000]
    moved = dates_to_proleptic(days(stored), "f")
    assert moved.view(pa.int32()).to_pylist() == [*DAYS.values(), None, 0, 19_000]
    assert dates_to_proleptic(days(stored).slice(2, 4), "f").to_pylist() == moved.slice(2, 4).to_pylist()
    assert moved[0].as_py() == date(1, 1, 1)
    earliest = days([-1_200_000, -800_000])
    assert dates_to_proleptic(earliest, "f").view(pa.int32()).to_pylist() == [-1_199_988, -799_996]
    modern = days([-141_427, None, 5])
    assert dates_to_proleptic(modern, "f") is modern
    with pytest.raises(RefusedError, match=r"from before 290,000 BC"):
        dates_to_proleptic(days([-(1 << 31)]), "f")


@pytest.mark.parametrize("zone", SECONDS_ADDED)
def test_timestamps_are_moved_as_spark_does(zone: str) -> None:
    known = [(at, more) for at, more in zip(MICROS, SECONDS_ADDED[zone], strict=True) if more is not None]
    moved = timestamps_to_proleptic(micros([None, *(at for at, _ in known)]), zone, "f")
    assert moved.view(pa.int64()).to_pylist() == [None, *(at + more * 1_000_000 for at, more in known)]


def test_timestamps_that_spark_leaves_to_each_jvm_are_refused() -> None:
    old, modern = micros([None, FIRST_MICRO - 1]), micros([FIRST_MICRO, None])
    with pytest.raises(RefusedError, match=r"^f holds timestamps before 1900 .* does not name their time zone"):
        timestamps_to_proleptic(old, None, "f")
    with pytest.raises(RefusedError, match=r"time zone 'Mars/Base', which Spark's table"):
        timestamps_to_proleptic(old, "Mars/Base", "f")
    with pytest.raises(RefusedError, match=r"before the year 1, in the time zone Asia/Kolkata"):
        timestamps_to_proleptic(micros([-62_200_000_000_000_000]), "Asia/Kolkata", "f")
    assert timestamps_to_proleptic(modern, None, "f") is modern
    moved = timestamps_to_proleptic(micros([-99_999_999_999_999_999]), "UTC", "f")
    assert moved.view(pa.int64()).to_pylist() == [-99_999_999_999_999_999 + 950_400_000_000]


def test_zones_are_those_of_sparks_table() -> None:
    """What ``scripts/legacy_zones`` made of it, against the jar."""
    import pyspark

    jars = list((Path(pyspark.__file__).parent / "jars").glob("spark-sql-api_*.jar"))
    if not jars:
        pytest.skip("PySpark came without its jars")
    with zipfile.ZipFile(jars[0]) as archive:
        table = json.loads(archive.read("julian-gregorian-rebase-micros.json"))
    assert {each["tz"] for each in table} == set(calendars._zones())
    for each in table:
        found = calendars._zone_table(each["tz"])
        assert found is not None
        first, count = each["switches"][0], len(each["switches"]) - 1
        assert found.switches[-count:].tolist() == each["switches"][1:]
        assert found.seconds[-count - 1 :].tolist() == each["diffs"]
        assert found.switches[0] == first or (found.switches[-count - 1] < first and found.switches[0] < 100 * first)


@pytest.mark.parametrize(
    ("keys", "hybrid", "hybrid_int96"),
    [
        ({}, False, False),
        ({"org.apache.spark.legacyDateTime": ""}, False, False),  # without a version Spark ignores it
        (SPARK_2, True, True),
        ({"org.apache.spark.version": "3.0.3"}, False, True),
        ({"org.apache.spark.version": "3.1.0"}, False, False),
        ({"org.apache.spark.version": "3.1.0", "org.apache.spark.legacyINT96": ""}, False, True),
        ({"org.apache.spark.version": "3.1.0", "org.apache.spark.legacyDateTime": ""}, True, False),
        ({key.decode(): value.decode() for key, value in PROLEPTIC.items()}, False, False),
    ],
)
def test_the_calendar_is_told_by_sparks_keys(
    tmp_path: Path, keys: Mapping[str, str], hybrid: bool, hybrid_int96: bool
) -> None:
    write(tmp_path / "f.parquet", pa.table({"d": days([0])}), keys)
    found = FileCalendar.of(pq.read_metadata(tmp_path / "f.parquet"), "f")
    assert (found is not None) == (hybrid or hybrid_int96)
    if found is not None:
        assert (found.hybrid, found.hybrid_int96) == (hybrid, hybrid_int96)


def write(path: Path, table: pa.Table, keys: Mapping[str, str] | None = None, **options: Any) -> SourceFile:
    with pq.ParquetWriter(path, table.schema, store_schema=False, **options) as writer:
        writer.write_table(table, row_group_size=2)
        writer.add_key_value_metadata(dict(keys or {}))
    return SourceFile(FileKey(path.name), path.as_uri(), path.stat().st_size, table.num_rows)


def rows(task: ScanTask) -> pa.Table:
    return pa.Table.from_batches(scan(task), task.schema)


D1, D1500, D1970 = -719_164, -171_595, 0  # 0001-01-01 and 1500-03-01 of the Julian calendar
T1500, T1850 = -14_825_790_000_000_000, -3_786_807_600_000_000  # their local midnights in New York, as Spark 2 has them
NY_1500 = T1500 - 864_238_000_000


def test_values_are_moved_wherever_they_are(tmp_path: Path) -> None:
    inner = pa.struct([("d", pa.date32()), ("t", INSTANT)])
    schema = pa.schema(
        [
            ("d", pa.date32()),
            ("t", INSTANT),
            ("s", inner),
            ("l", pa.list_(pa.date32())),
            ("m", pa.map_(pa.date32(), INSTANT)),
        ]
    )

    def table(d: list[int], t: list[int]) -> pa.Table:
        at, when = days([*d, None]), micros([*t, None])
        two = pa.array([0, 1, 2, 3], pa.int32())
        return pa.table(
            [
                at,
                when,
                pa.StructArray.from_arrays([at, when], fields=list(inner)),
                pa.ListArray.from_arrays(two, at),
                pa.MapArray.from_arrays(pa.array([0, 1, 2, 2], pa.int32()), at.drop_null(), when.drop_null()),
            ],
            schema=schema,
        )

    source = write(tmp_path / "f.parquet", table([D1, D1500], [T1500, T1850]), NEW_YORK)
    wanted = table([D1 + 2, D1500 - 10], [NY_1500, T1850 - 238_000_000])
    assert rows(ScanTask((source,), schema)).equals(wanted)
    assert wanted["d"][0].as_py() == date(1, 1, 1)
    # Paimon's readers ignore the keys.
    raw = SourceFile(source.key, source.uri, source.size, source.rows, spark_keys=False)
    assert rows(ScanTask((raw,), schema)).equals(table([D1, D1500], [T1500, T1850]))


@needs_int96
def test_int96_has_a_rule_of_its_own(tmp_path: Path) -> None:
    schema = pa.schema([("t", INSTANT)])
    stored = pa.table({"t": micros([T1500, T1850])}, schema=schema)
    keys = {"org.apache.spark.version": "3.0.1", "org.apache.spark.timeZone": "America/New_York"}
    int96 = write(tmp_path / "int96.parquet", stored, keys, use_deprecated_int96_timestamps=True)
    int64 = write(tmp_path / "int64.parquet", stored, keys)
    moved = pa.table({"t": micros([NY_1500, T1850 - 238_000_000])})
    assert rows(ScanTask((int96,), schema)).equals(moved)
    assert rows(ScanTask((int64,), schema)).equals(stored)


def test_timestamps_without_a_zone_stay_and_dates_that_became_them_move(tmp_path: Path) -> None:
    local = pa.timestamp("us")
    stored = pa.table({"n": micros([T1500]).view(local), "d": days([D1500])})
    task = ScanTask((write(tmp_path / "f.parquet", stored, NEW_YORK),), pa.schema([("n", local), ("d", local)]))
    (row,) = rows(task).to_pylist()
    assert row["n"] == stored["n"][0].as_py()
    assert row["d"] == datetime(1500, 3, 1)  # widened since


def test_row_groups_are_skipped_by_what_the_table_means(tmp_path: Path) -> None:
    schema = pa.schema([("d", pa.date32()), ("t", INSTANT)])
    table = pa.table(
        {"d": days([D1, D1500, D1970, 10, 20, 30]), "t": micros([T1500, T1850, 0, 1, FIRST_MICRO, FIRST_MICRO + 1])}
    )
    source = write(tmp_path / "f.parquet", table, NEW_YORK)
    task = ScanTask((source,), schema)

    def read(predicate: Compare) -> list[int]:
        with open_parquet(source, task, Storage(source.uri)) as reader:
            batches = reader.batches(predicate=bind(predicate, schema))
            return [value for batch in batches for value in batch.column(0).view(pa.int32()).to_pylist()]

    assert read(Compare(("d",), "=", date(1, 1, 1))) == [D1 + 2, D1500 - 10]
    midnight = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=NY_1500)
    assert read(Compare(("t",), "=", midnight)) == [D1 + 2, D1500 - 10]
    assert read(Compare(("d",), "=", date(1970, 1, 26))) == [D1 + 2, D1500 - 10, 20, 30]


def task_of(
    tmp_path: Path, schema: pa.Schema, *sources: SourceFile, order_by: tuple[tuple[str, ...], ...] = ()
) -> RewriteTask:
    (tmp_path / "out").mkdir(exist_ok=True)
    out = (tmp_path / "out").as_uri()
    columns = tuple((name,) for name in schema.names)
    return RewriteTask("t", ScanTask(sources, schema), out, 1 << 20, stats_columns=columns, order_by=order_by)


def outputs(task: RewriteTask) -> list[tuple[list[int | None], bool, Any]]:
    """Of each new file the days, whether its footer says what they are, and the least one by the statistics."""
    found = []
    for output in rewrite(task).outputs:
        with Storage(output.uri).open_input(output.uri) as file:
            keys = pq.read_metadata(file).metadata or {}
            stored = pq.read_table(file).column("d")
        said = keys.get(b"org.apache.spark.version") == b"3.1.0"
        assert not any(key.startswith(b"org.apache.spark.legacy") for key in keys)
        found.append((pc.cast(stored, pa.int32()).to_pylist(), said, output.stats[0].minimum))
    return found


def test_new_files_say_that_they_are_proleptic(tmp_path: Path) -> None:
    schema = pa.schema([("d", pa.date32())])
    legacy = write(tmp_path / "legacy.parquet", pa.table({"d": days([D1, 5])}), NEW_YORK)
    spark_4 = write(tmp_path / "four.parquet", pa.table({"d": days([D1 + 2])}), SPARK_4)
    modern = write(tmp_path / "arrow.parquet", pa.table({"d": days([7, None])}))
    assert outputs(task_of(tmp_path, schema, legacy, spark_4, modern)) == [([D1 + 2, 5, D1 + 2, 7, None], True, D1 + 2)]


def test_new_files_say_no_more_of_old_dates_than_their_sources(tmp_path: Path) -> None:
    """What a session in the mode EXCEPTION or LEGACY makes of such dates, it goes on making of them."""
    schema = pa.schema([("d", pa.date32())])
    modern = write(tmp_path / "modern.parquet", pa.table({"d": days([7])}))
    unsaid = write(tmp_path / "unsaid.parquet", pa.table({"d": days([D1, 8])}))
    said = write(tmp_path / "said.parquet", pa.table({"d": days([D1 + 2])}), SPARK_4)
    assert outputs(task_of(tmp_path, schema, modern, unsaid, modern)) == [([7, D1, 8, 7], False, D1)]
    assert outputs(task_of(tmp_path, schema, unsaid, said, modern)) == [
        ([D1, 8], False, D1),
        ([D1 + 2, 7], True, D1 + 2),
    ]
    assert outputs(task_of(tmp_path, schema, modern, unsaid, order_by=(("d",),))) == [([D1, 7, 8], False, D1)]
    assert outputs(task_of(tmp_path, schema, modern, said, order_by=(("d",),))) == [([D1 + 2, 7], True, D1 + 2)]
    with pytest.raises(RefusedError, match=r"only some of them name the calendar"):
        outputs(task_of(tmp_path, schema, unsaid, said, order_by=(("d",),)))


def test_tables_whose_readers_look_at_no_keys_have_nothing_unsaid(tmp_path: Path) -> None:
    schema = pa.schema([("d", pa.date32())])
    unsaid = write(tmp_path / "unsaid.parquet", pa.table({"d": days([D1, 8])}))
    said = write(tmp_path / "said.parquet", pa.table({"d": days([D1 + 2])}), NEW_YORK)
    of_paimon = [replace(source, spark_keys=False) for source in (unsaid, said)]
    assert outputs(task_of(tmp_path, schema, *of_paimon)) == [([D1, 8, D1 + 2], True, D1)]
    assert outputs(task_of(tmp_path, schema, *of_paimon, order_by=(("d",),))) == [([D1, D1 + 2, 8], True, D1)]


def test_int96_of_no_version_stays_unsaid(tmp_path: Path) -> None:
    """Its footer has no bounds: any of it may be old."""
    schema = pa.schema([("d", pa.date32()), ("t", INSTANT)])
    table = pa.table({"d": days([1]), "t": micros([T1850])})
    source = write(tmp_path / "f.parquet", table, use_deprecated_int96_timestamps=True)
    assert outputs(task_of(tmp_path, schema, source)) == [([1], False, 1)]


@pytest.mark.parametrize(("unit", "old"), [("ms", -2_208_988_800_001), ("us", FIRST_MICRO - 1)])
def test_units_are_told_apart(tmp_path: Path, unit: str, old: int) -> None:
    schema = pa.schema([("d", pa.date32()), ("t", INSTANT)])

    def said(value: int) -> bool:
        when = pa.array([value], pa.int64()).view(pa.timestamp(unit, "UTC"))
        source = write(tmp_path / "f.parquet", pa.table({"d": days([1]), "t": when}))
        ((_, said, _),) = outputs(task_of(tmp_path, schema, source))
        return said

    assert said(old + 1)
    assert not said(old)


def test_footers_that_are_listed_have_no_bounds_of_another_calendar(tmp_path: Path) -> None:
    table = pa.table({"d": days([D1, 5]), "t": micros([T1850, 5]), "n": [1, 2]})
    write(tmp_path / "old.parquet", table, NEW_YORK)
    write(tmp_path / "new.parquet", table.slice(1), NEW_YORK)
    storage = Storage(tmp_path.as_uri())

    def bounds(name: str) -> dict[str, Any]:
        return {each.column[0]: each.minimum for each in describe(storage, name)[1].stats}

    assert bounds("old.parquet") == {"d": None, "t": None, "n": 1}
    assert bounds("new.parquet") == {"d": 5, "t": 5, "n": 2}
