"""Tests of what older releases of pyarrow and pylance can't do, and what this package then refuses or avoids."""

from __future__ import annotations

from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import pyarrow as pa
import pytest
from packaging.version import Version

from dv_maintenance.engine.orc.reader import range_is_checked
from dv_maintenance.engine.parquet.layout import encodes_far_instants

__all__ = [
    "OLD_PYARROW",
    "golden_params",
    "needs_int96",
    "needs_orc_timestamps",
    "needs_pylance_14",
    "needs_variants",
    "skip_without_orc_timestamps",
]

OLD_PYARROW = Version(pa.__version__) < Version("26")

_ORC = "this pyarrow misreads timestamps in ORC files, so columns of them are refused"

needs_orc_timestamps = pytest.mark.skipif(not range_is_checked(), reason=_ORC)
needs_int96 = pytest.mark.skipif(
    not encodes_far_instants(), reason="this pyarrow writes wrong INT96 timestamps, so none are written"
)
needs_variants = pytest.mark.skipif(
    Version(pa.__version__) < Version("22"),
    reason="this pyarrow can't read variants, so they are refused",
)


def _pylance_is_old() -> bool:
    try:
        return Version(version("pylance")) < Version("14")
    except PackageNotFoundError:
        return False


needs_pylance_14 = pytest.mark.skipif(_pylance_is_old(), reason="this pylance neither writes nor reads such tables")


def golden_params(names: Iterable[Any]) -> list[Any]:
    """Golden tables of Iceberg whose rows a test reads."""
    marks = {"orc_dv": needs_orc_timestamps, "variant_col": needs_variants}
    return [pytest.param(name, marks=marks[name]) if name in marks else name for name in names]


def skip_without_orc_timestamps(kind: str) -> None:
    if kind == "orc" and not range_is_checked():
        pytest.skip(_ORC)
