"""The ``partitions`` setting of a watched table: the partitions that a user can choose to maintain."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, NaiveDatetime, field_validator, model_validator

from dv_maintenance.tables.model import NULL_PARTITION


def _text(value: Any) -> Any:
    """YAML reads ``3`` as a number, ``2026-01-01`` as a date and ``true`` as a truth value; table logs hold text."""
    if value is None:
        return NULL_PARTITION
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, int | date) else value


_Value = Annotated[str, BeforeValidator(_text, json_schema_input_type=str | int | bool | None)]


class PartitionColumn(BaseModel):
    """How the values of one partition column are offered: as windows of time (``every``), as a fixed list
    (``values``), or, without both, as the values found in the table.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(min_length=1)
    every: Literal["hour", "day", "month"] | None = None
    start: NaiveDatetime | None = None
    """The first window contains this moment, in UTC if the column is a timestamp. Older values belong to no window."""
    format: str | None = None
    """``strptime`` format of the column's values; ``None``: dates and times as ISO 8601 spells them."""
    values: tuple[_Value, ...] | None = Field(default=None, min_length=1)

    @model_validator(mode="after")
    def _one_kind(self) -> PartitionColumn:
        if self.every is None and (self.start is not None or self.format is not None):
            raise ValueError("start and format need windows of time: set every to hour, day or month")
        if self.every is not None and self.values is not None:
            raise ValueError("every (windows of time) and values (a list) exclude each other: give one of them")
        if self.every is not None and self.start is None:
            raise ValueError("windows of time need a start, such as 2026-01-01")
        if self.values is not None and len(set(self.values)) < len(self.values):
            raise ValueError("a value is listed twice")
        return self


def _from_name(value: Any) -> Any:
    return {"name": value} if isinstance(value, str) else value


_Column = Annotated[PartitionColumn, BeforeValidator(_from_name, json_schema_input_type=PartitionColumn | str)]


class Partitioning(BaseModel):
    """Some or all of the table's partition columns, and the number of partitions per run of a backfill.

    Up to two columns span a grid. More columns are offered as the combinations found in the table.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    columns: tuple[_Column, ...] = Field(min_length=1)
    """A plain name is a column with the values found in the table."""
    per_run: int | None = Field(default=None, gt=0, strict=True)
    """Partitions per run of a backfill; ``None``: as many as follow each other without a gap."""

    @field_validator("columns")
    @classmethod
    def _that_go_together(cls, columns: tuple[PartitionColumn, ...]) -> tuple[PartitionColumn, ...]:
        if len({column.name for column in columns}) < len(columns):
            raise ValueError("a column is listed twice")
        if sum(column.every is not None for column in columns) > 1:
            raise ValueError("only one column can be windows of time")
        if len(columns) > 2 and any(column.every or column.values for column in columns):
            raise ValueError("every and values need one or two columns; more columns use the values found in the table")
        return columns


def _from_columns(value: Any) -> Any:
    if isinstance(value, str | PartitionColumn) or (isinstance(value, Mapping) and "name" in value):
        return {"columns": [value]}
    return {"columns": value} if isinstance(value, list | tuple) else value


# The short form: a list of columns, or a single one.
PartitioningSetting = Annotated[
    Partitioning,
    BeforeValidator(
        _from_columns, json_schema_input_type=Partitioning | PartitionColumn | str | list[PartitionColumn | str]
    ),
]
