"""Tables stay open between two looks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from dv_maintenance.service import entries, observe
from dv_maintenance.service.tables_file import TableSettings
from dv_maintenance.testing.delta_builder import DeltaBuilder


def test_a_table_whose_credentials_changed_is_opened_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    DeltaBuilder(str(tmp_path / "orders")).create(pa.schema([("id", pa.int64())]))
    opened: list[str] = []
    real = entries.open_table

    def open_table(path: str, kind: str | None, options: dict[str, str]) -> Any:
        opened.append(options["aws_session_token"])
        return real(path, kind)

    monkeypatch.setattr(entries, "open_table", open_table)
    observer = observe.Observer(data_versions=True)
    for token in ("first", "first", "second", "second"):
        observer.probe(TableSettings(path=str(tmp_path / "orders"), storage_options={"aws_session_token": token}), None)
    assert opened == ["first", "second"]
