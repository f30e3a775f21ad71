"""Some rows of a Lance file as a file of their own."""

from __future__ import annotations

from pathlib import Path

import lance
import pyarrow as pa
import pytest

from dv_maintenance.errors import DamagedTableError
from dv_maintenance.files import lance_cut

ROWS = pa.table(
    {"v": pa.array([[float(at), None] if at % 3 else None for at in range(3000)], pa.list_(pa.float32(), 2))}
)


def cut(path: Path, rows: range, of: int) -> pa.Table:
    new = path.with_name("new.lance")
    with pa.OSFile(str(path)) as file, pa.OSFile(str(new), "wb") as sink:
        lance_cut.cut(file, rows, of, sink)
        assert pa.Table.from_batches(lance_cut.batches(file, rows, of)) == ROWS[rows.start : rows.stop]
    return lance.file.LanceFileReader(str(new)).read_all().to_table()


@pytest.mark.parametrize("version", ["2.0", "2.1", "2.2"])
def test_the_version_is_kept(tmp_path: Path, version: str) -> None:
    path = tmp_path / "old.lance"
    with lance.file.LanceFileWriter(str(path), ROWS.schema, version=version) as writer:
        writer.write_batch(ROWS)
    assert cut(path, range(1000, 2500), 3000) == ROWS[1000:2500]
    assert path.read_bytes()[-8:] == (tmp_path / "new.lance").read_bytes()[-8:]
    with pytest.raises(DamagedTableError, match="it has 3000 rows, not 2999"):
        cut(path, range(1000, 2500), 2999)
    path.write_bytes(path.read_bytes()[:-50])
    with pytest.raises(DamagedTableError, match="cannot be read by Lance"):
        cut(path, range(1000, 2500), 3000)
