"""Some rows of Lance and Vortex files as files of their own."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import lance
import pyarrow as pa
import pytest
import vortex

from dv_maintenance.errors import DamagedTableError
from dv_maintenance.files import lance_cut, vortex_cut

ROWS = pa.table(
    {"v": pa.array([[float(at), None] if at % 3 else None for at in range(3000)], pa.list_(pa.float32(), 2))}
)


def cut(by: ModuleType, path: Path, rows: range, of: int) -> Path:
    new = path.with_name("new")
    with pa.OSFile(str(path)) as file, pa.OSFile(str(new), "wb") as sink:
        by.cut(file, rows, of, sink)
        assert pa.Table.from_batches(by.batches(file, rows, of)) == ROWS[rows.start : rows.stop]
    with pa.OSFile(str(new)) as file:
        everything = pa.Table.from_batches(by.batches(file, range(len(rows)), len(rows)))
    assert everything == ROWS[rows.start : rows.stop]
    return new


@pytest.mark.parametrize("version", ["2.0", "2.1", "2.2", "vortex"])
def test_rows_are_cut(tmp_path: Path, version: str) -> None:
    """Lance files keep their version."""
    path = tmp_path / "old"
    by, name = (vortex_cut, "Vortex") if version == "vortex" else (lance_cut, "Lance")
    if version == "vortex":
        vortex.io.write(ROWS, str(path))
    else:
        with lance.file.LanceFileWriter(str(path), ROWS.schema, version=version) as writer:
            writer.write_batch(ROWS)
    new = cut(by, path, range(1000, 2500), 3000)
    assert path.read_bytes()[-8:] == new.read_bytes()[-8:] or version == "vortex"
    with pytest.raises(DamagedTableError, match="it has 3000 rows, not 2999"):
        cut(by, path, range(1000, 2500), 2999)
    path.write_bytes(path.read_bytes()[:-50])
    with pytest.raises(DamagedTableError, match=f"be read by {name}"):
        cut(by, path, range(1000, 2500), 3000)
