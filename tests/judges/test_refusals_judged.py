"""What the page says of refusals: delta-spark refuses these tables, too, with the error that the page names."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support.pages import matrix
from support.sessions import cheap

from dv_maintenance.errors import UnsupportedFeatureError
from dv_maintenance.tables import open_table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Without these a protocol contradicts itself.
NEEDS = {"catalogManaged": ["inCommitTimestamp", "vacuumProtocolCheck"]}
WRITERS = {"collations", "inCommitTimestamp", "redirectWriterOnly", "redirectWriterOnly-preview"}


def errors_of(cell: str) -> list[str]:
    """The conditions of delta-spark that a cell names."""
    return re.findall(r"`(DELTA_[A-Z_.]+)`", cell)


def refusal(spark: SparkSession, statement: str) -> str:
    """The error of a statement."""
    with pytest.raises(Exception, match="") as caught:
        spark.sql(statement).collect()
    return str(caught.value)


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
