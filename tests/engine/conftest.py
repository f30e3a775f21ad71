"""A folder of Parquet files for each test."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.parquet_lake import Lake


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(tmp_path)
