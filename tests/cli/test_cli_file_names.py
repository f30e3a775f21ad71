"""Verbs on one table of a file of tables: ``dvm VERB TABLES.yaml NAME``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from support.spark_log import SparkLog

from dv_maintenance import cli
from dv_maintenance.cli import parser
from dv_maintenance.engine.local import LocalEngine
from dv_maintenance.tables import open_table
from dv_maintenance.testing.delta_builder import DeltaBuilder

SCHEMA = pa.schema([("id", pa.int64())])


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Its folder has ``shop/visits``; it lists ``shop/orders``, which keeps version 1."""
    for name in ("orders", "visits"):
        builder = DeltaBuilder(str(tmp_path / "lake" / name)).create(
            SCHEMA, properties={"delta.deletedFileRetentionDuration": "interval 0 seconds"}
        )
        builder.append(pa.table({"id": range(100)}, schema=SCHEMA))
        builder.delete(lambda rows: pc.less(rows["id"], 10))
    file = tmp_path / "tables.yaml"
    file.write_text(
        "tables:\n"
        "- {path: lake/orders, name: shop/orders, policy: {max_deleted_ratio: 0.5, protected_versions: [1]}, "
        "storage_options: {secret: hush-hush-hush}}\n"
        "folders:\n- {path: lake, name: shop}\n"
    )
    return file


def dvm(capsys: pytest.CaptureFixture[str], *words: Any, code: int = 0) -> str:
    assert cli.main([str(each) for each in words]) == code
    shown = capsys.readouterr()
    assert "hush-hush-hush" not in shown.out + shown.err
    return shown.out + shown.err


def shown(capsys: pytest.CaptureFixture[str], *words: Any) -> Any:
    return json.loads(dvm(capsys, *words, "--json"))


def test_a_table_has_its_settings(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert shown(capsys, "health", file, "shop/orders")["deleted_rows"] == 10
    assert shown(capsys, "health", file, "shop/visits")["deleted_rows"] == 10, "from a folder"
    assert shown(capsys, "apply", file, "shop/orders", "--dry-run")["steps"] == []
    less = ("--set", "max_deleted_ratio=0.01")
    assert len(shown(capsys, "apply", file, "shop/orders", *less, "--dry-run")["steps"]) == 1
    assert len(shown(capsys, "apply", file, "shop/visits", "--dry-run")["steps"]) == 1
    assert shown(capsys, "purge", "--engine", "local", file, "shop/orders")["verified"]
    # After an option, argparse takes a name for an argument too many.
    assert shown(capsys, "history", file, "--limit", "1", "shop/orders")["versions"][0]["version"] == 3
    assert parser.parse(["engine-sql", str(file), "shop/orders", "optimize"]).name == "shop/orders"


def test_the_engine_of_the_file(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def get_engine(*given: Any) -> LocalEngine:
        asked.append(given)
        return LocalEngine()

    monkeypatch.setattr("dv_maintenance.engine.get_engine", get_engine)
    file.write_text(file.read_text() + "spark: {engine: auto, master: 'local[1]', conf: {spark.driver.memory: 2g}}\n")
    for words in ([], ["--engine", "local"]):
        assert cli.main(["purge", str(file), "shop/orders", "--dry-run", *words]) == 0
    settings = ("local[1]", {"spark.driver.memory": "2g"})
    assert asked == [("auto", *settings), ("local", *settings)]
    assert cli.main(["purge", str(file.parent / "lake" / "orders"), "--dry-run"]) == 0
    assert asked[2:] == [("spark",)]


def test_the_reads_of_a_table_decide(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = SparkLog()
    for _ in range(300):
        log.time += 600_000
        log.read((file.parent / "lake" / "orders").as_uri())
    (file.parent / "events").mkdir()
    (file.parent / "events" / "app-1").write_bytes(log.bytes())
    file.write_text(
        file.read_text().replace("policy: {max_deleted_ratio: 0.5, ", "reads: {spark_events: events}, policy: {")
    )
    said = dvm(capsys, "apply", file, "shop/orders", "--dry-run")
    assert "Decided by 143.5 reads a day (spark event logs)" in said
    assert "event logs: the last event is of" in said


def test_a_vacuum_keeps_what_the_policy_keeps(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = file.parent / "lake" / "orders"
    for name in ("shop/orders", "shop/visits"):
        dvm(capsys, "purge", file, name, "--engine", "local")
    deleted = shown(capsys, "vacuum", file, "shop/orders", "--max-deleted-share", "1", "--dry-run")
    assert deleted["data_files"] == 0, "version 1 is protected"
    assert shown(capsys, "vacuum", file, "shop/orders", "--max-deleted-share", "1", "--lite")["data_files"] == 0
    assert open_table(str(place)).snapshot(1).files.num_rows == 1
    more = ("vacuum", file, "shop/visits", "--max-deleted-share", "1", "--protect-version", "1", "--dry-run")
    assert shown(capsys, *more)["data_files"] == 0
    assert shown(capsys, *more[:5])["data_files"] == 1


def test_folders_are_not_searched_for_a_listed_table(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_text(file.read_text().replace("{path: lake, name: shop}", "{path: missing}"))
    dvm(capsys, "fsck", file, "shop/orders")
    assert "the folder contains no table" in dvm(capsys, "fsck", file, "shop/visits", code=2)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["health", "FILE"], "this is a file of tables. Next: name one of them: dvm health FILE NAME"),
        (
            ["health", "FILE", "shop/order"],
            "'shop/order'. Next: choose one of its tables, such as shop/orders",
        ),
        (
            ["health", "lake", "shop/orders"],
            "1 unexpected argument: lake is not a file of tables",
        ),
        (["apply", "FILE", "shop/orders", "--policy", "p"], "the file has the policies and storage options"),
        (["purge", "FILE", "shop/orders", "--storage-option", "a=b"], "the file has the policies and storage options"),
        (["purge", "FILE", "shop/orders", "too", "many"], "2 unexpected argument(s)"),
    ],
)
def test_mistakes(file: Path, capsys: pytest.CaptureFixture[str], words: list[str], said: str) -> None:
    words = [each.replace("FILE", str(file)) for each in words]
    assert said.replace("FILE", str(file)) in dvm(capsys, *words, code=2)
