"""Vectors in lines of JSON, as Paimon writes them: each element is the text that Java has for it.

Paimon's reader takes more: numbers, and any text that Java's parsers take. What Paimon does not write is refused here.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import chain
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from dv_maintenance.errors import RefusedError

_INTEGER: Final = r"-?[0-9]+"
_FLOAT: Final = rf"{_INTEGER}(\.[0-9]+)?(E{_INTEGER})?|NaN|-?Infinity"
_SHOWN: Final = 60


def vectors(lines: Sequence[bytes], schema: pa.Schema, first: int = 0) -> pa.RecordBatch:
    r"""The vectors of some lines. A column that a line lacks is null there, as to Paimon's reader.

    schema : columns of vectors, which are lists of a fixed size.
    first : how many lines of the file come before.

    Raises
    ------
    RefusedError : a value is not one that Paimon writes. The message names the line, but not the file.

    >>> schema = pa.schema([("v", pa.list_(pa.float32(), 2))])
    >>> vectors([b'{"v":["0.1","-Infinity"]}', b'{"v":null}', b"{}"], schema).column(0).to_pylist()
    [[0.10000000149011612, -inf], None, None]
    """
    rows = [_row(line, first + at) for at, line in enumerate(lines, 1)]
    columns = [_column([row.get(field.name) for row in rows], field, first) for field in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _row(line: bytes, number: int) -> dict[str, Any]:
    try:
        found = json.loads(line.decode(), parse_constant=_no_json)
    except (ValueError, RecursionError) as error:
        raise _refused(number, line.decode(errors="replace"), f"which can't be read as JSON: {error}") from error
    if not isinstance(found, dict):
        raise _refused(number, line.decode(), "which is not a JSON object")
    return found


def _no_json(name: str) -> Any:
    raise ValueError(f"{name} is not a value of JSON")


def _column(values: Sequence[Any], field: pa.Field, first: int) -> pa.Array:
    try:
        return _converted(values, field.type)
    except (ValueError, TypeError, pa.ArrowException) as error:
        for number, value in enumerate(values, first + 1):
            try:
                _converted([value], field.type)
            except (ValueError, TypeError, pa.ArrowException):
                what = f"which is no VECTOR of {field.type.list_size} {field.type.value_type}"
                raise _refused(number, value, what, f" for the column {field.name}") from error
        raise


def _converted(values: Sequence[Any], kind: pa.FixedSizeListType) -> pa.Array:
    """Raises ValueError, TypeError or ArrowException."""
    empty = [None] * kind.list_size
    if not all(value is None or (isinstance(value, list) and len(value) == kind.list_size) for value in values):
        raise ValueError("no list of that length")
    texts = pa.array(chain.from_iterable(empty if value is None else value for value in values), pa.string())
    nulls = pa.array([value is None for value in values], pa.bool_())
    if texts.null_count != nulls.true_count * kind.list_size:
        raise ValueError("no element may be null")
    if pc.any(pc.invert(pc.match_substring_regex(texts, _pattern(kind.value_type)))).as_py():
        raise ValueError("not what Java writes")
    # Arrow finds the float that is nearest to the text, as Float.parseFloat does, and not that nearest to a double.
    elements = texts.cast(kind.value_type)
    return pa.FixedSizeListArray.from_arrays(elements, type=kind, mask=nulls)


def _pattern(element: pa.DataType) -> str:
    if pa.types.is_boolean(element):
        return "^(true|false)$"
    return f"^({_FLOAT if pa.types.is_floating(element) else _INTEGER})$"


def _refused(number: int, value: Any, what: str, where: str = "") -> RefusedError:
    shown = value if isinstance(value, str) and not where else json.dumps(value)
    shown = shown if len(shown) <= _SHOWN else f"{shown[:_SHOWN]}..."
    return RefusedError(
        f"line {number} has {shown!r}{where}, {what}", next_step="read the table with Paimon's engine in Java"
    )
