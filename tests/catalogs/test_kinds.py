"""Kinds of catalogs: those of this package, and of others by entry points."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import pyarrow as pa
import pytest
from pydantic import Field

from dv_maintenance.catalogs import configured
from dv_maintenance.catalogs.kinds import CatalogSettings, _elsewhere
from dv_maintenance.errors import RefusedError, UsageError
from dv_maintenance.storage import Storage
from dv_maintenance.tables import open_table
from dv_maintenance.tables.registry import Location, NamedTable
from dv_maintenance.testing.delta_builder import DeltaBuilder


class Settings(CatalogSettings):
    type: Literal["shelf"]
    folder: str
    secret: str | None = Field(default=None, repr=False)


def located(name: str, settings: Settings, options: Mapping[str, str]) -> tuple[str, Location]:
    place = f"{settings.folder}/{name.partition('.')[2]}"
    return "delta", Location(Storage(place, options), NamedTable(name))


@pytest.fixture
def shelf(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    module = SimpleNamespace(Settings=Settings, located=located)
    entry = SimpleNamespace(name="shelf", load=lambda: module)
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: [entry] if group.endswith("catalogs") else [])
    monkeypatch.setenv("DVM_CATALOGS", str(tmp_path / "catalogs.yaml"))
    _elsewhere.cache_clear()
    yield tmp_path
    _elsewhere.cache_clear()


def test_another_package_adds_a_kind(shelf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HUSH", "hush-hush")
    (shelf / "catalogs.yaml").write_text(
        f"catalogs:\n  home: {{type: shelf, folder: '{shelf}', secret: '${{HUSH}}'}}\n"
    )
    builder = DeltaBuilder(str(shelf / "orders")).create(pa.schema([("id", pa.int64())]))
    builder.append(pa.table({"id": [1, 2]}))
    assert open_table("home.orders").snapshot().version == 1
    assert "hush-hush" not in repr(configured())
    assert configured()["home"].model_dump()["secret"] == "hush-hush"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "type: nosuch",
            r"catalogs\.home\.type: unknown type of catalog .nosuch.: use one of unity, .*line 3",
        ),
        ("url: x", r"catalogs\.home\.type: .* line 2"),
        ("type: shelf\n    folder: x\n    colour: red", r"catalogs\.home\.colour: unknown key .*line 5"),
        ("- 3", r"catalogs\.home: must hold keys and values.*line 2"),
    ],
)
def test_what_is_wrong_has_its_key_and_line(shelf: Path, text: str, said: str) -> None:
    (shelf / "catalogs.yaml").write_text(f"catalogs:\n  home:\n    {text}\n")
    with pytest.raises(UsageError, match=said):
        configured()


@pytest.mark.parametrize("write", ["put", "create", "delete", "check_creatable", "open_output"])
def test_nothing_is_written_where_the_catalog_makes_the_versions(tmp_path: Path, write: str) -> None:
    (tmp_path / "kept").write_bytes(b"1")
    storage = Storage(str(tmp_path), {"catalog.commits": "home"})
    arguments: dict[str, tuple[Any, ...]] = {"put": ("f", b""), "create": ("f", b""), "delete": (["kept"],)}
    for each in (storage, storage.rehearsed()):
        with pytest.raises(RefusedError, match="home makes the versions of this table itself"):
            getattr(each, write)(*arguments.get(write, ("f",)))
    assert [each.name for each in tmp_path.iterdir()] == ["kept"]
    assert storage.get("kept") == b"1"
