"""Parquet's modular encryption, as parquet-java writes it too: refused by name, not called damage."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from dv_maintenance.cli import main
from dv_maintenance.testing.delta_builder import DeltaBuilder

encryption = pytest.importorskip("pyarrow.parquet.encryption")

ROWS = pa.table({"id": [1, 2, 3, 4], "v": ["a", "b", "c", "d"]})
KEYS = {"foot": "0123456789012345", "col": "1234567890123450"}


class Kms(encryption.KmsClient):  # type: ignore[misc, name-defined]
    def __init__(self, config: Any) -> None:
        super().__init__()

    def wrap_key(self, key: bytes, master: str) -> bytes:
        return base64.b64encode(KEYS[master].encode() + key)

    def unwrap_key(self, wrapped: bytes, master: str) -> bytes:
        return base64.b64decode(wrapped)[16:]


def encrypt(file: Path, **settings: Any) -> None:
    factory = encryption.CryptoFactory(Kms)
    wanted = encryption.EncryptionConfiguration(footer_key="foot", **settings)
    properties = factory.file_encryption_properties(encryption.KmsConnectionConfig(), wanted)
    with pq.ParquetWriter(str(file), ROWS.schema, encryption_properties=properties) as writer:
        writer.write_table(ROWS)


SETTINGS: Mapping[str, Mapping[str, Any]] = {
    "encrypted footer": {"column_keys": {"col": ["v"]}, "plaintext_footer": False},
    "plain footer": {"column_keys": {"col": ["v"]}, "plaintext_footer": True},
    "one key for all": {"uniform_encryption": True},
}


@pytest.fixture(params=SETTINGS)
def table(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    place = tmp_path / "table"
    builder = DeltaBuilder(str(place)).create(ROWS.schema)
    builder.append(ROWS)
    builder.delete(lambda rows: pc.equal(rows["id"], 2))
    (file,) = place.glob("*.parquet")
    size = file.stat().st_size
    encrypt(file, **SETTINGS[request.param])
    for commit in (place / "_delta_log").glob("*.json"):
        commit.write_text(re.sub(rf'"size":{size}\b', f'"size":{file.stat().st_size}', commit.read_text()))
    return place


@pytest.mark.parametrize(
    "verb",
    [
        ["read", "{table}"],
        ["fsck", "{table}", "--deep"],
        ["purge", "{table}", "--engine", "local"],
        ["zorder", "{table}", "--engine", "local", "--columns", "id"],
        ["convert", "{files}"],
    ],
    ids=lambda verb: verb[0],
)
def test_what_needs_the_rows_is_refused_by_the_files_name(
    table: Path, verb: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (file,) = table.glob("*.parquet")
    files = tmp_path / "files"
    files.mkdir()
    (files / file.name).write_bytes(file.read_bytes())
    assert main([*(word.format(table=table, files=files) for word in verb), "--json"]) == 3
    said = json.loads(capsys.readouterr().out)
    assert said["error"] == "RefusedError"
    assert "encrypted" in said["message"]
    assert file.name in said["message"]
    assert "remove" not in said["next_step"]
    assert not list(files.glob("_delta_log/*.json"))


@pytest.mark.parametrize("verb", ["health", "fsck", "vacuum", "history", "plan"])
def test_what_needs_only_the_log_goes_on(table: Path, verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([verb, str(table)]) == 0, capsys.readouterr().err
