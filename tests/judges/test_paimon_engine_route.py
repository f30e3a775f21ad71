"""Paimon's own engine carries out what the engine route asks of Spark, and writes every format and merge engine: what
our reader makes of it is what Paimon itself reads. The SQL is not Spark's here, as there is no connector for it.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from datetime import UTC, date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from support.paimon_engine import plain_rows

from dv_maintenance.errors import RefusedError
from dv_maintenance.maintenance.engine_sql import engine_sql
from dv_maintenance.maintenance.read import read
from dv_maintenance.tables import open_table

pytestmark = pytest.mark.deep

DV = {"deletion-vectors.enabled": "true"}
WHEN = datetime(2026, 3, 29, 1, 30, 5, 123456, tzinfo=UTC)


def row_type(first: int) -> dict[str, Any]:
    """Ids of fields are those of one table."""
    fields = [("x", "INT"), ("y", "STRING")]
    return {
        "type": "ROW",
        "fields": [{"id": first + at, "name": name, "type": type_} for at, (name, type_) in enumerate(fields)],
    }


VALUES: list[tuple[Any, list[Any]]] = [
    ("BOOLEAN", [True, False]),
    ("TINYINT", [-128, 127]),
    ("SMALLINT", [-32768]),
    ("INT", [-(2**31)]),
    ("BIGINT", [-(2**63), 2**63 - 1]),
    ("FLOAT", [0.5, float("-inf")]),
    ("DOUBLE", [0.1, 5e-324]),
    ("DECIMAL(9, 2)", [Decimal("-1234567.89")]),
    ("DECIMAL(38, 10)", [Decimal("-9999999999999999999999999999.9999999999")]),
    ("CHAR(3)", ["é€x"]),
    ("VARCHAR(20)", ["", "a b"]),
    ("STRING", ["long " * 30]),
    ("BINARY(2)", [b"\0\xff"]),
    ("BYTES", [b"", bytes(range(256))]),
    ("DATE", [date(1, 1, 1), date(1969, 12, 31), date(9999, 12, 31)]),
    ("TIME(3)", [time(23, 59, 59, 999000)]),
    ("TIMESTAMP(3)", [WHEN.replace(microsecond=123000), datetime(1969, 12, 31, 23, 59, 59, 999000, tzinfo=UTC)]),
    ("TIMESTAMP(6)", [WHEN, datetime(1700, 1, 1, 0, 0, 0, 1, tzinfo=UTC)]),
    ("TIMESTAMP(6) WITH LOCAL TIME ZONE", [WHEN, datetime(1900, 1, 1, 0, 0, 0, 1, tzinfo=UTC)]),
    ({"type": "ARRAY", "element": "TIMESTAMP(6)"}, [[WHEN, None], []]),
    ({"type": "ARRAY", "element": row_type(90)}, [[[1, "y"], None]]),
    ({"type": "MAP", "key": "STRING NOT NULL", "value": "DECIMAL(4, 1)"}, [[["k", Decimal("1.5")]]]),
    ({"type": "MAP", "key": "INT NOT NULL", "value": "STRING"}, [[[1, "a"], [2, None]]]),
    ({"type": "MULTISET", "element": "STRING NOT NULL"}, [[["a", 2]]]),
    (row_type(92), [[1, "y"], [None, None]]),
]
MERGED: list[tuple[str, dict[str, str]]] = [
    ("deduplicate", {}),
    ("deduplicate", {"file.format": "orc", "deletion-vectors.bitmap64": "true"}),
    ("deduplicate", {"file.format": "avro", "data-file.thin-mode": "true"}),
    ("deduplicate", {"sequence.field": "n"}),
    ("partial-update", {"partial-update.remove-record-on-delete": "true"}),
    ("aggregation", {"fields.n.aggregate-function": "sum"}),
    ("first-row", {"changelog-producer": "lookup", "deletion-vectors.enabled": "false"}),
    ("deduplicate", {"deletion-vectors.enabled": "false"}),
]


def same_rows(engine: Any, path: Path, version: int | None = None) -> None:
    schema, batches = read(open_table(str(path)), version)
    ours = plain_rows(pa.Table.from_batches(list(batches), schema))
    assert sorted(map(repr, ours)) == sorted(map(repr, engine.rows(path, version)))


@pytest.mark.parametrize("kind", ["orc", "avro"])
def test_every_type(paimon_engine: Any, tmp_path: Path, kind: str) -> None:
    exact = {"orc.timestamp-ltz.legacy.type": "false"}
    columns = {"id": "INT", **{f"c{at}": type_ for at, (type_, _) in enumerate(VALUES)}}
    path = tmp_path / "table"
    paimon_engine.create(path, columns, options={**DV, **exact, "file.format": kind})
    rows = [[at, *(values[at % len(values)] for _, values in VALUES)] for at in range(6)]
    paimon_engine.append(path, [*rows, [6, *(None for _ in VALUES)]])
    paimon_engine.delete(path, lambda row: row["id"] == 4)
    same_rows(paimon_engine, path)


def test_shifted_timestamps_are_refused(paimon_engine: Any, tmp_path: Path) -> None:
    path = tmp_path / "table"
    columns = {"id": "INT", "t": "TIMESTAMP(6) WITH LOCAL TIME ZONE"}
    paimon_engine.create(path, columns, options={"file.format": "orc"})
    paimon_engine.append(path, [[1, WHEN]])
    with pytest.raises(RefusedError, match="local time zone"):
        same_rows(paimon_engine, path)


class Session:
    """Paimon's own engine for Spark: CALL compacts, expires and cleans, a query of rows depends on all of them."""

    def __init__(self, engine: Any, path: Path) -> None:
        self.engine, self.path, self.query = engine, path, ""
        self.conf = {
            "spark.sql.extensions": "org.apache.paimon.spark.extensions.PaimonSparkSessionExtensions",
            "spark.sql.catalog.lake": "org.apache.paimon.spark.SparkCatalog",
            "spark.sql.catalog.lake.warehouse": str(path.parent.parent),
        }

    def sql(self, query: str, /) -> Session:
        self.query = query
        return self

    def collect(self) -> list[Any]:
        last = self.query.rsplit(" ", 1)[1]
        if "$snapshots" in self.query:
            body = json.loads((self.path / "snapshot" / f"snapshot-{last}").read_bytes())
            return [(body["commitUser"], body["commitIdentifier"])]
        if self.query.startswith("SELECT"):
            rows = sorted(map(repr, self.engine.rows(self.path, int(last))))
            return [(len(rows), hash(tuple(rows)))]
        procedures: dict[str, Callable[[], Any]] = {
            "compact": lambda: self.engine.compact(self.path, full="full" in self.query),
            "expire_snapshots": lambda: self.engine.expire(self.path),
            "remove_orphan_files": lambda: self.engine.orphans(self.path, 0, dry_run=False),
        }
        procedures[self.query.split(".sys.")[1].split("(")[0]]()
        return []


@pytest.mark.parametrize(("merging", "options"), MERGED, ids=[f"{one}-{len(more)}" for one, more in MERGED])
def test_primary_keys(paimon_engine: Any, tmp_path: Path, merging: str, options: dict[str, str]) -> None:
    engine, path, draw = paimon_engine, tmp_path / "lake" / "db.db" / "table", random.Random(merging)
    own = {"bucket": "2", "merge-engine": merging, **DV, **options}
    columns = {"id": "INT NOT NULL", "v": "STRING", "n": "INT"}
    engine.create(path, columns, key=["id"], options=own)
    merged = options.get("deletion-vectors.enabled") == "false" and merging != "first-row"
    for job in ("purge", "optimize", "purge"):
        for step in range(3):
            ids = [draw.randrange(60) for _ in range(25)]
            takes = merging not in {"first-row", "aggregation"}
            kinds = ["-D" if takes and draw.random() < 0.2 else "+I" for _ in ids]
            rows = [(id_, f"v{step}-{id_}", draw.randrange(100)) for id_ in ids]
            engine.append(path, rows, kinds=kinds, options={"write-only": "true"})
        report = engine_sql(open_table(str(path)), Session(engine, path), job)
        assert report.verified, report.problems
        assert report.by == ("engine" if merged else "keys") or not report.checked
        if not merged:
            assert report.checked
            for version in range(1, engine.version(path) + 1):
                same_rows(engine, path, version)
    report = engine_sql(open_table(str(path)), Session(engine, path), "vacuum")
    assert (report.verified, report.by) == (True, "files")
    assert engine.rows(path)
