"""``_last_checkpoint`` and other files of the log that we do without: what fsck says, and what a checkpoint mends.

deltalake and polars judge: what they can't open is a fault, and after the repair they open it.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import deltalake
import pyarrow as pa
import pytest
from support.readers import with_deltalake, with_polars

from dv_maintenance.errors import DamagedTableError
from dv_maintenance.maintenance.checkpoint import checkpoint
from dv_maintenance.maintenance.fsck import fsck
from dv_maintenance.tables import open_table

LOG = "_delta_log"
Break = Callable[[Path], object]


def classic(version: int) -> str:
    return f"{version:020d}.checkpoint.parquet"


def pointer(text: str) -> Break:
    return lambda log: (log / "_last_checkpoint").write_text(text)


def cut(name: str, share: float) -> Break:
    def broken(log: Path) -> None:
        whole = (log / name).read_bytes()
        (log / name).write_bytes(whole[: int(len(whole) * share)])

    return broken


# What was done to the log, and what fsck says of it, if it is a fault.
CASES: dict[str, tuple[Break, str | None]] = {
    "whole": (lambda _: None, None),
    "no pointer": (lambda log: (log / "_last_checkpoint").unlink(), None),
    "empty": (pointer(""), None),
    "cut off": (pointer('{"version":'), None),
    "null": (pointer("null"), None),
    "text": (pointer('{"version":"3"}'), None),
    "stale": (pointer('{"version":1,"size":3}'), None),
    "parts": (pointer('{"version":3,"size":5,"parts":3}'), None),
    "beyond the log": (pointer('{"version":99,"size":1}'), "names version 99"),
    "a commit without a checkpoint": (pointer('{"version":4,"size":1}'), "names version 4"),
    "its checkpoint is gone": (lambda log: (log / classic(3)).unlink(), "names version 3"),
    "its checkpoint is cut off": (cut(classic(3), 0.5), "cannot be read"),
    "its checkpoint is empty": (cut(classic(3), 0), "cannot be read"),
}


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Versions 0 to 4, a checkpoint of version 3."""
    path = tmp_path_factory.mktemp("pointer") / "t"
    for start in range(0, 50, 10):
        deltalake.write_deltalake(path, pa.table({"id": range(start, start + 10)}), mode="append")
        if start == 30:
            checkpoint(open_table(str(path)))
    return path


@pytest.fixture
def path(original: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(original, tmp_path / "t"))


def opened(path: Path) -> list[bool]:
    """Whether each judge reads all rows."""
    found = []
    for reader in (with_deltalake, with_polars):
        try:
            found.append(reader(path).num_rows == 50)
        except Exception:  # noqa: BLE001 - whatever it is, it did not open the table
            found.append(False)
    return found


@pytest.mark.parametrize("case", CASES)
def test_what_others_cannot_open_is_a_fault_that_a_checkpoint_mends(path: Path, case: str) -> None:
    break_it, said = CASES[case]
    break_it(path / LOG)
    table = open_table(str(path))
    report = fsck(table, deep=True)
    assert opened(path) == [report.clean] * 2
    assert report.clean is (said is None)
    if said is not None:
        (damage,) = report.damage
        assert said in damage.reason
        assert damage.path.startswith(LOG)
        assert [each.command_line for each in report.remedies] == [f"dvm.checkpoint({table.uri!r})"]
    dry = checkpoint(table, dry_run=True)
    result = checkpoint(table)
    assert (dry.pointer, result.written) == (result.pointer, True)
    assert opened(path) == [True, True]
    assert fsck(table, deep=True).clean
    assert json.loads((path / LOG / "_last_checkpoint").read_text())["version"] == 4


@pytest.mark.parametrize("text", ["{", '{"version":99,"size":1}'])
def test_only_the_pointer_is_renewed_if_there_is_a_checkpoint(path: Path, text: str) -> None:
    table = open_table(str(path))
    checkpoint(table)
    whole = json.loads((path / LOG / "_last_checkpoint").read_text())
    pointer(text)(path / LOG)
    result = checkpoint(table)
    assert (result.written, result.pointer is None) == (False, False)
    assert json.loads((path / LOG / "_last_checkpoint").read_text()) == {key: whole[key] for key in ("version", "size")}
    assert opened(path) == [True, True]
    assert checkpoint(table).pointer is None


def test_a_damaged_checkpoint_of_the_newest_version_is_replaced(path: Path) -> None:
    table = open_table(str(path))
    checkpoint(table)
    cut(classic(4), 0.5)(path / LOG)
    assert opened(path) == [False, False]
    assert not fsck(table).clean
    assert checkpoint(table).written
    assert opened(path) == [True, True]
    assert fsck(table).clean


def test_a_damaged_checkpoint_in_parts_is_named(path: Path) -> None:
    """Readers would prefer it to another of the same version."""
    table = open_table(str(path))
    checkpoint(table)
    log = path / LOG
    parts = [log / f"{4:020d}.checkpoint.{part:010d}.{2:010d}.parquet" for part in (1, 2)]
    (log / classic(4)).rename(parts[0])
    parts[1].write_bytes(b"PAR1")
    assert fsck(table).remedies[0].how.startswith("Move _delta_log/")
    with pytest.raises(DamagedTableError, match=r"move .*0000000002\.parquet out of the log"):
        checkpoint(table)
    for part in parts:
        part.unlink()
    assert checkpoint(table).written
    assert fsck(table).clean


def test_a_damaged_compacted_file_is_a_fault(path: Path) -> None:
    """Spark reads it in place of the commits."""
    (path / LOG / f"{3:020d}.{4:020d}.compacted.json").write_text('{"add":')
    shutil.rmtree(path / LOG / classic(3), ignore_errors=True)
    (path / LOG / classic(3)).unlink()
    (path / LOG / "_last_checkpoint").unlink()
    report = fsck(open_table(str(path)))
    assert [each.path for each in report.damage] == [f"{LOG}/{3:020d}.{4:020d}.compacted.json"]
    assert "Move the compacted files out of the log" in report.remedies[0].how


def test_a_checksum_of_hadoop_that_contradicts_is_a_fault(path: Path) -> None:
    table = open_table(str(path))
    stale = path / LOG / "._last_checkpoint.crc"
    stale.write_bytes(b"crc\0\0\0\2\0" + b"\1\2\3\4")
    (damage,) = fsck(table).damage
    assert "does not match Hadoop's checksum" in damage.reason
    checkpoint(table)
    assert not stale.exists()
    assert fsck(table).clean
