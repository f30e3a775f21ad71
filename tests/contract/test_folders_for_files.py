"""A folder with the name of a file: the file is missing where it is read, and its name is taken where it is written."""

from __future__ import annotations

import json
import re
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


def test_a_folder_for_the_pointer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = tmp_path / "t"
    delta(root)
    (root / "_delta_log/_last_checkpoint").mkdir()
    assert main(["fsck", str(root)]) == 5
    assert "_last_checkpoint: is a folder" in capsys.readouterr().out
    assert main(["checkpoint", str(root)]) == 3
    assert "move the folder" in capsys.readouterr().err


def test_a_link_to_nothing_for_the_next_version(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Readers take the version before it for the newest one."""
    root = tmp_path / "t"
    _, following = delta(root)
    following.symlink_to(tmp_path / "gone")
    assert main(["fsck", str(root)]) == 5
    assert f"{following.name}: is a link to a file that does not exist" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["a\0b", "a%00b", "x" * 5000])
def test_a_name_that_no_disk_has(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The file is missing."""
    root = tmp_path / "t"
    _, following = delta(root)
    log = root / "_delta_log" / f"{0:020d}.json"
    add = next(each["add"] for each in map(json.loads, log.read_text().splitlines()) if "add" in each)
    following.write_text(json.dumps({"add": {**add, "path": name}}))
    for verb in (["health"], ["read", "--engine", "local"], ["fsck"], ["fsck", "--deep"]):
        code = main([verb[0], str(root), *verb[1:]])
        said = "".join(capsys.readouterr())
        assert code == 5, (verb, said)
        assert "Error" not in said


def test_a_log_without_a_schema(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = tmp_path / "t"
    delta(root)
    log = root / "_delta_log" / f"{0:020d}.json"
    log.write_text("".join(f"{line}\n" for line in log.read_text().splitlines() if '"metaData"' not in line))
    assert main(["fsck", str(root), "--deep"]) == 5
    assert "the log has no schema" in capsys.readouterr().out


@FORMATS
def test_a_link_that_leads_to_itself(build: Build, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The file is missing; a vacuum does not stop at it."""
    root = tmp_path / "t"
    data, _ = build(root)
    data.unlink()
    data.symlink_to(data)
    for verb in (["read"], ["purge"], ["fsck"]):
        assert main([verb[0], str(root), *verb[1:], *(["--engine", "local"] if verb != ["fsck"] else [])]) == 5
        assert "network" not in "".join(capsys.readouterr())
    assert main(["vacuum", str(root), "--dry-run"]) == 0


def test_a_footer_whose_names_are_not_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = tmp_path / "t"
    data, _ = delta(root)
    whole = data.read_bytes()
    names = [found.start() for found in re.finditer(rb"[a-z-]{2,}", whole)]
    assert len(names) > 2
    for at in names:
        data.write_bytes(whole[:at] + b"\xff" + whole[at + 1 :])
        for verb in (["plan"], ["purge", "--dry-run"], ["fsck", "--deep"], ["read"]):
            engine = ["--engine", "local"] if verb[0] in {"purge", "read"} else []
            assert main([verb[0], str(root), *verb[1:], *engine]) in {0, 5}, (at, verb)
            assert "Error" not in "".join(capsys.readouterr())
