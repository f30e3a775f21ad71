"""DuckDB with its extension for Iceberg, from the packages that have it."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import duckdb

__all__ = ["connected"]


def connected() -> duckdb.DuckDBPyConnection:
    made = duckdb.connect()
    for name in ("avro", "iceberg"):
        found = importlib.util.find_spec(f"duckdb_extension_{name}")
        assert found is not None
        assert found.origin is not None
        (extension,) = Path(found.origin).parent.glob("extensions/*/*.duckdb_extension")
        made.load_extension(str(extension))
    return made
