"""What tests of Lance tables share."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest
from support.lance_rows import rows


@pytest.fixture(scope="module")
def eventful(pylance: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table that everything was done to, once."""
    path = str(tmp_path_factory.mktemp("lance") / "t")
    dataset = pylance.write_dataset(rows(0, 30), path, max_rows_per_file=10)  # 1
    dataset.insert(rows(30, 10))  # 2
    dataset.delete("id in (1, 2, 11)")  # 3
    dataset.delete("id in (3, 12)")  # 4
    dataset.delete("id < 0")  # 5
    dataset.delete("id between 20 and 29")  # 6
    dataset.update({"v": "2.0"}, where="id = 4")  # 7
    dataset.create_scalar_index("id", "BTREE")  # 8
    dataset.add_columns({"w": "id * 2"})  # 9
    dataset.drop_columns(["w"])  # 10
    dataset.update_config({"team": "a"})  # 11
    dataset.optimize.compact_files()  # 12, 13
    pylance.dataset(path, version=4).restore()  # 14
    pylance.write_dataset(rows(0, 5), path, mode="overwrite")  # 15
    return Path(path)
