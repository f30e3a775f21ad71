"""The table at a place, which must be of this format."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

from dv_maintenance.tables import open_table
from dv_maintenance.tables.iceberg.table import IcebergTable
from dv_maintenance.tables.lance.table import LanceTable
from dv_maintenance.tables.paimon.table import PaimonTable

_T = TypeVar("_T")


def _opened(kind: type[_T], place: Path | str, options: dict[str, str] | None = None) -> _T:
    table = open_table(str(place), storage_options=options)
    assert isinstance(table, kind)
    return table


iceberg_table: Final[Callable[..., IcebergTable]] = partial(_opened, IcebergTable)
lance_table: Final[Callable[..., LanceTable]] = partial(_opened, LanceTable)
paimon_table: Final[Callable[..., PaimonTable]] = partial(_opened, PaimonTable)
