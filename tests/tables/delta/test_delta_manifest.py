"""Symlink manifests: what they list, what they refuse, and that delta-spark writes the same."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import UUID

import pytest
from support.raw_log import NOW, LogWriter, add, encoded, remove

from dv_maintenance.errors import RefusedError, UnsupportedFeatureError
from dv_maintenance.storage import Storage
from dv_maintenance.tables import open_table
from dv_maintenance.tables.delta.load import load_snapshot
from dv_maintenance.tables.delta.verbs.manifest import _decoded, write_manifests
from dv_maintenance.tables.model import hive_folder
from dv_maintenance.tables.reports import ManifestReport
from dv_maintenance.testing.faults import Fault, Kill, Killed, Recorder
from dv_maintenance.testing.faulty_access import injected

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = "_symlink_format_manifest"
VALUES = ["plain", "a b", "x/y=z%", "é", "q?*'\"#:[]{}^\\", "tab\tline\nend", "2026-01-01 10:00:00", None, ""]


def write(table: LogWriter) -> ManifestReport:
    return write_manifests(table.storage, load_snapshot(table.storage))


def manifests(path: Path) -> dict[str, list[str]]:
    """Lines of every manifest below a table, sorted, by its path."""
    found = sorted((path / ROOT).rglob("manifest"))
    return {file.relative_to(path).as_posix(): sorted(file.read_text().splitlines()) for file in found}


def test_an_unpartitioned_table_has_one_manifest(tmp_path: Path) -> None:
    table = LogWriter(tmp_path / "a table", at=NOW)
    assert write(table) == ManifestReport(0, (f"{ROOT}/manifest",), 0)
    assert (table.path / ROOT / "manifest").read_bytes() == b"", "an empty table has an empty manifest"

    elsewhere = "s3a://bucket/a%20b/c.parquet"
    names = ["b.parquet", encoded("x y.parquet"), table.storage.uri_of("z%.parquet"), elsewhere]
    table.append(*map(add, names), at=NOW)
    result = write(table)
    assert (result.version, result.files) == (1, 4)
    root = f"file:{table.path}"
    expected = [f"{root}/b.parquet", f"{root}/x y.parquet", f"{root}/z%.parquet", "s3://bucket/a b/c.parquet"]
    assert manifests(table.path) == {f"{ROOT}/manifest": sorted(expected)}
    assert (table.path / ROOT / "manifest").read_bytes().endswith(b"\n")


@pytest.mark.parametrize("linked", [ROOT, f"{ROOT}/p=1"])
def test_no_manifest_is_written_or_deleted_through_a_link(tmp_path: Path, linked: str) -> None:
    table = LogWriter(tmp_path / "t", partitions=("p",), at=NOW)
    table.append(*(add(table.data(NOW), partitionValues={"p": p}) for p in "01"), at=NOW)
    outside = tmp_path / "of another table"
    (outside / "p=2").mkdir(parents=True)
    for name in ("manifest", ".manifest.crc", "p=2/manifest"):
        (outside / name).write_text("precious")
    (table.path / linked).parent.mkdir(exist_ok=True)
    (table.path / linked).symlink_to(outside)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(RefusedError, match="which is a link"):
        write(table)
    assert sorted(tmp_path.rglob("*")) == before
    assert {(outside / name).read_text() for name in ("manifest", ".manifest.crc", "p=2/manifest")} == {"precious"}


def test_a_partitioned_table_has_one_for_each_partition_and_none_for_others(tmp_path: Path) -> None:
    table = LogWriter(tmp_path / "t", partitions=("p", "path"), at=NOW)
    partitions: list[dict[str, str | None]] = [
        {"p": "1", "path": "x"},
        {"p": "1", "path": "y"},
        {"p": "2", "path": None},
        {"p": "2", "path": ""},
    ]
    names = [table.data(NOW) for _ in partitions]
    table.append(*[add(name, partitionValues=values) for name, values in zip(names, partitions, strict=True)], at=NOW)
    result = write(table)
    lines = [f"file:{table.path}/{name}" for name in names]
    null = f"{ROOT}/p=2/path=__HIVE_DEFAULT_PARTITION__/manifest"
    assert manifests(table.path) == {
        f"{ROOT}/p=1/path=x/manifest": lines[:1],
        f"{ROOT}/p=1/path=y/manifest": lines[1:2],
        null: sorted(lines[2:]),
    }
    assert (sorted(result.manifests), result.files, result.removed) == (sorted(manifests(table.path)), 4, ())

    # A manifest of a former layout, one of a partition that is gone, and a file that is none of ours.
    (table.path / ROOT / "manifest").write_text("stale")
    note = table.path / ROOT / "p=1/note"
    note.write_text("mine")
    table.append(*[remove(name, at=NOW) for name in names[1:]], at=NOW)
    result = write(table)
    assert result.removed == (f"{ROOT}/manifest", f"{ROOT}/p=1/path=y/manifest", null)
    assert list(manifests(table.path)) == [f"{ROOT}/p=1/path=x/manifest"]
    assert not (table.path / ROOT / "p=2").exists(), "an empty folder would be a partition to Hive"
    assert note.exists()
    note.unlink()

    table.append(remove(names[0], at=NOW), at=NOW)
    assert write(table).manifests == ()
    assert (table.path / ROOT).is_dir(), "readers' tables point here"


def test_checksums_of_hadoop_go_with_what_they_belie(tmp_path: Path) -> None:
    table = LogWriter(tmp_path / "t", at=NOW)
    checksum = table.path / ROOT / ".manifest.crc"
    table.touch(f"{ROOT}/.manifest.crc", NOW)
    write(table)
    assert not checksum.exists()


def test_what_killed_writers_left_goes_too(tmp_path: Path) -> None:
    """Engines read every file of the folder whose name doesn't begin with a dot or an underscore."""
    table = LogWriter(tmp_path, at=NOW)
    names = ("manifest#1", f".manifest.{UUID(int=7)}.tmp")
    for name in names:
        table.touch(f"{ROOT}/{name}", NOW)
    write(table)
    assert [path.name for path in (tmp_path / ROOT).iterdir()] == ["manifest"]


def test_no_reader_sees_half_a_manifest(tmp_path: Path) -> None:
    table = LogWriter(tmp_path, at=NOW)
    table.append(add("a.parquet"), at=NOW)
    recorder = Recorder()
    with injected(recorder):
        storage = Storage(str(tmp_path))
        write_manifests(storage, load_snapshot(storage))
    half = next(call for call in recorder.calls if Fault.FULL_HALFWAY in call.possible)
    shutil.rmtree(tmp_path / ROOT)
    with injected(Kill(half.number, "halfway")), pytest.raises(Killed):
        storage = Storage(str(tmp_path))
        write_manifests(storage, load_snapshot(storage))
    assert list((tmp_path / ROOT).iterdir())
    assert not [path.name for path in (tmp_path / ROOT).iterdir() if not path.name.startswith((".", "_"))]


def test_in_object_storage_lines_are_uris_of_it() -> None:
    assert _decoded(Storage("s3a://bucket/a b/t").uri) == "s3://bucket/a b/t"
    assert _decoded(Storage("abfss://c@a.dfs.core.windows.net/t").uri) == "abfss://c@a.dfs.core.windows.net/t"


def test_tables_with_dvs_are_refused_and_nothing_is_written(tmp_path: Path) -> None:
    table = LogWriter(tmp_path / "t", at=NOW)
    path, dv = table.data(NOW), table.dv(NOW)
    table.append(add(path, dv), add(table.data(NOW)), at=NOW)
    with pytest.raises(RefusedError, match="1 of 2 files have deletion vectors") as error:
        write(table)
    assert "purge first" in str(error.value.next_step)
    assert not (table.path / ROOT).exists()
    table.append(remove(path, dv, at=NOW), add(path), at=NOW)
    assert write(table).files == 2


def test_column_mapping_is_refused(golden: Path) -> None:
    table = open_table(str(golden / "delta/dat-column_mapping"))
    with pytest.raises(UnsupportedFeatureError, match="column mapping"):
        table.write_manifests(table.snapshot())


def test_a_name_with_a_line_break_is_refused(tmp_path: Path) -> None:
    table = LogWriter(tmp_path / "t", at=NOW)
    table.append(add("a%0Ab.parquet"), at=NOW)
    with pytest.raises(RefusedError, match="line break"):
        write(table)
    assert not (table.path / ROOT).exists()


def test_hive_folders() -> None:
    assert hive_folder({"a": "1", "b c": None}) == "a=1/b c=__HIVE_DEFAULT_PARTITION__"
    assert hive_folder({"é=": "x/y"}) == "é%3D=x%2Fy"


@pytest.mark.parametrize("columns", [pytest.param((), marks=pytest.mark.deep), ("p",), ("q", "day")])
def test_delta_spark_writes_the_same(delta_spark: SparkSession, tmp_path: Path, columns: tuple[str, ...]) -> None:
    rows = [(number, value, f"{number % 2}") for number, value in enumerate(VALUES)]
    frame = delta_spark.createDataFrame(rows, "id int, p string, q string")
    frame = frame.selectExpr("*", "date_add(DATE '2026-01-01', id % 2) AS day", "id % 2 = 0 AS odd").coalesce(1)
    path = tmp_path / "a table"
    writer = frame.write.format("delta").option("delta.enableDeletionVectors", "false")
    writer.partitionBy(*columns).save(str(path))
    delta_spark.sql(f"GENERATE symlink_format_manifest FOR TABLE delta.`{path}`")
    theirs = manifests(path)
    assert len(theirs) == {(): 1, ("p",): 8, ("q", "day"): 2}[columns]

    table = open_table(str(path))
    result = table.write_manifests(table.snapshot())
    assert manifests(path) == theirs
    assert (list(result.manifests), result.removed) == (sorted(theirs), ())
    # Hadoop verifies checksums where there are any: a stale one would fail this.
    lines = delta_spark.read.text([str(path / name) for name in theirs]).count()
    assert lines == result.files
