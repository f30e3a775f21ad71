"""A folder with the name of a file: the file is missing where it is read, and its name is taken where it is written."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import deltalake
import pyarrow as pa
import pytest

from dv_maintenance.cli import main
from dv_maintenance.storage import Storage
from dv_maintenance.testing.iceberg_builder import IcebergBuilder

Build = Callable[[Path], tuple[Path, Path]]


def delta(root: Path) -> tuple[Path, Path]:
    """A table with a deletion vector: a data file, and the name of its next version."""
    rows = pa.table({"id": pa.array(range(10), pa.int64())})
    deltalake.write_deltalake(root, rows, configuration={"delta.enableDeletionVectors": "true"})
    assert main(["delete", str(root), "--where", "id = 3", "--engine", "local"]) == 0
    return next(root.glob("*.parquet")), root / "_delta_log" / f"{2:020d}.json"


def iceberg(root: Path) -> tuple[Path, Path]:
    builder = IcebergBuilder(str(root))
    builder.create({"id": "long"})
    builder.append(pa.table({"id": pa.array(range(10), pa.int64())}))
    assert main(["delete", str(root), "--where", "id = 3", "--engine", "local"]) == 0
    return next(root.glob("data/**/*.parquet")), root / "metadata" / "v5.metadata.json"


FORMATS = pytest.mark.parametrize("build", [delta, iceberg])


@FORMATS
@pytest.mark.parametrize(
    "verb", [["read"], ["purge"], ["purge", "--dry-run"], ["delete", "--where", "id = 4"]], ids=lambda verb: verb[-1]
)
def test_where_a_data_file_should_be(
    build: Build, verb: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "t"
    data, _ = build(root)
    data.unlink()
    (data / "x").mkdir(parents=True)
    assert main([verb[0], str(root), *verb[1:], "--engine", "local"]) == 5
    assert "is named by the table's log, but is a folder" in capsys.readouterr().err
    assert main(["fsck", str(root)]) == 5
    assert "it is a folder" in capsys.readouterr().out


@FORMATS
def test_where_the_next_version_should_be(build: Build, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = tmp_path / "t"
    _, following = build(root)
    assert not following.exists()
    following.mkdir()
    before = {each.path for each in Storage(str(root)).list()}
    for dry in (["--dry-run"], []):
        assert main(["purge", str(root), "--engine", "local", *dry]) == 3
        assert f"{following.name} is a folder" in capsys.readouterr().err
        assert {each.path for each in Storage(str(root)).list()} == before
    shutil.rmtree(following)
    assert main(["purge", str(root), "--engine", "local"]) == 0
