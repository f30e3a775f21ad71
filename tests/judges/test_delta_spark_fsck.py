"""What ``fsck`` says of a table, as real delta-spark sees it: it reads what is clean, and fails on what is damaged.

It is also the judge of the remedies.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support.sessions import cheap

from dv_maintenance.maintenance.fsck import fsck
from dv_maintenance.maintenance.recount import recount
from dv_maintenance.tables import open_table
from dv_maintenance.tables.capabilities import FileNumbers, RecountableTable
from dv_maintenance.tables.fsck import FsckTable
from dv_maintenance.tables.model import FileKey
from dv_maintenance.testing.backends import DeltaBackend
from dv_maintenance.testing.contract import TableContract

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def rows(spark: SparkSession, path: Path) -> int | None:
    """How many rows Spark reads; ``None`` if it fails."""
    try:
        # A column: the log alone knows the count.
        return len(cheap(spark).sql(f"SELECT id FROM delta.`{path}`").collect())
    except Exception:  # noqa: BLE001 - whatever it is, nobody gets rows
        return None


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Two partitions and 23 live rows, two deletion vectors in one file each."""
    place = tmp_path / "t"
    TableContract.begun(DeltaBackend(str(place)))
    return place


def test_delta_spark_agrees(delta_spark: SparkSession, path: Path) -> None:
    assert fsck(open_table(str(path)), deep=True).clean
    assert rows(delta_spark, path) == 23
    vectors = fsck_paths(path, "dv")[0]
    vectors.unlink()
    assert not fsck(open_table(str(path))).clean
    assert rows(delta_spark, path) is None


@pytest.mark.deep
def test_delta_spark_agrees_on_every_damage(delta_spark: SparkSession, path: Path) -> None:
    table = open_table(str(path))
    vectors, data = fsck_paths(path, "dv")[0], fsck_paths(path, "data")[0]
    whole, content = vectors.read_bytes(), data.read_bytes()
    damaged = {
        vectors: (whole[:10], whole[:12] + bytes([whole[12] ^ 1]) + whole[13:]),
        data: (None, content[:-8] + b"damaged!", content[:100]),
    }
    for file, contents in damaged.items():
        sound = file.read_bytes()
        for broken in contents:
            file.unlink()
            if broken is not None:
                file.write_bytes(broken)
            assert not fsck(table, deep=True).clean
            assert rows(delta_spark, path) is None
            file.write_bytes(sound)
    assert fsck(table, deep=True).clean
    assert rows(delta_spark, path) == 23


@pytest.mark.deep
def test_partitions_are_written_again_without_their_files(delta_spark: SparkSession, path: Path) -> None:
    """A remedy that ``fsck`` proposes."""
    for vectors in fsck_paths(path, "dv"):
        vectors.unlink()
    proposed = fsck(open_table(str(path))).remedies
    assert any("replaceWhere" in each.how for each in proposed)
    source = cheap(delta_spark).sql("SELECT id, 'a' AS p, 'again' AS v FROM range(5, 20)")
    source.write.format("delta").mode("overwrite").option("replaceWhere", "p = 'a'").save(str(path))
    assert len(fsck(open_table(str(path))).damage) == 1, "that of the other partition"
    source = cheap(delta_spark).sql("SELECT id, 'b' AS p, 'again' AS v FROM range(21, 29)")
    source.write.format("delta").mode("overwrite").option("replaceWhere", "p = 'b'").save(str(path))
    assert rows(delta_spark, path) == 23
    assert fsck(open_table(str(path)), deep=True).clean


def fsck_paths(path: Path, kind: str) -> list[Path]:
    """The files of this kind that readers need."""
    table = open_table(str(path))
    assert isinstance(table, FsckTable)
    needed = table.needed_files(table.snapshot()).to_pylist()
    return sorted(path / row["path"] for row in needed if row["kind"] == kind)


def test_delta_spark_counts_right_after_a_recount(delta_spark: SparkSession, path: Path) -> None:
    """It answers COUNT(*) from the statistics, and goes on with a file whose statistics were renewed."""

    def counted() -> int:
        return int(cheap(delta_spark).sql(f"SELECT count(*) FROM delta.`{path}`").first()[0])

    table = open_table(str(path))
    snapshot = table.snapshot()
    (row,) = snapshot.files.filter(snapshot.files["dv_id"].is_valid()).slice(0, 1).to_pylist()
    deleted = row["deleted_rows"]
    rows = {FileKey(row["path"], row["dv_id"]): FileNumbers(row["physical_rows"] - deleted, row["size"], deleted)}
    assert isinstance(table, RecountableTable)
    table.recount(snapshot, rows)  # as older versions of Trino did
    assert counted() != 23
    assert recount(table).wrong == 1
    assert counted() == 23
    cheap(delta_spark).sql(f"DELETE FROM delta.`{path}` WHERE id = 19")
    assert counted() == 22
    assert fsck(open_table(str(path)), deep=True).clean
