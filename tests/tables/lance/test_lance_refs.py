"""Tags and branches, as Lance writes them and as they can be damaged; on disk and in object storage."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow as pa
import pytest
from support.tables import lance_table as opened

from dv_maintenance.errors import DamagedTableError, UsageError
from dv_maintenance.tables.lance.log.refs import Branch, Tag


def build(pylance: ModuleType, place: str, options: dict[str, str] | None = None) -> Any:
    dataset = pylance.write_dataset(pa.table({"id": range(100)}), place, max_rows_per_file=50, storage_options=options)
    dataset.delete("id < 5")
    dataset.tags.create("keep.it-1", 2)
    branch = dataset.create_branch("dev/x", 2, storage_options=options)
    branch.delete("id = 7")
    again = branch.create_branch("dev/y", ("dev/x", 3), storage_options=options)
    again.delete("id = 60")
    dataset.tags.create("of_branch", ("dev/x", 3))
    return dataset


def check(dataset: Any, place: str, options: dict[str, str] | None = None) -> None:
    root = opened(place, options)
    tags = {"keep.it-1": Tag("keep.it-1", 2), "of_branch": Tag("of_branch", 3, "dev/x")}
    branches = {"dev/x": Branch("dev/x", None, 2), "dev/y": Branch("dev/y", "dev/x", 3)}
    assert {name: (tag["version"], tag["branch"]) for name, tag in dataset.tags.list().items()} == {
        name: (tag.version, tag.branch) for name, tag in tags.items()
    }
    assert dataset.branches.list().keys() == branches.keys()
    for table in (root, root.branch("dev/x"), root.branch("dev/y"), root.branch("dev/x").branch("dev/y")):
        assert (table.tags(), table.branches()) == (tags, branches)
        assert table.preflight() == ()
    assert (root.version(), root.branch("dev/x").version(), root.branch("dev/y").version()) == (2, 3, 4)
    deleted = root.branch("dev/y").snapshot().files["deleted_rows"].to_pylist()
    assert deleted == [6, 1]
    assert root.branch("dev/y").snapshot().manifest.branch == "dev/y"
    assert [entry.operation for entry in root.branch("dev/y").history()] == ["Delete", "Clone"]
    with pytest.raises(UsageError, match="no branch 'dev'") as caught:
        root.branch("dev")
    assert "dev/x, dev/y" in str(caught.value)


def test_on_disk(pylance: ModuleType, tmp_path: Path) -> None:
    place = str(tmp_path / "some tree" / "t")
    check(build(pylance, place), place)


def test_a_folder_that_is_called_tree_is_no_branch(pylance: ModuleType, tmp_path: Path) -> None:
    place = str(tmp_path / "tree" / "t")
    check(build(pylance, place), place)


def test_in_object_storage(pylance: ModuleType, s3: tuple[str, dict[str, str]]) -> None:
    uri, options = s3
    place = f"{uri}/some refs/t"
    check(build(pylance, place, options), place, options)


def test_a_table_without_refs(golden: Path) -> None:
    table = opened(str(golden / "lance" / "array_small"))
    assert (table.tags(), table.branches()) == ({}, {})
    with pytest.raises(UsageError, match="has no branches"):
        table.branch("dev")


@pytest.mark.parametrize("text", ["", "[]", '{"version": "2"}', '{"version": true}', '{"version": 2, "branch": 3}'])
def test_damaged_tags_are_errors(pylance: ModuleType, tmp_path: Path, text: str) -> None:
    pylance.write_dataset(pa.table({"id": [1]}), str(tmp_path / "t")).tags.create("keep", 1)
    (tmp_path / "t" / "_refs" / "tags" / "keep.json").write_text(text)
    with pytest.raises(DamagedTableError, match=r"_refs/tags/keep\.json"):
        opened(str(tmp_path / "t")).tags()


@pytest.mark.parametrize("text", ["{", '{"parentBranch": null}', '{"parentBranch": 3, "parentVersion": 2}'])
def test_damaged_branches_are_errors(pylance: ModuleType, tmp_path: Path, text: str) -> None:
    pylance.write_dataset(pa.table({"id": [1]}), str(tmp_path / "t")).create_branch("b")
    (tmp_path / "t" / "_refs" / "branches" / "b.json").write_text(text)
    with pytest.raises(DamagedTableError, match=r"_refs/branches/b\.json"):
        opened(str(tmp_path / "t")).branches()
