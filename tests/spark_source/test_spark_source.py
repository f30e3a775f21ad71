"""``spark.read.format("dv_delta")``: the same rows as delta-spark reads, none of the files that a filter rules out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import date
from importlib.metadata import version
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from support.readers import with_delta_spark
from support.sessions import cheap
from test_golden_delta import EXPECTED

from dv_maintenance import register
from dv_maintenance.dml.uuids import STORED
from dv_maintenance.testing.delta_builder import DeltaBuilder
from dv_maintenance.testing.iceberg_builder import IcebergBuilder

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# One of each kind: DVs, nested types, partitions, column mapping, old and new types, columns that came later.
GOLDEN = [
    "dat-all_primitive_types",
    "data-reader-map",
    "data-reader-nested-struct",
    "delta-0.8.0-null-partition",
    "deltatbl-special-chars-in-partition-column",
    "dv-with-columnmapping",
    "made-inline-dv",
    "made-prefix-dv",
    "table-with-columnmapping-mode-id",
    "table-with-dv-large",
    "time-travel-schema-changes-b",
    "type-widening",
    "void-column",
]


@pytest.fixture(scope="module")
def session(spark: SparkSession) -> Iterator[SparkSession]:
    register(spark, push_filters=True)
    yield spark
    spark.conf.unset("spark.sql.python.filterPushdown.enabled")


Load = Callable[..., "DataFrame"]


@pytest.fixture
def load(session: SparkSession) -> Load:
    def load(path: Path | str, **options: Any) -> DataFrame:
        return session.read.format("dv_delta").options(**options).load(str(path))

    return load


def ids(frame: DataFrame) -> list[int]:
    return sorted(row.id for row in frame.collect())


# -- rows --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", GOLDEN)
def test_golden_tables(golden: Path, canon: ModuleType, load: Load, name: str) -> None:
    expected = EXPECTED[name]["expected"]
    rows = canon.rows(load(golden / "delta" / name).toArrow())
    assert (len(rows), canon.digest(rows)) == (expected["rows"], expected["sha256"])


MADE = """
    CREATE TABLE {t} (id BIGINT, name STRING, day DATE, price DECIMAL(12, 2), at TIMESTAMP, ntz TIMESTAMP_NTZ,
        place STRUCT<x: DOUBLE, tags: ARRAY<STRING>>, props MAP<STRING, INT>, part STRING) USING delta
        PARTITIONED BY (part)
        TBLPROPERTIES ('delta.enableDeletionVectors' = 'true', 'delta.columnMapping.mode' = 'name');
    INSERT INTO {t} SELECT /*+ COALESCE(1) */
        id, concat('n', id % 40), date_add(DATE '2026-01-01', CAST(id % 50 AS INT)),
        CAST(id / 8 AS DECIMAL(12, 2)), timestamp_micros(id * 86400000123),
        CAST(timestamp_micros(id * 3600000456) AS TIMESTAMP_NTZ),
        IF(id % 9 = 0, NULL, named_struct('x', IF(id % 5 = 0, double('NaN'), id / 3), 'tags', array(string(id), NULL))),
        map('k', CAST(id AS INT)), CASE id % 3 WHEN 0 THEN NULL WHEN 1 THEN 'a b' ELSE 'ü/ä=1' END FROM range(300);
    DELETE FROM {t} WHERE id % 7 = 0;
    ALTER TABLE {t} RENAME COLUMN name TO label;
    ALTER TABLE {t} ADD COLUMN extra INT;
    INSERT INTO {t} SELECT id, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 'late', 7 FROM range(300, 320);
    DELETE FROM {t} WHERE id = 310
"""
# One of each kind that Spark hands down; `make deep` asks them all.
SOME_FILTERS = [
    "part = 'a b' AND id < 100",
    "part <> 'a b'",
    "part IS NULL",
    "id IN (1, 2, NULL)",
    "label LIKE 'n1%'",
    "day BETWEEN DATE '2026-01-10' AND DATE '2026-01-12'",
    "at < TIMESTAMP '1970-02-01 00:00:00'",
    "place.x > 50",
    "extra <=> NULL AND id < 50",
]
FILTERS = [
    "id = 15",
    "part = 'a b' AND id < 100",
    "part IS NULL",
    "part <> 'a b'",
    "label IN ('n1', 'n2') OR extra = 7",
    "label LIKE 'n1%'",
    "label LIKE '%3'",
    "day BETWEEN DATE '2026-01-10' AND DATE '2026-01-12'",
    "price > 20.5",
    "price = 20",
    "at < TIMESTAMP '1970-02-01 00:00:00'",
    "ntz >= TIMESTAMP_NTZ '1970-01-10 00:00:00'",
    "place.x > 50",
    "place IS NULL AND id > 20",
    "NOT (id > 10 AND label = 'n11')",
    "extra IS NOT NULL",
    "extra <=> NULL AND id < 50",
    "props['k'] = 33",
    "id IN (1, 2, NULL)",
    "id NOT IN (1, 2)",
]


@pytest.fixture(scope="module")
def made(delta_spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("source") / "table"
    for statement in MADE.format(t=f"delta.`{path}`").split(";"):
        cheap(delta_spark).sql(statement)
    return path


def test_delta_spark_reads_the_same(made: Path, canon: ModuleType, load: Load, delta_spark: SparkSession) -> None:
    ours, theirs = load(made), with_delta_spark(delta_spark, made)
    assert canon.rows(ours.toArrow()) == canon.rows(theirs)
    names = delta_spark.read.format("delta").load(str(made)).schema
    assert [(each.name, each.dataType) for each in ours.schema] == [(each.name, each.dataType) for each in names]


@pytest.mark.parametrize("filters", [SOME_FILTERS, pytest.param(FILTERS, marks=pytest.mark.deep)], ids=["some", "all"])
def test_filters_mean_what_they_mean_there(
    made: Path, load: Load, delta_spark: SparkSession, filters: list[str]
) -> None:
    answers = [f"{where} AS `{number}`" for number, where in enumerate(filters)]
    theirs = delta_spark.read.format("delta").load(str(made)).selectExpr("id", *answers).collect()
    for number, where in enumerate(filters):
        assert ids(load(made).where(where).select("id")) == sorted(row.id for row in theirs if row[str(number)]), where


def test_two_filters_on_one_frame(spark: SparkSession, tmp_path: Path) -> None:
    """Spark 4.1 has one reader for both, with the filter that it pushed last."""
    builder = DeltaBuilder(str(tmp_path / "t")).create(pa.schema([("id", pa.int64())]))
    builder.append(pa.table({"id": range(20)}), files=2)
    register(spark)
    try:
        frame = spark.read.format("dv_delta").load(place(builder))
        assert ids(frame.where("id < 3").union(frame.where("id >= 17"))) == [0, 1, 2, 17, 18, 19]
    finally:
        register(spark, push_filters=True)


def test_columns(made: Path, load: Load, session: SparkSession) -> None:
    frame = load(made, columns="part, `id`")
    assert frame.columns == ["part", "id"]
    assert frame.where("id < 4").orderBy("id").collect() == [("a b", 1), ("ü/ä=1", 2), (None, 3)]
    own = session.read.format("dv_delta").schema("extra INT, id BIGINT").load(str(made))
    assert own.where("extra = 7").count() == 19
    assert own.agg({"id": "max"}).first() == (319,)


# -- versions ----------------------------------------------------------------------------------------------------


@pytest.fixture
def orders(tmp_path: Path) -> DeltaBuilder:
    times = iter(range(1_767_225_600_000, 2_000_000_000_000, 86_400_000))  # a day each, from 2026-01-01
    now = [0]

    def clock() -> int:
        return now[0]

    builder = DeltaBuilder(str(tmp_path / "orders"), clock=clock)
    schema = pa.schema([("id", pa.int64()), ("day", pa.date32()), ("part", pa.int32())])
    now[0] = next(times)
    builder.create(schema, partition_by=["part"], properties={"delta.enableInCommitTimestamps": "true"})
    now[0] = next(times)
    rows = pa.table({"id": range(100), "day": [date(2026, 1, 1 + n // 10) for n in range(100)], "part": [1, 2] * 50})
    builder.append(rows.cast(schema), rows_per_row_group=10)
    now[0] = next(times)
    builder.delete(lambda batch: pc.less(batch["id"], 30))
    now[0] = next(times)
    return builder


def place(builder: DeltaBuilder) -> str:
    return builder.storage.uri.removeprefix("file://")


def test_versions_and_times(orders: DeltaBuilder, load: Load) -> None:
    path = place(orders)
    assert load(path).count() == 70
    assert load(path, versionAsOf=1).count() == 100
    assert load(path, versionAsOf="0").count() == 0
    assert load(path, timestampAsOf="2026-01-02").count() == 100
    assert load(path, timestampAsOf="2026-01-02 23:59:59.999").count() == 100
    assert load(path, timestampAsOf="2026-01-03T01:00:00+01:00").count() == 70
    assert load(path, timestampAsOf="2026-01-03 08:00:00", timeZone="Asia/Tokyo").count() == 100


def test_a_data_frame_keeps_its_version(orders: DeltaBuilder, load: Load) -> None:
    frame = load(place(orders))
    orders.delete(lambda batch: pc.less(batch["id"], 90))
    assert ids(frame) == list(range(30, 100))
    assert ids(load(place(orders))) == list(range(90, 100))


# -- what is not read --------------------------------------------------------------------------------------------


@pytest.mark.skipif(version("pyspark").startswith("4.0."), reason="PySpark hands filters down from 4.1 on")
def test_files_that_a_filter_rules_out_are_not_opened(orders: DeltaBuilder, load: Load) -> None:
    frame = load(place(orders))
    [other] = Path(place(orders)).glob("part=1/*.parquet")
    other.unlink()
    assert ids(frame.where("part = 2 AND id < 40")) == [31, 33, 35, 37, 39]
    # Row 42, of the first file, was in its statistics.
    assert ids(frame.where("day > DATE '2026-01-10' OR id = 1000")) == []
    with pytest.raises(Exception, match="DamagedTableError"):
        ids(frame.where("id = 42"))


def test_large_files_are_cut_and_small_ones_packed(orders: DeltaBuilder, load: Load) -> None:
    path = place(orders)
    assert load(path).rdd.getNumPartitions() == 1
    cut = load(path, splitBytes="512")
    assert cut.rdd.getNumPartitions() > 2
    assert ids(cut) == list(range(30, 100))


# -- what goes wrong ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"versionAsOf": "7"}, "no version 7|version 7"),
        ({"versionAsOf": "-1"}, "versionAsOf '-1' is not a version"),
        ({"versionAsOf": "1", "timestampAsOf": "2026-01-01"}, "given together"),
        ({"timestampAsOf": "2040-01-01"}, "after the newest version"),
        ({"timestampAsOf": "1999-01-01"}, "does not go back"),
        ({"timestampAsOf": "yesterday"}, "is not a time"),
        ({"timestampAsOf": "2026-01-02", "timeZone": "Nowhere/Else"}, "is unknown"),
        ({"columns": "id, nope"}, "no column 'nope'"),
        ({"columns": "id, id"}, "named twice"),
        ({"columns": " "}, "names no column"),
        ({"mergeSchema": "true"}, "unknown option 'mergeschema'"),
        ({"splitBytes": "0"}, "is not a size"),
    ],
    ids=str,
)
def test_mistakes_are_named(orders: DeltaBuilder, load: Load, options: dict[str, str], message: str) -> None:
    with pytest.raises(Exception, match=message) as error:
        load(place(orders), **options).count()
    assert "Traceback" not in str(error.value)


def test_tables_that_cannot_be_read(golden: Path, tmp_path: Path, load: Load, session: SparkSession) -> None:
    with pytest.raises(Exception, match=r"UnsupportedFeatureError|RefusedError"):
        load(golden / "delta" / "catalog_managed_0")
    with pytest.raises(Exception, match="no table found"):
        load(tmp_path)
    with pytest.raises(Exception, match="no path"):
        session.read.format("dv_delta").load()


def test_a_schema_of_one_s_own_must_fit(orders: DeltaBuilder, session: SparkSession) -> None:
    with pytest.raises(Exception, match="column 'id' is bigint, not int"):
        session.read.format("dv_delta").schema("id INT").load(place(orders)).count()


# -- types ---


def test_variants(golden: Path, load: Load, delta_spark: SparkSession) -> None:
    place = golden / "delta" / "spark-variant-checkpoint"
    theirs = delta_spark.read.format("delta").load(str(place))
    shown = [*(f"schema_of_variant({each})" for each in ("v", "struct_of_variants.v")), "to_json(struct(*))"]
    assert load(place).schema == theirs.schema
    found, expected = (sorted(map(tuple, each.selectExpr(*shown).collect())) for each in (load(place), theirs))
    assert found == expected
    asked = "variant_get(v, '$.key', 'int') = 2"
    assert ids(load(place).where(asked)) == ids(theirs.where(asked))


def test_uuids_are_text(tmp_path: Path, load: Load) -> None:
    stored, texts = zip(*((each.bytes, str(each)) for each in (UUID(int=1), UUID(int=0xFF << 120))), strict=True)
    builder = IcebergBuilder(tmp_path / "t")
    builder.create({"id": "int", "u": "uuid", "us": {"type": "list", "element-id": 9, "element": "uuid"}})
    rows = {"id": pa.array(range(3), pa.int32()), "u": pa.array([*stored, None], STORED)}
    builder.append(pa.table({**rows, "us": pa.array([stored, [None], None], pa.list_(STORED))}))
    frame = load(tmp_path / "t")
    assert frame.dtypes == [("id", "int"), ("u", "string"), ("us", "array<string>")]
    assert [tuple(row) for row in frame.orderBy("id").collect()] == [
        (0, texts[0], [*texts]),
        (1, texts[1], [None]),
        (2, None, None),
    ]
    for where, found in {
        f"u = '{texts[1]}'": [1],
        f"u > '{texts[0]}'": [1],
        "u IS NULL": [2],
        "u LIKE '0%'": [0],
    }.items():
        assert ids(frame.where(where)) == found, where


# -- object storage ----------------------------------------------------------------------------------------------


def test_storage_options_reach_the_workers_and_are_not_shown(s3: tuple[str, dict[str, str]], load: Load) -> None:
    bucket, options = s3
    uri = f"{bucket}/source/orders"
    builder = DeltaBuilder(uri, storage_options=options).create(pa.schema([("id", pa.int64())]))
    builder.append(pa.table({"id": range(10)}))
    builder.delete(lambda batch: pc.equal(batch["id"], 3))
    frame = load(uri, **{f"storage.{key}": value for key, value in options.items()})
    assert ids(frame.where("id < 5")) == [0, 1, 2, 4]
    plan = frame._jdf.queryExecution().toString()
    assert options["aws_secret_access_key"] not in plan
    with pytest.raises(Exception, match="Error") as error:
        load(uri, **{"storage.aws_secret_access_key": "secret-of-mine", "storage.aws_endpoint": "http://127.0.0.1:9"})
    assert "secret-of-mine" not in str(error.value)
