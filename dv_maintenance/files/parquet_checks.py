"""What Arrow takes for granted when somebody asks a footer for its metadata.

Reading a file is checked by Arrow itself. Not so ``FileMetaData.row_group``, ``column`` and ``statistics``: there an
error of the C++ library ends the process. So each footer is checked here first, by walking its bytes. Field ids are
those of parquet.thrift (apache/parquet-format).
"""

from __future__ import annotations

from typing import Any, Final

from dv_maintenance.errors import RefusedError
from dv_maintenance.files.thrift_compact import (
    BINARY,
    I32,
    I64,
    LIST,
    STRUCT,
    ThriftError,
    list_header,
    next_field,
    skip,
)
from dv_maintenance.files.varint import read_varint, unzigzag

# parquet.thrift: Type; and how many bytes a value has in plain encoding, if that is fixed.
_TYPES: Final = ("BOOLEAN", "INT32", "INT64", "INT96", "FLOAT", "DOUBLE", "BYTE_ARRAY", "FIXED_LEN_BYTE_ARRAY")
_BYTE_ARRAY, _FIXED = 6, 7
_WIDTHS: Final = {0: 1, 1: 4, 2: 8, 3: 12, 4: 4, 5: 8}
_CODECS: Final = range(8)
# FileMetaData
_ROW_GROUPS, _ENCRYPTION = 4, 8
# RowGroup
_COLUMNS, _GROUP_ROWS = 1, 3
# ColumnChunk
_META_DATA, _CRYPTO = 3, (8, 9)
# ColumnMetaData
_TYPE, _CODEC, _VALUES, _STATISTICS, _SIZES = 1, 4, 5, 12, 16
_NUMBERS: Final = frozenset({_TYPE, _CODEC, _VALUES})
_INTEGERS: Final = frozenset({I32, I64})
# Statistics: max, min, max_value, min_value
_BOUNDS: Final = frozenset({1, 2, 5, 6})
# SizeStatistics
_UNENCODED, _REPETITIONS, _DEFINITIONS = 1, 2, 3


class _Leaf:
    """What a footer's schema says of a column.

    width : bytes of a value, ``None`` if they vary.
    deepest : its highest repetition and definition level.
    cut : whether a bound was seen that is not a whole value.
    """

    __slots__ = ("_column", "cut", "deepest", "type", "width")

    def __init__(self, column: Any) -> None:
        self._column = column
        self.type = _TYPES.index(column.physical_type)
        self.width = column.length if self.type == _FIXED else _WIDTHS.get(self.type)
        self.cut = False
        self.deepest = (column.max_repetition_level, column.max_definition_level)

    @property
    def name(self) -> str:
        return str(self._column.path)


def encrypted_file() -> RefusedError:
    return RefusedError(
        "the file is encrypted (Parquet modular encryption), and this release reads no encrypted files",
        next_step="use the engine that has its keys",
    )


def check_footer(data: bytes, metadata: Any) -> list[set[int]]:
    """Check a footer that Arrow has parsed. Returns, for each row group, the columns whose bounds nobody may ask for:
    writers may cut those of FIXED_LEN_BYTE_ARRAY.

    data : its bytes.
    metadata : ``pyarrow.parquet.FileMetaData`` of the same footer.

    Raises
    ------
    RefusedError : columns are encrypted, or in a codec that Arrow does not know; does not name the file.
    ThriftError : it contradicts itself.
    """
    schema = metadata.schema
    leaves = [_Leaf(schema.column(number)) for number in range(metadata.num_columns)]
    cut: list[set[int]] = []
    rows = at = last = 0
    try:
        while True:
            last, kind, at = next_field(data, at, last)
            if kind is None:
                break
            if last == _ENCRYPTION:
                raise encrypted_file()
            if last == _ROW_GROUPS and kind == LIST:
                size, of, at = list_header(data, at)
                if size and of != STRUCT:
                    raise ThriftError("its row groups are not structs")
                for _ in range(size):
                    at, count = _row_group(data, at, leaves)
                    rows += count
                    cut.append({number for number, leaf in enumerate(leaves) if leaf.cut})
            else:
                at = skip(data, at, kind)
    except (IndexError, OverflowError):
        raise ThriftError("a value is cut off") from None
    if rows != metadata.num_rows:
        raise ThriftError(f"its row groups have {rows} rows, not {metadata.num_rows}")
    return cut


def _row_group(data: bytes, at: int, leaves: list[_Leaf]) -> tuple[int, int]:
    """Where the row group ends, and how many rows it has."""
    rows, last, values = 0, 0, []
    while True:
        last, kind, at = next_field(data, at, last)
        if kind is None:
            break
        if last == _COLUMNS and kind == LIST:
            size, of, at = list_header(data, at)
            if size != len(leaves) or (size and of != STRUCT):
                raise ThriftError(f"a row group has {size} column chunks, the schema {len(leaves)} columns")
            for leaf in leaves:
                at, count = _chunk(data, at, leaf)
                values.append(count)
        elif last == _GROUP_ROWS and kind == I64:
            number, at = read_varint(data, at)
            rows = unzigzag(number)
        else:
            at = skip(data, at, kind)
    if len(values) != len(leaves) or rows < 0:
        raise ThriftError(f"a row group has {len(values)} column chunks and {rows} rows")
    for leaf, count in zip(leaves, values, strict=True):
        if count < 0 or (count != rows and not leaf.deepest[0]):
            raise ThriftError(f"column {leaf.name} has {count} values in a row group of {rows} rows")
    return at, rows


def _chunk(data: bytes, at: int, leaf: _Leaf) -> tuple[int, int]:
    """Where the column chunk ends, and how many values it has."""
    values, last, leaf.cut = -1, 0, False
    while True:
        last, kind, at = next_field(data, at, last)
        if kind is None:
            break
        if last == _META_DATA and kind == STRUCT:
            at, values = _metadata(data, at, leaf)
        elif last in _CRYPTO:
            raise encrypted_file()
        else:
            at = skip(data, at, kind)
    return at, values


def _metadata(data: bytes, at: int, leaf: _Leaf) -> tuple[int, int]:
    values, last, type_ = -1, 0, -1
    # The innermost loop: calls of `next_field` and `skip` would take half of the time.
    while header := data[at]:
        if step := header >> 4:
            last, at = last + step, at + 1
        else:
            last, _, at = next_field(data, at, last)
        kind = header & 0x0F
        if kind in _INTEGERS:
            if last not in _NUMBERS:
                while data[at] & 0x80:
                    at += 1
                at += 1
                continue
            number, at = read_varint(data, at)
            number = unzigzag(number)
            if last == _VALUES:
                values = number
            elif last == _TYPE:
                type_ = number
            elif number not in _CODECS:
                raise RefusedError(
                    f"column {leaf.name} is compressed in a way that this release does not know ({number})",
                    next_step="use a newer release, or the engine that wrote the file",
                )
        elif last == _STATISTICS and kind == STRUCT:
            at = _statistics(data, at, leaf)
        elif last == _SIZES and kind == STRUCT:
            at = _sizes(data, at, leaf)
        else:
            at = skip(data, at, kind)
    at += 1
    if type_ != leaf.type:
        raise ThriftError(f"column {leaf.name} has the type {type_} in a row group, and {leaf.type} in the schema")
    return at, values


def _statistics(data: bytes, at: int, leaf: _Leaf) -> int:
    last = 0
    while True:
        last, kind, at = next_field(data, at, last)
        if kind is None:
            return at
        if last in _BOUNDS and kind == BINARY and leaf.width is not None:
            length, at = read_varint(data, at)
            leaf.cut |= length != leaf.width
            if leaf.cut and leaf.type != _FIXED:
                raise ThriftError(f"a bound of column {leaf.name} has {length} bytes, not {leaf.width}")
            at += length
        else:
            at = skip(data, at, kind)


def _sizes(data: bytes, at: int, leaf: _Leaf) -> int:
    last = 0
    while True:
        last, kind, at = next_field(data, at, last)
        if kind is None:
            return at
        if last == _UNENCODED and kind == I64 and leaf.type != _BYTE_ARRAY:
            raise ThriftError(f"column {leaf.name} has sizes of texts, but is {_TYPES[leaf.type]}")
        if last in {_REPETITIONS, _DEFINITIONS} and kind == LIST:
            size = list_header(data, at)[0]
            levels = leaf.deepest[last - _REPETITIONS] + 1
            if size not in {0, levels}:
                raise ThriftError(f"column {leaf.name} counts {size} levels, but has {levels}")
        at = skip(data, at, kind)
