"""Statistics of data files: which columns the table wants them for, and their JSON in the log.

The protocol (Per-file Statistics) leaves much open. In those cases this writes what Spark writes, because Spark's data
skipping reads it. Every bound is safe, if not always tight: a minimum is never above, a maximum never below any value
of the file.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

import orjson
import pyarrow as pa

from dv_maintenance.errors import RefusedError
from dv_maintenance.tables.delta.rows.schema import arrow_schema, delta_kind, is_void, physical_name

if TYPE_CHECKING:
    from dv_maintenance.tables.delta.log.actions import Metadata
    from dv_maintenance.tables.work import OutputFile

_DEFAULT_COLUMNS: Final = 32
_DEFAULT_PREFIX: Final = 32
# The last character of a truncated maximum, so that it sorts after the full value.
_ASCII_MAX: Final = "\x7f"
_UNICODE_MAX: Final = "\U0010ffff"


def stats_columns(metadata: Metadata, clustering: Collection[tuple[str, ...]] = ()) -> tuple[tuple[str, ...], ...]:
    """The leaf columns of a file to collect statistics for, as paths of physical names, in the table's order.

    These are the columns that ``delta.dataSkippingStatsColumns`` names (a struct stands for all its leaves), or else
    the first ``delta.dataSkippingNumIndexedCols`` leaves that are not partition columns. A list, a map or a variant
    counts as one leaf. Void columns count too, but no file holds them, so they are left out here. The columns of
    ``clustering`` have statistics whatever the properties say (protocol: Clustered Table).

    Raises
    ------
    RefusedError : a property is invalid. And the errors of ``arrow_schema``.
    """
    return tuple(leaf.source for leaf in _leaves_wanted(metadata, clustering) if leaf.source)


def stats_json(
    output: OutputFile, metadata: Metadata, clustering: Collection[tuple[str, ...]] = (), *, tight: bool = True
) -> str:
    """The ``stats`` of the file's ``add`` action. Not ``tight``: the bounds include rows that are deleted.

    Bounds are left out if there are none, or if JSON or the calendar can't express them (not a number, infinite, beyond
    year 9999). Timestamps have milliseconds: minima are cut off, maxima rounded up, since not every reader allows for
    the lost digits.

    Raises
    ------
    As :func:`stats_columns`.
    """
    prefix = _number(metadata, "delta.dataSkippingStringPrefixLength", _DEFAULT_PREFIX, at_least=0)
    by_column = {stats.column: stats for stats in output.stats}
    minimum: dict[str, Any] = {}
    maximum: dict[str, Any] = {}
    nulls: dict[str, Any] = {}
    for leaf in _leaves_wanted(metadata, clustering):
        if is_void(leaf.type):
            _put(nulls, leaf.path, output.rows)
            continue
        stats = by_column.get(leaf.source)
        if stats is None:
            continue
        _put(nulls, leaf.path, stats.null_count)
        lower, upper = _bounds(leaf, prefix)
        if stats.minimum is not None:
            _put(minimum, leaf.path, lower(stats.minimum))
        if stats.maximum is not None:
            _put(maximum, leaf.path, upper(stats.maximum))
    body = {
        "numRecords": output.rows,
        "minValues": minimum,
        "maxValues": maximum,
        "nullCount": nulls,
        "tightBounds": tight,
    }
    return orjson.dumps(body).decode()


# -- columns -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Leaf:
    """A leaf column.

    path : physical names.
    source : the leaf of a file with the column's nulls and bounds; empty if there is none.
    bounded : whether Spark keeps minima and maxima of such a column.
    """

    path: tuple[str, ...]
    source: tuple[str, ...]
    type: pa.DataType
    bounded: bool


def _leaves_wanted(metadata: Metadata, clustering: Collection[tuple[str, ...]]) -> Iterable[_Leaf]:
    fields = [field for field in arrow_schema(metadata) if field.name not in metadata.partition_columns]
    named = metadata.configuration.get("delta.dataSkippingStatsColumns")
    if named is not None:
        found = list(_named_leaves(fields, _column_names(named), ()))
    else:
        count = _number(metadata, "delta.dataSkippingNumIndexedCols", _DEFAULT_COLUMNS, at_least=-1)
        found = list(islice(_all_leaves(fields, ()), None if count < 0 else count))
    missing = {*clustering} - {leaf.path for leaf in found}
    return [*found, *(leaf for leaf in _all_leaves(fields, ()) if leaf.path in missing)] if missing else found


def _all_leaves(fields: Iterable[pa.Field], parent: tuple[str, ...]) -> Iterator[_Leaf]:
    for field in fields:
        path = (*parent, physical_name(field))
        kind = delta_kind(field)
        if pa.types.is_struct(field.type) and kind is None:
            yield from _all_leaves(field.type, path)
        else:
            yield _Leaf(path, _source(path, field.type, kind), field.type, kind is None and _has_bounds(field.type))


def _source(path: tuple[str, ...], type: pa.DataType, kind: str | None) -> tuple[str, ...]:
    if is_void(type):
        return ()
    if pa.types.is_struct(type):
        # The metadata of a variant is required, so it is null where the variant is. The rest may be shredded, and the
        # parts of a user-defined type may be null.
        return (*path, "metadata") if kind == "variant" else ()
    return path


def _named_leaves(fields: Iterable[pa.Field], names: list[list[str]], parent: tuple[str, ...]) -> Iterator[_Leaf]:
    """Leaves below the named columns. Names that are not in the schema are ignored; case does not matter."""
    for field in fields:
        rests = [name[1:] for name in names if name[0] == field.name.lower()]
        if rests and not any(rests):
            yield from _all_leaves([field], parent)
        elif rests and pa.types.is_struct(field.type) and delta_kind(field) is None:
            yield from _named_leaves(field.type, [rest for rest in rests if rest], (*parent, physical_name(field)))


def _has_bounds(type: pa.DataType) -> bool:
    # Spark keeps no bounds for booleans.
    return bool(
        pa.types.is_integer(type)
        or pa.types.is_floating(type)
        or pa.types.is_decimal(type)
        or pa.types.is_string(type)
        or pa.types.is_date(type)
        or pa.types.is_timestamp(type)
    )


# One part of a dotted name and the separator after it; inside quotes, a backtick is doubled.
_NAME_PART: Final = re.compile(r"(?:\s*`((?:[^`]|``)*)`\s*|([^`.,]*))(\.|,|$)")


def _column_names(text: str) -> list[list[str]]:
    """``a, b.c, `d.e` `` as parts in lower case: ``[["a"], ["b", "c"], ["d.e"]]``."""
    names: list[list[str]] = []
    position, separator = 0, ","
    while text.strip() and separator:
        part = _NAME_PART.match(text, position)
        name = "" if part is None else part[2].strip() if part[1] is None else part[1].replace("``", "`")
        if part is None or not name:
            raise RefusedError(
                f"the table property delta.dataSkippingStatsColumns is not a list of columns: {text[:100]!r}",
                next_step="correct the property, or unset it",
            )
        if separator == ",":
            names.append([])
        names[-1].append(name.lower())
        position, separator = part.end(), part[3]
    return names


def _number(metadata: Metadata, key: str, default: int, *, at_least: int) -> int:
    text = metadata.configuration.get(key)
    if text is None:
        return default
    if not re.fullmatch(r"-?\d{1,9}", text) or int(text) < at_least:
        raise RefusedError(
            f"the table property {key} is not an integer of at least {at_least}: {text[:100]!r}",
            next_step="correct the property, or unset it",
        )
    return int(text)


# -- values ------------------------------------------------------------------------------------------------------

_Bound = Callable[[Any], Any]


def _bounds(leaf: _Leaf, prefix: int) -> tuple[_Bound, _Bound]:
    """Converters of a minimum and a maximum to JSON; they return ``None`` for a value that can't be written."""
    if not leaf.bounded:
        return _nothing, _nothing
    if pa.types.is_string(leaf.type):
        return lambda value: lower_string(value, prefix), lambda value: upper_string(value, prefix)
    if pa.types.is_timestamp(leaf.type):
        zone = "" if leaf.type.tz is None else "Z"
        return lambda value: _timestamp(value // 1000, zone), lambda value: _timestamp(-(-value // 1000), zone)
    if pa.types.is_date(leaf.type):
        return _date, _date
    if pa.types.is_decimal(leaf.type):
        return _decimal, _decimal
    if pa.types.is_floating(leaf.type):
        return _float, _float
    return _same, _same


def _nothing(_: Any) -> None:
    return None


def _same(value: Any) -> Any:
    return value


def lower_string(value: str, prefix: int) -> str | None:
    """At most ``prefix`` characters that do not sort after ``value``; ``None`` for a prefix of no characters.

    >>> lower_string("pineapple", 4)
    'pine'
    """
    return value[:prefix] if prefix or not value else None


def upper_string(value: str, prefix: int) -> str | None:
    r"""A string of about ``prefix`` characters that does not sort before ``value``, in UTF-8 and in code points.

    One character that sorts after the first removed character replaces the removed part. If the removed character is
    already the last one of Unicode, more is kept, up to twice the prefix; beyond that there is no bound (``None``).

    >>> upper_string("pineapple", 4)
    'pine\x7f'
    """
    if len(value) <= prefix:
        return value
    if not prefix:
        return None
    for end in range(prefix, 2 * prefix + 1):
        if end == len(value):
            return value
        if value[end] < _ASCII_MAX:
            return value[:end] + _ASCII_MAX
        if value[end] < _UNICODE_MAX:
            return value[:end] + _UNICODE_MAX
    return None


def _timestamp(millis: int, zone: str) -> str | None:
    try:
        when = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=millis)
    except OverflowError:
        return None
    return when.replace(tzinfo=None).isoformat(timespec="milliseconds") + zone


def _date(days: int) -> str | None:
    try:
        return (date(1970, 1, 1) + timedelta(days=days)).isoformat()
    except OverflowError:
        return None


def _decimal(value: str) -> orjson.Fragment | None:
    # As a JSON number with all digits: a float could lose some.
    number = Decimal(value)
    return orjson.Fragment(format(number, "f")) if number.is_finite() else None


def _float(value: float) -> float | None:
    # All digits of a float32, though fewer would read back as the same float32: if the column is later widened to
    # double, they are read as a double. Parquet stores a minimum of zero as -0.0, and MIN(x) answered from statistics
    # would show that.
    return value + 0.0 if math.isfinite(value) else None


def _put(tree: dict[str, Any], path: tuple[str, ...], value: Any) -> None:
    if value is None:
        return
    *parents, name = path
    for parent in parents:
        tree = tree.setdefault(parent, {})
    tree[name] = value
