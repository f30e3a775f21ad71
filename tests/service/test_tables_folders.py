"""Folders full of tables: what is found, what it is called, and what wins."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow as pa
import pytest

from dv_maintenance.errors import UsageError
from dv_maintenance.service.tables_file import WatchConfig
from dv_maintenance.storage import Storage
from dv_maintenance.tables import find


def put_tables(root: str, *paths: str, options: dict[str, str] | None = None) -> None:
    storage = Storage(root, options)
    for path in paths:
        storage.put(f"{path}/_delta_log/{0:020}.json".lstrip("/"), b"{}")
    storage.put("plain/folder/data.parquet", b"")


def load(tmp_path: Path, text: str) -> dict[str, str]:
    """Paths below the folder by name."""
    (tmp_path / "tables.yaml").write_text(text)
    return {table.name: table.path for table in WatchConfig.load(str(tmp_path / "tables.yaml")).tables}


def test_every_table_below(tmp_path: Path) -> None:
    put_tables(
        str(tmp_path / "lake"), "a", "deep/er/b", "a/inside", "_hidden/c", ".hidden/d", "day=1/e", "with space/f"
    )
    (tmp_path / "lake" / "link").symlink_to(tmp_path / "lake" / "a")
    found = load(tmp_path, "folders: [{path: lake}]")
    assert found == {name: str(tmp_path / "lake" / name) for name in ("a", "deep/er/b", "with space/f")}


def test_in_object_storage(s3: tuple[str, dict[str, str]]) -> None:
    uri, options = s3
    put_tables(f"{uri}/found", "a", "deep/b", "a/inside", options=options)
    storage = Storage(f"{uri}/found", options)
    storage.put("docs.lance/_versions/1.manifest", b"{}")
    storage.put("shop.db/new/schema/schema-0", b"{}")
    storage.put("shop.db/new/branch/branch-b/schema/schema-0", b"{}")
    storage.put("shop.db/none/schema/orders.json", b"{}")
    found = find.find_tables(storage.uri, options)
    assert [(each.path, each.format) for each in found] == [
        ("a", "delta"),
        ("deep/b", "delta"),
        ("docs.lance", "lance"),
        ("shop.db/new", "paimon"),
    ]
    assert find.find_tables(f"{uri}/fou", options) == []


@pytest.fixture
def mixed(tmp_path: Path, pylance: ModuleType) -> Path:
    """A folder of a Delta table ``a`` and a Lance table ``docs`` that has a branch."""
    put_tables(str(tmp_path / "lake"), "a")
    docs = pylance.write_dataset(pa.table({"id": [1]}), str(tmp_path / "lake" / "docs"))
    docs.create_branch("try")
    return tmp_path


def test_tables_of_every_format(mixed: Path, golden: Path) -> None:
    """With its format, so that it need not be detected again; a branch is not a separate table."""
    assert (mixed / "lake/docs/tree/try/_versions").is_dir()
    (mixed / "tables.yaml").write_text("folders: [{path: lake, jobs: [optimize, manifest]}]")
    found = WatchConfig.load(str(mixed / "tables.yaml")).tables
    assert [(each.name, each.format) for each in found] == [("a", "delta"), ("docs", "lance")]
    assert [each.jobs for each in found] == [("optimize", "manifest"), ("optimize",)], "Lance writes its own"
    assert load(mixed, "folders: [{path: lake, format: lance}]").keys() == {"docs"}
    every = {f"{path.parent.name}/table" for path in (golden / "paimon").glob("*/table")}
    assert {(each.path, each.format) for each in find.find_tables(str(golden / "paimon"))} == {
        (path, "paimon") for path in every
    }
    every = {path.name for path in (golden / "lance").iterdir() if (path / "_versions").is_dir()}
    assert {each.path for each in find.find_tables(str(golden / "lance"))} == every


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("tables: [{path: x, format: lance, partitions: day}]", "Lance tables have no partitions.*line 1"),
        ("folders:\n- path: lake\n  partitions: day", "'partitions' is set for a Lance table.*line 2"),
    ],
)
def test_what_has_no_partitions_is_not_split_by_them(mixed: Path, text: str, complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint):
        load(mixed, text)


def test_names_patterns_and_settings(tmp_path: Path) -> None:
    put_tables(str(tmp_path / "lake"), "bronze/a", "bronze/tmp/b", "silver/c")
    (tmp_path / "tables.yaml").write_text(
        """
        defaults: {policy: {max_deleted_ratio: 0.2, checks: {oldest_dv: {warn: 1d}}}, jobs: [optimize]}
        folders:
          - path: lake
            name: raw
            include: ["bronze/*"]
            exclude: ["*/tmp/*"]
            policy: {max_tasks: 3, checks: {deleted_ratio: {warn: 0.5}}}
        """
    )
    (table,) = WatchConfig.load(str(tmp_path / "tables.yaml")).tables
    assert (table.name, table.jobs) == ("raw/bronze/a", ("optimize",))
    assert (table.policy.max_deleted_ratio, table.policy.max_tasks) == (0.2, 3)
    assert table.policy.checks.deleted_ratio.warn == 0.5
    assert table.policy.checks.oldest_dv.warn == 86_400_000


def test_a_folder_may_be_a_table(tmp_path: Path) -> None:
    put_tables(str(tmp_path / "lake"), "a")
    assert load(tmp_path, "folders: [{path: lake/a}]") == {"a": str(tmp_path / "lake" / "a")}


def test_a_listed_table_is_the_listed_one(tmp_path: Path) -> None:
    put_tables(str(tmp_path / "lake"), "a", "b")
    found = load(tmp_path, "tables: [{path: lake/../lake/a, name: special}]\nfolders: [{path: lake}, {path: ./lake}]")
    assert set(found) == {"special", "b"}


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("folders:\n- path: none", r"the folder contains no table.*tables\.yaml line 2"),
        ("folders:\n- path: lake\n  include: [x]", r"none that matches the patterns.*line 2"),
        ("tables: [{path: x/a}]\nfolders:\n- path: lake", r"would have the name 'a' of file://.*/x/a .*line 3"),
        ("folders: [{pth: x}]", "folders.0.pth"),
        ("{}", "no tables: name some"),
    ],
)
def test_mistakes(tmp_path: Path, text: str, complaint: str) -> None:
    put_tables(str(tmp_path / "lake"), "a")
    with pytest.raises(UsageError, match=complaint):
        load(tmp_path, text)


def test_a_search_has_an_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put_tables(str(tmp_path / "lake"), "a", "b")
    limit: Any = 3
    monkeypatch.setattr(find, "_MAX_FOLDERS", limit)
    with pytest.raises(UsageError, match="more than 3 folders"):
        find.find_tables(str(tmp_path / "lake"))
