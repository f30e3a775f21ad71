"""Spark Connect analyzes lazily: what it does not understand is the caller's mistake wherever that comes out."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException

from dv_maintenance.dml.write import write_changes
from dv_maintenance.errors import UsageError
from dv_maintenance.tables.rows import RowWriteTask


class Unanalyzed:
    """A DataFrame of Spark Connect over a value that can't be cast."""

    @property
    def columns(self) -> list[str]:
        raise AnalysisException(message="Cannot resolve the cast of a DATE to INT")

    def toDF(self, *names: str) -> Any:  # noqa: N802 - as in PySpark
        raise NotImplementedError


def test_a_new_value_that_can_not_be_cast_is_a_usage_error() -> None:
    schema = pa.schema([("n", pa.int32())])
    changed: Any = Unanalyzed()
    task: Any = RowWriteTask
    with pytest.raises(UsageError, match="Cannot resolve"):
        write_changes(changed, schema, (), (task, task), change_data=False, options=None)
