"""Arrow scalars from Python values, without pandas. See ``files.arrays`` for the reason."""

from __future__ import annotations

from typing import Final

import pyarrow as pa

from dv_maintenance.files.arrays import int64s, strings


def integer(value: int) -> pa.Int64Scalar:
    return int64s([value])[0]


def text(value: str) -> pa.StringScalar:
    return strings([value])[0]


NO_INTEGER: Final = int64s([None])[0]
