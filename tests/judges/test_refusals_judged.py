"""What the page says of refusals: the engines refuse these tables, too, with the errors that the page names."""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from iceberg_engine import IcebergEngine
from paimon_judging import our_rows
from support.iceberg_edits import edit
from support.pages import matrix
from support.paimon_engine import DV, EngineError, PaimonEngine
from support.raw_manifest import Record, message, newest_manifest, patch, records, without
from support.sessions import CHEAP, cheap

from dv_maintenance.dml.update import update
from dv_maintenance.errors import RefusedError, UnsupportedFeatureError
from dv_maintenance.tables import open_table
from dv_maintenance.tables.guard import VacuumRequest

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from pyspark.sql import SparkSession

# Without these a protocol contradicts itself.
NEEDS = {"catalogManaged": ["inCommitTimestamp", "vacuumProtocolCheck"]}
WRITERS = {"collations", "inCommitTimestamp", "redirectWriterOnly", "redirectWriterOnly-preview"}


def errors_of(cell: str) -> list[str]:
    """The conditions of delta-spark that a cell names."""
    return re.findall(r"`(DELTA_[A-Z_.]+)`", cell)


def said_by(act: Callable[[], object]) -> str:
    """The error of an act."""
    with pytest.raises(Exception, match=r".") as caught:
        act()
    return str(caught.value)


def refusal(spark: SparkSession, statement: str) -> str:
    """The error of a statement."""
    return said_by(lambda: spark.sql(statement).collect())


def supported(path: Path, name: str) -> None:
    """A table of delta-spark with one more feature."""
    features = [name, *NEEDS.get(name, ())]
    first = path / "_delta_log" / f"{0:020}.json"
    actions = [json.loads(line) for line in first.read_text().splitlines()]
    (protocol,) = (action["protocol"] for action in actions if "protocol" in action)
    protocol["writerFeatures"] += features
    protocol["readerFeatures"] += [each for each in features if each not in WRITERS]
    first.write_text("".join(json.dumps(action) + "\n" for action in actions))
    for stale in (path / "_delta_log").glob("*.crc"):
        stale.unlink()


@pytest.mark.deep
def test_delta_spark_refuses_what_is_refused_here(delta_spark: SparkSession, tmp_path: Path) -> None:
    spark, made = cheap(delta_spark), tmp_path / "made"
    spark.sql(
        f"CREATE TABLE delta.`{made}` (id BIGINT) USING delta TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')"
    )
    spark.sql(f"INSERT INTO delta.`{made}` SELECT id FROM range(10)")
    judged = 0
    for row in matrix("Delta Lake: refusals"):
        for name in row["features"].replace("any other name", "unheardOf").split(", "):
            if not (wanted := errors_of(row["what shows it"])) or name.startswith("icebergCompat"):
                continue
            path = tmp_path / name
            shutil.copytree(made, path)
            supported(path, name)
            said = refusal(spark, f"DELETE FROM delta.`{path}` WHERE id = 3")
            assert any(f"[{each}]" in said for each in wanted), (name, said[:500])
            with pytest.raises(UnsupportedFeatureError):
                table = open_table(str(path))
                table.check_writable(table.snapshot(), "update")
            judged += 1
    assert judged > 10


@pytest.mark.deep
@pytest.mark.parametrize("version", [1, 2])
def test_iceberg_before_version_3_has_no_deletion_vectors(
    version: int, delta_spark: SparkSession, tmp_path: Path
) -> None:
    spark, path = cheap(delta_spark), tmp_path / "t"
    on = f"'delta.columnMapping.mode' = 'name', 'delta.enableIcebergCompatV{version}' = 'true'"
    spark.sql(f"CREATE TABLE delta.`{path}` (id BIGINT) USING delta TBLPROPERTIES ({on})")
    on = "'delta.enableDeletionVectors' = 'true'"
    said = refusal(spark, f"ALTER TABLE delta.`{path}` SET TBLPROPERTIES ({on})")
    (row,) = (row for row in matrix("Delta Lake: refusals") if f"icebergCompatV{version}" in row["features"])
    assert any(f"[{each}]" in said for each in errors_of(row["what shows it"])), said[:500]


def refused_here(path: Path, operation: str) -> None:
    with pytest.raises(RefusedError):
        table: Any = open_table(str(path))
        table.check_writable(table.snapshot(), operation)


def as_the_page_says(format: str, judged: dict[str, str]) -> None:
    """``judged``: what the engine said, by what is refused. Other rows name tests, or are limits."""
    rows = {row["refused"]: row["necessary"] for row in matrix(f"{format}: refusals")}
    for refused, said in judged.items():
        assert rows[refused].startswith("yes: ")
        for error in re.findall(r"`([A-Z][^`]+ [^`]+|[A-Z_]{9,})`", rows[refused]):
            assert error in said, (refused, said[:500])


@pytest.mark.deep
def test_iceberg_refuses_what_is_refused_here(iceberg_spark: SparkSession, tmp_path: Path) -> None:
    engine = IcebergEngine(iceberg_spark, tmp_path)
    for key, value in CHEAP.items():
        engine.session.conf.set(key, value)
    engine.create("a", "id INT, v STRING")
    engine.sql("INSERT INTO {t} VALUES (1, 'x')", "a")

    def changed(name: str, change: Callable[[dict[str, Any]], object] = lambda _: None) -> Path:
        """A copy that has moved, with something else in its metadata."""
        shutil.copytree(tmp_path / "a", tmp_path / name)
        for stale in engine.path(name).rglob(".*.crc"):
            stale.unlink()
        edit(engine.path(name), lambda body: (body.update(location=str(engine.path(name))), change(body)))
        return engine.path(name)

    def column(kind: object) -> Callable[[dict[str, Any]], object]:
        field = {"id": 9, "name": "n", "required": False, "type": kind}
        return lambda body: (body["schemas"][-1]["fields"].append(field), body.update({"last-column-id": 10}))

    def error(name: str, statement: str) -> str:
        return said_by(lambda: engine.sql(statement, name))

    said: dict[str, str] = {}
    refused_here(changed("v5", lambda body: body.update({"format-version": 5})), "rewrite")
    said["format version 5 and newer"] = error("v5", "SELECT * FROM {t}")
    properties = "'format-version' = '1', 'write.delete.mode' = 'merge-on-read'"
    engine.sql(f"CREATE TABLE {{t}} (id INT) USING iceberg TBLPROPERTIES ({properties})", "v1")
    engine.sql("INSERT INTO {t} SELECT /*+ COALESCE(1) */ id FROM range(9)", "v1")
    for verb in ("delete", "update", "merge"):
        refused_here(engine.path("v1"), verb)
    said["delete, update and merge of format version 1"] = error("v1", "DELETE FROM {t} WHERE id = 1")
    key = {"key-id": "k", "encrypted-key-metadata": "aGk=", "encrypted-by-id": "m"}
    refused_here(
        changed(
            "e", lambda body: (body.update({"encryption-keys": [key]}), body["snapshots"][-1].update({"key-id": "k"}))
        ),
        "rewrite",
    )
    said["encrypted tables (`encryption-keys`, keys of manifests or files)"] = error("e", "SELECT * FROM {t}")

    default = {"type": "list", "element-id": 10, "element": "int", "element-required": False}
    last = {"initial-default": [1]}
    lists = changed("d", lambda body: (column(default)(body), body["schemas"][-1]["fields"][-1].update(last)))
    with pytest.raises(UnsupportedFeatureError, match="initial default of type list"):
        open_table(str(lists)).snapshot()
    engine.create("f", "id INT, f DOUBLE NOT NULL")
    said["rows under equality deletes by floats, lists or maps; initial defaults of lists and maps"] = " ".join(
        (error("d", "SELECT * FROM {t}"), error("f", "ALTER TABLE {t} SET IDENTIFIER FIELDS f"))
    )
    newer = IcebergEngine(iceberg_spark, Path(f"file:{tmp_path / 'newer'}"))  # it demands a scheme
    newer.sql("CREATE TABLE {t} (id INT) USING iceberg TBLPROPERTIES ('format-version' = '4')", "t")
    newer.sql("INSERT INTO {t} VALUES (1)", "t")
    ((listed,),) = newer.sql("SELECT manifest_list FROM {t}.snapshots", "t")
    assert re.fullmatch(r"file:/.*/snap-[^/]*[.]avro", listed), "the draft has root manifests, and relative paths"
    with pytest.raises(UnsupportedFeatureError, match="format version 4"):
        open_table(str(tmp_path / "newer" / "t" / "table")).snapshot()
    said["format version 4"] = ""

    jvm: Any = engine.session._jvm
    document = max(engine.path("a").glob("metadata/v*.metadata.json"))
    files = jvm.org.apache.iceberg.hadoop.HadoopFileIO(engine.session._jsc.hadoopConfiguration())
    fixed = jvm.org.apache.iceberg.BaseTable(jvm.org.apache.iceberg.StaticTableOperations(str(document), files), "t")
    refused_here(document, "rewrite")
    said["changes of a table that was named by a metadata file"] = said_by(
        lambda: fixed.updateProperties().set("a", "b").commit()
    )
    other = changed("o") / "metadata"
    max(other.glob("v*.metadata.json")).rename(other / "00003-11111111-2222-3333-4444-555555555555.metadata.json")
    for file in [*other.glob("v*")]:
        file.unlink()
    refused_here(other.parent, "rewrite")
    said["changes of the folder of a catalog other than Hadoop's"] = error("o", "SELECT * FROM {t}")
    shutil.copytree(tmp_path / "a", tmp_path / "c")
    refused_here(engine.path("c"), "rewrite")
    there = len([*engine.path("a").rglob("*.parquet")])
    engine.sql("INSERT INTO {t} VALUES (2, 'y')", "c")
    assert len([*engine.path("a").rglob("*.parquet")]) == there + 1
    said["changes of a table that was copied or moved"] = ""

    for kind in ("time", "timestamp_ns"):
        table = open_table(str(changed(kind, column(kind))))
        with pytest.raises(RefusedError, match=r"times of day|nanoseconds"):
            update(table, engine.session, {"v": "'y'"}, "n IS NULL")
    said["update and merge by times or nanoseconds: conditions on them, and new values other than null"] = " ".join(
        error(kind, "UPDATE {t} SET id = 2") for kind in ("time", "timestamp_ns")
    )
    engine.session.conf.set("spark.sql.geospatial.enabled", "true")
    errors = []
    for name, kind in (("reference", "geometry(EPSG:4269)"), ("edges", "geography(OGC:CRS84, karney)")):
        table = open_table(str(changed(name, column(kind))))
        with pytest.raises(RefusedError, match="column n, which holds shapes of a type that Spark lacks"):
            update(table, engine.session, {"v": "'y'"}, "ST_Srid(n) = 4269")
        errors.append(error(name, "UPDATE {t} SET v = 'y' WHERE ST_Srid(n) = 4269"))
    table = open_table(str(changed("off", column("geometry"))))
    engine.session.conf.set("spark.sql.geospatial.enabled", "false")
    with pytest.raises(RefusedError, match="column n, which holds shapes, which the session has turned off"):
        update(table, engine.session, {"v": "'y'"}, "ST_Srid(n) = 4269")
    errors.append(error("off", "UPDATE {t} SET v = 'y' WHERE ST_Srid(n) = 4269"))
    said["conditions on shapes, and new values other than null, of types that Spark or the session lacks"] = " ".join(
        errors
    )
    part = {"name": "z", "transform": "zorder", "source-id": 1, "field-id": 1000}
    strange = {"spec-id": 1, "fields": [part]}
    refused_here(
        changed("z", lambda body: (body["partition-specs"].append(strange), body.update({"default-spec-id": 1}))),
        "update",
    )
    said["update and merge if the newest partition specification has an unknown transform"] = error(
        "z", "UPDATE {t} SET v = 'y'"
    )
    inside = {"id": 10, "name": "u", "required": False, "type": "unknown"}
    refused_here(changed("s", column({"type": "struct", "fields": [inside]})), "rewrite")
    unknown = {"type": "list", "element-id": 10, "element-required": False, "element": "unknown"}
    refused_here(changed("l", column(unknown)), "rewrite")
    said["rewrites, update and merge of tables with lists, maps or structs that have nothing but an unknown type"] = (
        " ".join(error(name, "INSERT INTO {t} (id, v) VALUES (5, 'y')") for name in "sl")
    )

    orc, avro = (f"'write.format.default' = '{each}'" for each in ("orc", "avro"))
    engine.session.conf.set("spark.sql.geospatial.enabled", "true")
    errors = []
    point = "ST_GeomFromWKB(X'010100000000000000000000000000000000000040')"
    for name, kind, value, properties in (
        ("variant", "VARIANT", "parse_json('1')", orc),
        ("shape", "GEOMETRY(0)", point, orc),
        ("avro_shape", "GEOMETRY(0)", point, avro),
    ):
        engine.create(name, f"id INT, v {kind}", properties=properties)
        refused_here(engine.path(name), "rewrite")
        errors.append(error(name, f"INSERT INTO {{t}} SELECT 1, {value}"))
    said["new ORC and Avro files of tables with shapes, and new ORC files of tables with variants"] = " ".join(errors)
    errors = []
    for name, columns, more in (
        ("codec", "id INT, v INT", ", 'write.avro.compression-codec' = 'lz4'"),
        ("names", "`a.b` INT, `a_x2Eb` INT", ""),
    ):
        engine.create(name, columns, properties=avro + more)
        refused_here(engine.path(name), "rewrite")
        errors.append(error(name, "INSERT INTO {t} VALUES (1, 2)"))
    said[
        "new [Avro files](iceberg.md#avro) with other codecs than Iceberg's, or of columns whose names would be one"
    ] = " ".join(errors)
    engine.create("vec", "id INT", properties=f"{orc}, 'read.orc.vectorization.enabled' = 'true'")
    engine.sql("INSERT INTO {t} SELECT /*+ COALESCE(1) */ * FROM VALUES 1, 2, 3", "vec")
    engine.sql("DELETE FROM {t} WHERE id = 2", "vec")
    refused_here(engine.path("vec"), "rewrite")
    ids = [engine.sql("SELECT _row_id FROM {t} ORDER BY id", "vec")]
    engine.rewrite("vec")
    ids.append(engine.sql("SELECT _row_id FROM {t} ORDER BY id", "vec"))
    assert ids == [[(0,), (2,)], [(3,), (3,)]]
    said["new ORC files in format version 3 if `read.orc.vectorization.enabled` is true"] = ""

    said["files in another format than Parquet, ORC and Avro"] = said_by(
        lambda: jvm.org.apache.iceberg.FileFormat.fromString("vortex")
    )
    engine.create("g", "id INT", properties="'gc.enabled' = 'false'")
    engine.sql("INSERT INTO {t} VALUES (1)", "g")
    refused_here(engine.path("g"), "vacuum")
    until = "older_than => TIMESTAMP '2100-01-01 00:00:00'"
    said["vacuum if `gc.enabled` is false"] = error("g", f"CALL {{c}}.expire_snapshots(table => '{{n}}', {until})")
    inner = changed("i") / "data" / "inner"
    shutil.copytree(engine.path("a"), inner)
    for path in engine.path("i").rglob("*"):
        os.utime(path, (1e9, 1e9))
    waste = {str(path).removeprefix("file:") for (path,) in engine.orphans("i")}
    assert {str(path) for path in inner.rglob("*.*") if path.is_file() and path.name[0] != "."} <= waste
    with pytest.raises(RefusedError, match="data/inner holds a table of Iceberg"):
        open_table(str(engine.path("i"))).vacuum()
    said["vacuum if another table of any format is in `data/`, in `metadata/` or in the same folder"] = ""
    as_the_page_says("Iceberg", said)
    assert len(said) == 18


def set_options(path: Path, options: dict[str, str]) -> None:
    """The options of a table, which Paimon would not change."""
    file = max((path / "schema").glob("schema-*"))
    body = json.loads(file.read_text())
    file.write_text(json.dumps({**body, "options": {**body["options"], **options}}))


def row_ids_apart(manifest: list[Record]) -> list[Record]:
    """The row ids of a manifest's fragments as if they were in a file (fields 5 and 6 of DataFragment)."""
    apart = (6, message((1, b"data/ids"), (3, 6)))
    return [
        (number, message(*without(records(value), 5), apart) if number == 2 and isinstance(value, bytes) else value)
        for number, value in manifest
    ]


@pytest.mark.deep
def test_lance_refuses_what_is_refused_here(pylance: ModuleType, tmp_path: Path) -> None:
    path = tmp_path / "t"
    pylance.write_dataset(pa.table({"id": [1, 2, 3]}), path, enable_v2_manifest_paths=False)
    said = said_by(lambda: pylance.dataset(path).optimize.compact_files(compression="zstd"))
    writer = pylance.dataset(path)
    with pytest.raises(RefusedError, match="less than a minute ago"):
        open_table(str(path)).rename_manifests()
    open_table(str(path)).rename_manifests(now=time.time_ns() // 1_000_000 + 120_000)
    writer.delete("id = 1")
    apart = tmp_path / "apart"
    pylance.write_dataset(pa.table({"id": [1, 2, 3]}), apart, enable_stable_row_ids=True)
    patch(newest_manifest(apart), row_ids_apart)
    with pytest.raises(UnsupportedFeatureError, match="row ids or row versions in separate files"):
        open_table(str(apart)).vacuum()
    as_the_page_says(
        "Lance",
        {
            "vacuum of tables with row ids or row versions in separate files": said_by(lambda: pylance.dataset(apart)),
            "the policy's `compression`": said,
            "`rename-manifests` within a minute of a commit": said_by(lambda: pylance.dataset(path)),
        },
    )


@pytest.mark.deep
def test_paimon_refuses_what_is_refused_here(paimon_engine: PaimonEngine, tmp_path: Path) -> None:
    engine, path = paimon_engine, tmp_path / "t"
    columns = {"id": "INT NOT NULL", "v": "STRING"}
    with pytest.raises(EngineError) as caught:
        engine.create(path, columns, key=["id"], options={**DV, "changelog-producer": "full-compaction"})
    chain = {"bucket": "1", "sequence.field": "n", "partition.timestamp-pattern": "$pt"}
    chain |= {"partition.timestamp-formatter": "yyyyMMdd"}
    days = {"pt": "STRING NOT NULL", **columns, "n": "INT"}
    engine.create(tmp_path / "chain", days, key=["pt", "id"], partition=["pt"], options={**DV, **chain})
    chained = said_by(lambda: engine.alter(tmp_path / "chain", ("option", "chain-table.enabled", "true")))
    engine.create(path, columns, key=["id"], options={"write-only": "true"})
    for value in "ab":
        engine.append(path, [(1, value)])
    assert engine.rows(path) == [{"id": 1, "v": "b"}]
    assert sum(pq.read_metadata(file).num_rows for file in path.rglob("data-*.parquet")) == 2
    refused_here(path, "rewrite")
    with pytest.raises(RefusedError, match="merged on read"):
        our_rows(path)
    bucketed = tmp_path / "b"
    engine.create(bucketed, {"id": "INT", "v": "STRING"}, options={**DV, "bucket": "1", "bucket-key": "id"})
    engine.append(bucketed, [(each, "x") for each in range(10)])
    engine.delete(bucketed, lambda row: row["id"] == 1)
    planned = engine.stage_delete(bucketed, lambda row: row["id"] == 2)
    assert engine.compact(bucketed, options={"compaction.delete-ratio-threshold": "0"})
    planned()
    assert len(engine.rows(bucketed)) == 9, "8 would be right: no conflict was found"
    refused_here(bucketed, "rewrite")
    refused_here(bucketed, "delete")

    plain = tmp_path / "p"
    engine.create(plain, {"id": "INT", "v": "STRING"}, options=DV)
    engine.append(plain, [(each, "x") for each in range(10)])
    engine.delete(plain, lambda row: row["id"] < 3)
    set_options(plain, {"deletion-vectors.enabled": "false"})
    assert len(engine.rows(plain)) == 10, "7 would be right: its readers apply no deletion vectors"
    refused_here(plain, "delete")

    tracked = tmp_path / "r"
    engine.create(tracked, {"id": "INT", "v": "STRING"}, options=DV)
    engine.append(tracked, [(1, "x")])
    set_options(tracked, {"row-tracking.enabled": "true"})
    engine.append(tracked, [(2, "x")])
    refused_here(tracked, "rewrite")
    with pytest.raises(EngineError) as untracked:
        engine.compact(tracked, options={"compaction.min.file-num": "2"})

    files = tmp_path / "f"
    engine.create(files, {"id": "INT", "v": "STRING"}, options={"type": "format-table", "file.format": "parquet"})
    (files / "x.parquet").write_bytes(b"")
    with pytest.raises(RefusedError):
        open_table(str(files)).vacuum()
    assert engine.expire(files) == 0

    newer = tmp_path / "n"
    engine.create(newer, {"id": "INT", "v": "STRING"}, options=DV)
    engine.append(newer, [(1, "x")])
    listed = newer / "manifest" / "manifest-list-11111111-2222-3333-4444-555555555555-0"
    shutil.copy(next(newer.glob("manifest/manifest-list-*")), listed)
    newest = newer / "snapshot" / "snapshot-1"
    newest.write_text(json.dumps({**json.loads(newest.read_text()), "newerManifestList": listed.name}))
    with pytest.raises(UnsupportedFeatureError, match="has a field 'newerManifestList'"):
        open_table(str(newer)).vacuum()
    waste = engine.orphans(newer, time.time_ns() // 1_000_000 + 1)
    assert [Path(each).name for each in waste] == [listed.name], "the snapshot names it"

    changes = tmp_path / "c"
    most = {"snapshot.num-retained.min": "1", "snapshot.num-retained.max": "2", "changelog.num-retained.max": "9"}
    engine.create(changes, columns, key=["id"], options={"bucket": "1", "changelog-producer": "input", **most})
    for value in "ab":
        engine.append(changes, [(1, value)])
    there = changes / "changelog" / "changelog-1"
    there.parent.mkdir()
    own = json.loads((changes / "snapshot" / "snapshot-1").read_text())
    there.write_text(json.dumps({**own, "commitUser": "another"}))
    with pytest.raises(RefusedError, match="changelog-1 exists, and differs"):
        open_table(str(changes)).vacuum(VacuumRequest(now=time.time_ns() // 1_000_000 + 7 * 86_400_000))
    engine.append(changes, [(1, "c")])
    assert json.loads(there.read_text())["commitUser"] != "another"
    for name in "xy":
        engine.create(tmp_path / name, {"id": "INT"}, options={"data-file.path-directory": "../shared"})
        engine.append(tmp_path / name, [(1,)])
    with pytest.raises(RefusedError, match="points outside the table"):
        open_table(str(tmp_path / "x")).vacuum()
    theirs = {file.name for file in (tmp_path / "shared").rglob("data-*")}
    waste = {Path(each).name for each in engine.orphans(tmp_path / "x", time.time_ns() // 1_000_000 + 1)}
    assert len(theirs) == 2
    assert len(waste & theirs) == 1, "it is the other table's"
    errors = []
    for name, kind, codec in (
        ("a.b", "INT", "zstd"),
        ("v", "VARIANT", "zstd"),
        ("n", "TIMESTAMP(9)", "zstd"),
        ("b", "INT", "lz4"),
    ):
        avro = tmp_path / f"avro {name}"
        engine.create(avro, {"id": "INT", name: kind}, options=DV)
        set_options(avro, {"file.format": "avro", "file.compression": codec})
        refused_here(avro, "rewrite")
        with pytest.raises(EngineError) as unwritten:
            engine.append(avro, [(1, None)])
        errors.append(str(unwritten.value))
    unread = []
    for kind in ("lance", "vortex"):
        other = tmp_path / kind
        engine.create(other, {"id": "INT"}, options=DV)
        set_options(other, {"file.format": kind})
        refused_here(other, "rewrite")
        unread.append(said_by(partial(engine.append, other, [(1,)])))
    as_the_page_says(
        "Paimon",
        {
            "files in formats that Paimon reads with other jars only": " ".join(unread),
            "new [Avro files](paimon.md#avro) of variants, nanoseconds, names that Avro does not take, other codecs": (
                " ".join(errors)
            ),
            "rewrites of append tables in buckets": "",
            "delete without `deletion-vectors.enabled`, or in buckets": "",
            "rewrites of files from before row tracking": str(untracked.value),
            "vacuum of format tables": "",
            "vacuum of files with unknown fields or versions": "",
            "vacuum if a branch is a symbolic link, or `data-file.path-directory` leads out of the table": "",
            "vacuum if a changelog would replace another one": "",
            "primary-key tables with `changelog-producer` `full-compaction`": str(caught.value),
            "primary-key tables that merge on read, also postponed rows: reading and rewrites": "",
            "primary-key tables with `chain-table.enabled`": chained,
        },
    )
