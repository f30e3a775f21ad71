"""What a table's log forbids is refused before a Spark session starts: no JVM for an answer that costs milliseconds."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType
from typing import NoReturn

import pyarrow as pa
import pytest
from support.raw_log import RawLog, metadata

from dv_maintenance.cli import main
from dv_maintenance.engine.spark import session as spark_session
from dv_maintenance.testing.backends import DeltaBackend, PaimonBackend
from dv_maintenance.testing.delta_builder import DeltaBuilder

SCHEMA = pa.schema([("id", pa.int64()), ("state", pa.string())])
NULLABLE = {"nullable": True, "metadata": {}}
STATEMENTS = {
    "delete": ("--where", "id = 1"),
    "keys": ("--keys", "{keys}", "--on", "id"),
    "update": ("--set", "state='x'", "--where", "id = 1"),
    "merge": ("--using", "{keys}", "--on", "target.id = source.id", "--when", "MATCHED THEN DELETE"),
}


@pytest.fixture(autouse=True)
def _no_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(*_: object) -> NoReturn:
        pytest.fail("Spark was started")

    monkeypatch.setattr(spark_session, "start_session", start)
    monkeypatch.setattr(spark_session, "active_session", lambda: None)


def refused(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    assert main([*argv, "--json"]) == 3
    return str(json.loads(capsys.readouterr().out)["message"])


@pytest.mark.parametrize("name", STATEMENTS)
def test_append_only(tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    place, keys = str(tmp_path / "t"), tmp_path / "keys.csv"
    keys.write_text("id\n1\n")
    builder = DeltaBuilder(place).create(SCHEMA, properties={"delta.appendOnly": "true"})
    builder.append(pa.table({"id": [1], "state": ["a"]}, schema=SCHEMA))
    verb = "delete" if name == "keys" else name
    assert "append-only" in refused(capsys, verb, place, *(word.format(keys=keys) for word in STATEMENTS[name]))


@pytest.mark.parametrize("name", ["update", "merge"])
def test_formats_that_only_delete(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], pylance: ModuleType, name: str
) -> None:
    keys, lance, paimon = tmp_path / "keys.csv", str(tmp_path / "l"), str(tmp_path / "p")
    keys.write_text("id\n1\n")
    pylance.write_dataset(pa.table({"id": [1], "state": ["a"]}), lance)
    made = PaimonBackend(paimon)
    made.create()
    made.append("a", [(1, "a", "x")])
    for place in (lance, paimon):
        refused(capsys, name, place, *(word.format(keys=keys) for word in STATEMENTS[name]))


def test_engine_sql(tmp_path: Path, capsys: pytest.CaptureFixture[str], pylance: ModuleType) -> None:
    lance, delta = str(tmp_path / "l"), str(tmp_path / "d")
    pylance.write_dataset(pa.table({"id": [1]}), lance)
    assert "maintenance by SQL is not supported" in refused(capsys, "engine-sql", lance, "purge")
    made = DeltaBackend(delta)
    made.create()
    (Path(delta) / "_delta_log" / f"{1:020}.json").write_text(
        json.dumps({"protocol": {"minReaderVersion": 9, "minWriterVersion": 9}})
    )
    assert "reader version 9" in refused(capsys, "engine-sql", delta, "purge")


@pytest.mark.parametrize("words", [("--where", "both.g IS NULL", "--set", "id=1"), ("--set", "both.g=NULL")])
def test_shapes_beside_nanoseconds(tmp_path: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...]) -> None:
    """Spark may have the shapes, but never the rest of the struct."""
    inside = {"g": "geometry(OGC:CRS84)", "at": "timestamp_nanos_ntz"}
    both = {"type": "struct", "fields": [{"name": name, "type": kind, **NULLABLE} for name, kind in inside.items()]}
    fields = [{"name": "id", "type": "long", **NULLABLE}, {"name": "both", "type": both, **NULLABLE}]
    features = ["deletionVectors", "geospatial", "timestampNanos"]
    versions = {"minReaderVersion": 3, "minWriterVersion": 7}
    RawLog(tmp_path).commit(
        0,
        {"protocol": {**versions, "readerFeatures": features, "writerFeatures": features}},
        metadata({"type": "struct", "fields": fields}, delta__enableDeletionVectors="true"),
    )
    assert "column both" in (said := refused(capsys, "update", str(tmp_path), *words))
    assert "shapes and nanoseconds" in said


@pytest.mark.parametrize("words", [("delete", "--where", " "), ("update", "--set", "state='x'", "--where", "")])
def test_an_empty_condition(tmp_path: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...]) -> None:
    place = str(tmp_path / "t")
    DeltaBuilder(place).create(SCHEMA).append(pa.table({"id": [1], "state": ["a"]}, schema=SCHEMA))
    assert main([words[0], place, *words[1:]]) == 2
    assert "the condition is empty. Next: give one in Spark SQL" in capsys.readouterr().err
