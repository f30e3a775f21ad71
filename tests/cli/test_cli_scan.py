"""``dvm scan``: one document or a table of tables; unreadable tables change the exit code, not the rest."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from dv_maintenance import cli
from dv_maintenance.cli import parser
from dv_maintenance.maintenance.meter.prices import Prices
from dv_maintenance.service.lake import ORDERS
from dv_maintenance.testing.delta_builder import DeltaBuilder

SCHEMA = pa.schema([("id", pa.int64())])


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    for name, deleted in (("orders", 10), ("visits", 40)):
        builder = DeltaBuilder(str(tmp_path / "lake" / name)).create(SCHEMA)
        builder.append(pa.table({"id": range(100)}, schema=SCHEMA))
        builder.delete(lambda rows, deleted=deleted: pc.less(rows["id"], deleted))
    return tmp_path / "lake"


def test_worst_first(lake: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["scan", str(lake), "--limit", "1"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("2 tables: 2 have deletion vectors, 2 have work due")
    assert "visits" in out
    assert "40.00%" in out
    assert "orders" not in out
    assert "1 more table not shown" in out


def test_one_document(lake: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["scan", str(lake), "--json", "--sort", "name"]) == 0
    body = json.loads(capsys.readouterr().out)
    assert [each["name"] for each in body["tables"]] == ["orders", "visits"]
    assert body["totals"]["deleted_rows"] == 50
    assert body["tables"][0]["oldest_dv"].endswith("Z")
    assert body["tables"][0]["reasons"]["optimize"]


def test_a_table_that_cannot_be_read(lake: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (lake / "orders" / "_delta_log" / "00000000000000000001.json").write_text("nonsense\n")
    assert cli.main(["scan", str(lake)]) == 1
    out = capsys.readouterr().out
    assert "1 can't be read" in out
    assert "ERROR" in out
    assert "visits" in out


def test_a_file_of_tables(lake: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = lake / "tables.yaml"
    file.write_text("tables:\n  - {path: visits, policy: {max_deleted_ratio: 0.9}}\n  - {path: missing}\n")
    assert cli.main(["scan", str(file), "--json"]) == 1
    missing, visits = json.loads(capsys.readouterr().out)["tables"]
    assert (missing["name"], visits["name"], visits["due"]) == ("missing", "visits", [])
    assert missing["error"]
    assert cli.main(["scan", str(file), "--set", "max_deleted_ratio=0.1"]) == 2


@pytest.mark.parametrize("argv", [["{}/none"], ["{}", "--sort", "colour"], ["{}", "--format", "lance"]])
def test_usage(argv: list[str], lake: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["scan", *(each.format(lake) for each in argv)]) == 2
    assert "Traceback" not in capsys.readouterr().err


def test_the_parser_knows_the_orders() -> None:
    assert parser._ORDERS == ORDERS


def test_metrics_are_written_where_that_is_asked_for(lake: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["scan", str(lake), "--json", "--metrics", str(lake / "dvm.prom")]) == 0
    assert json.loads(capsys.readouterr().out)["totals"]["tables"] == 2
    assert 'dvm_deleted_rows{table="visits",format="delta"} 40' in (lake / "dvm.prom").read_text()


def test_a_run_says_what_it_cost(lake: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["purge", str(lake / "orders"), "--engine", "local", "--json"]) == 0
    cost = json.loads(capsys.readouterr().out)["cost"]
    assert cost["bytes_read"] > 0
    assert cost["bytes_written"] > 0
    assert cost["work_seconds"] >= 0
    prices = Prices()
    expected = prices.decoding(cost["bytes_read"]) + prices.encoding(cost["bytes_written"])
    assert cost["priced_seconds"] == round(expected, 2)
    assert cli.main(["purge", str(lake / "visits"), "--engine", "local"]) == 0
    assert "cost: " in capsys.readouterr().out
