"""Rows that are deleted by their values: those that some columns of other files have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from dv_maintenance.errors import RefusedError
from dv_maintenance.files.arrays import combined, integer
from dv_maintenance.tables.work import ScanTask

if TYPE_CHECKING:
    from dv_maintenance.storage import Storage


@dataclass(frozen=True, slots=True)
class ValuesToDrop:
    """An element of ``SourceFile.details["without"]``. Its ``values`` are a ``ScanTask`` as JSON: its rows are the
    values, its columns those that are compared; of a struct, which has one field, that field is. Its ``constants`` are
    the values of compared columns that are the same in all rows of the source, see ``SourceFile.constants``. Two nulls
    are equal, as two NaNs are.

    constants : by the names in ``schema``.
    uniques : the values of each column. A value's code is its place there.
    codes : for each column, the codes of the combinations of its values with those of the columns before it.
    """

    schema: pa.Schema
    constants: Mapping[str, Any]
    uniques: tuple[pa.Array, ...]
    codes: tuple[pa.Array, ...]

    @classmethod
    def load(cls, element: Mapping[str, Any], storage: Storage) -> ValuesToDrop:
        """Read the values. Raises as ``scan.scan``, and RefusedError for nulls in structs."""
        from dv_maintenance.engine.scan import scan

        scan_task = ScanTask.from_json(element["values"])
        values = pa.Table.from_batches(scan(scan_task, storage.options), scan_task.schema)
        columns = [_compared(combined(column)) for column in values.columns]
        for own, field in zip(columns, scan_task.schema, strict=True):
            if pa.types.is_struct(field.type) and own.null_count:
                # By Iceberg's specification, a null struct equals one of nulls. Its Java library tells them apart.
                raise RefusedError(
                    f"rows are deleted where {field.name} is null: engines differ about the field of a null struct",
                    next_step="rewrite the table with the engine that its readers use",
                )
        uniques = tuple(column.unique() for column in columns)
        codes: list[pa.Array] = []
        found = None
        for column, own in zip(columns, uniques, strict=True):
            found = _paired(found, pc.index_in(column, value_set=own), len(own))
            codes.append(found.unique())
            found = pc.index_in(found, value_set=codes[-1])
        return cls(scan_task.schema, element["constants"], uniques, tuple(codes))

    @property
    def width(self) -> int:
        return len(self.schema)

    def appended_to(self, schema: pa.Schema, number: int) -> pa.Schema:
        """The schema with the compared columns, under names that no other column has."""
        for each in self.schema:
            schema = schema.append(each.with_name(_appended(number, each.name)).with_nullable(True))
        return schema

    def constants_of_appended(self, number: int) -> dict[str, Any]:
        """``constants`` by the names that :meth:`appended_to` gives."""
        return {_appended(number, name): value for name, value in self.constants.items()}

    def among(self, columns: Sequence[pa.Array]) -> pa.BooleanArray:
        """Whether each row of the compared columns is one of the values."""
        found: Any = None
        for column, own, codes in zip(columns, self.uniques, self.codes, strict=True):
            inner = _compared(column)
            plain = inner.dictionary_decode() if pa.types.is_dictionary(inner.type) else inner
            # A null code is one that the values do not have, and stays null.
            pairs = _paired(found, pc.index_in(plain, value_set=own), len(own))
            found = pc.index_in(pairs, value_set=codes, skip_nulls=True)
        return found.is_valid()


def _compared(column: pa.Array) -> pa.Array:
    """The values of a column, or of the field in its structs."""
    while pa.types.is_struct(column.type):
        (column,) = column.flatten()
    return column


def _appended(number: int, name: str) -> str:
    return f"\0{number}\0{name}"


def _paired(before: pa.Array | None, codes: pa.Array, count: int) -> pa.Array:
    """One number for the code of the columns before and the code of this one, which is below ``count``."""
    codes = codes.cast(pa.int64())
    if before is None:
        return codes
    return pc.add(pc.multiply(before.cast(pa.int64()), integer(count)), codes)
