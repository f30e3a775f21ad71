"""A folder of Parquet files for each test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.parquet_lake import Lake
from support.spark_cluster import Cluster, spark_cluster


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(tmp_path)


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A master and two workers."""
    with spark_cluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running
