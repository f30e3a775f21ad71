"""Tests of what older releases of pyarrow can't do, and what this package then refuses or avoids."""

from __future__ import annotations

import pyarrow as pa
import pytest
from packaging.version import Version

from dv_maintenance.engine.orc.reader import range_is_checked
from dv_maintenance.engine.parquet.layout import encodes_far_instants

__all__ = ["OLD_PYARROW", "needs_int96", "needs_orc_timestamps", "skip_without_orc_timestamps"]

OLD_PYARROW = Version(pa.__version__) < Version("26")

_ORC = "this pyarrow misreads timestamps in ORC files, so columns of them are refused"

needs_orc_timestamps = pytest.mark.skipif(not range_is_checked(), reason=_ORC)
needs_int96 = pytest.mark.skipif(
    not encodes_far_instants(), reason="this pyarrow writes wrong INT96 timestamps, so none are written"
)


def skip_without_orc_timestamps(kind: str) -> None:
    if kind == "orc" and not range_is_checked():
        pytest.skip(_ORC)
