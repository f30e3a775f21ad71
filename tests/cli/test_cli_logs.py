"""``dvm -v``: what is being done, on stderr, without secrets; quiet without it."""

from __future__ import annotations

import json
import logging
import re
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from dv_maintenance import cli
from dv_maintenance.cli import logs
from dv_maintenance.cli.output import Output
from dv_maintenance.storage import FileExistsAlreadyError, Storage
from dv_maintenance.testing.delta_builder import DeltaBuilder

CANARY = "CaNaRy5eCrEt"


@pytest.fixture
def table(tmp_path: Path) -> str:
    path = str(tmp_path / "orders")
    builder = DeltaBuilder(path).create(pa.schema([("id", pa.int64())]))
    builder.append(pa.table({"id": range(10)}))
    builder.delete(lambda rows: pc.less(rows["id"], 5))
    return path


def purge(table: str, capsys: pytest.CaptureFixture[str], *options: str) -> str:
    """What stderr shows; stdout has one document whatever is logged."""
    assert cli.main(["purge", table, "--engine", "local", "--json", *options]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["version_after"] == 3
    return err


def test_quiet_by_default(table: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert purge(table, capsys) == ""


def test_v_says_what_is_being_done_and_vv_in_detail(table: str, capsys: pytest.CaptureFixture[str]) -> None:
    said = purge(table, capsys, "-v")
    assert "1 step on version 2" in said
    assert "committed version 3" in said
    assert " DEBUG " not in said


def test_vv_has_the_plan_and_who_says_it(table: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert "DEBUG dv_maintenance.maintenance.planning.plan:" in purge(table, capsys, "-vv")


def test_a_lost_attempt_says_why(
    table: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    real, lost = Storage.create, []

    def create(storage: Storage, path: str, data: bytes, *, staging: str | None = None) -> None:
        if "_delta_log" in path and not lost:
            lost.append(path)
            raise FileExistsAlreadyError(path)
        real(storage, path, data, staging=staging)

    monkeypatch.setattr(Storage, "create", create)
    said = purge(table, capsys, "-v")
    assert "version 3 is taken, looking at what it changed" in said
    assert said.index("is taken") < said.index("committed version 3")


def test_a_vacuum_says_its_batches(table: str, capsys: pytest.CaptureFixture[str]) -> None:
    purge(table, capsys)
    assert cli.main(["vacuum", table, "--retention", "0h", "--allow-short-retention", "-v"]) == 0
    said = capsys.readouterr().err
    assert "looking for unneeded files" in said
    assert re.search(r"batch of \d+ files: \d+ deleted, 0 needed by now", said)


def test_no_secret_is_logged(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither storage options nor URLs leak secrets, no matter who wrote the line."""

    def failing(*_: object, **__: object) -> None:
        logging.getLogger("dv_maintenance.somewhere").warning("GET https://h/t?sig=%s with %s", CANARY, CANARY * 2)

    monkeypatch.setattr("dv_maintenance.tables.open_table", failing)
    cli.main(["health", "/nowhere", "-vv", "--storage-option", f"key={CANARY * 2}"])
    said = capsys.readouterr().err
    assert "GET https://h/t?***" in said
    assert CANARY not in said


def test_nothing_stays_behind(table: str, capsys: pytest.CaptureFixture[str]) -> None:
    package = logging.getLogger("dv_maintenance")
    before = list(package.handlers), package.level
    purge(table, capsys, "-v")
    assert (package.handlers, package.level) == before
    assert any(isinstance(handler, logging.NullHandler) for handler in package.handlers)


def test_ctrl_c_in_a_call_into_the_jvm_logs_no_traceback(caplog: pytest.LogCaptureFixture) -> None:
    with logs.logged(Output(sys.stdout, json=False), 0):
        logging.getLogger().error("KeyboardInterrupt while sending command.")
        logging.getLogger().error("something else")
    logging.getLogger().error("KeyboardInterrupt while sending command.")
    assert caplog.messages == ["something else", "KeyboardInterrupt while sending command."]
