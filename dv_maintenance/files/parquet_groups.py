"""Row groups of Parquet files as bytes: where their parts are, and their metadata after a move to another file.

Everything not named here is kept byte for byte: encodings, statistics, sorting columns, fields of newer writers. Field
ids are those of parquet.thrift (apache/parquet-format).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from dv_maintenance.files.thrift_compact import (
    BINARY,
    I16,
    I32,
    I64,
    STRUCT,
    Struct,
    ThriftError,
    Value,
    binary,
    list_of,
    number,
)
from dv_maintenance.files.varint import varint

# FileMetaData
_SCHEMA, _ROWS, _GROUPS, _KEYS, _CREATED_BY, _ORDERS, _ENCRYPTION, _SIGNING = 2, 3, 4, 5, 6, 7, 8, 9
# RowGroup
_COLUMNS, _BYTES, _GROUP_ROWS, _GROUP_OFFSET, _COMPRESSED, _ORDINAL = 1, 2, 3, 5, 6, 7
# ColumnChunk
_FILE_PATH, _FILE_OFFSET, _META, _CRYPTO, _ENCRYPTED = 1, 2, 3, 8, 9
_OFFSET_INDEX, _COLUMN_INDEX = (4, 5), (6, 7)
# ColumnMetaData
_TYPE, _PATH, _CODEC, _VALUES, _SIZE, _STATISTICS = 1, 3, 4, 5, 7, 12
_DATA, _INDEX, _DICTIONARY = 9, 10, 11
_BLOOM: Final = (14, 15)
# Statistics: is_max_value_exact, is_min_value_exact
_EXACT: Final = (7, 8)
_FALSE: Final = 2
# OffsetIndex, PageLocation
_LOCATIONS, _PAGE_OFFSET = 1, 1
# BloomFilterHeader
_BLOOM_BYTES: Final = 1
_MOST_BLOOM: Final = 128 << 20  # specification: Bloom Filter
_MOST_ORDINAL: Final = (1 << 15) - 1
# The types for which a lookup by bytes differs from Spark's equality, see ``ParquetOutput``.
_FLOAT, _DOUBLE, _FIXED = 4, 5, 7


@dataclass(frozen=True, slots=True)
class Part:
    """A column chunk of a file: byte ranges as (offset, length), ``None`` where the file has no such part.

    pages : its pages, the dictionary first.
    values : number of values, nulls included.
    dictionary : whether it names a dictionary page.
    type, codec : their numbers in parquet.thrift.
    exact : ``False`` if the footer says that a bound is truncated.
    bloom_filter : its length is -1 if the footer does not say it.
    chunk, meta : ColumnChunk and ColumnMetaData, parsed once: to parse them takes as long as to copy a small row group.
    """

    pages: tuple[int, int]
    values: int
    dictionary: bool
    type: int
    codec: int
    exact: bool
    offset_index: tuple[int, int] | None
    column_index: tuple[int, int] | None
    bloom_filter: tuple[int, int] | None
    chunk: Struct
    meta: Struct

    @property
    def by_bytes(self) -> bool:
        """Whether equal values of the column may have different bytes, to a reader that looks them up by bytes."""
        return self.type in (_FLOAT, _DOUBLE, _FIXED)


@dataclass(frozen=True, slots=True)
class Group:
    """A row group. ``parsed``: its metadata."""

    rows: int
    parts: tuple[Part, ...]
    parsed: Struct


@dataclass(frozen=True, slots=True)
class Place:
    """Where a column chunk is in the new file.

    pages : position of its first byte.
    offset_index, column_index, bloom_filter : as (offset, length); ``None`` if the new file does not have it.
    """

    pages: int
    offset_index: tuple[int, int] | None = None
    column_index: tuple[int, int] | None = None
    bloom_filter: tuple[int, int] | None = None


class Footer:
    """A parsed footer. ``size``: bytes of its file; every part must be within them.

    Raises
    ------
    ThriftError : it is damaged, also by ``group``.
    """

    def __init__(self, data: bytes, size: int) -> None:
        # A signed footer is followed by its signature.
        self._file, _ = Struct.parse_first(data)
        self._size = size
        self._groups = self._file.list(_GROUPS, STRUCT)

    @property
    def encrypted(self) -> bool:
        """Whether it is signed or has encrypted columns."""
        return bool({_ENCRYPTION, _SIGNING} & self._file.fields.keys())

    @property
    def created_by(self) -> str:
        value = self._file.fields.get(_CREATED_BY)
        return "" if value is None else binary(value).decode(errors="replace")

    @property
    def has_orders(self) -> bool:
        """Whether it defines how bounds compare."""
        return _ORDERS in self._file.fields

    @property
    def schema(self) -> list[Struct]:
        """The elements of the schema, depth first."""
        return [Struct.parse(element) for element in self._file.list(_SCHEMA, STRUCT)]

    @property
    def schema_data(self) -> bytes:
        """The encoded schema."""
        value = self._file.fields.get(_SCHEMA)
        return b"" if value is None else value.data

    @property
    def groups(self) -> list[bytes]:
        """The encoded metadata of all row groups."""
        return self._groups

    def __len__(self) -> int:
        return len(self._groups)

    def group(self, index: int) -> Group:
        group = Struct.parse(self._groups[index])
        parts = tuple(self._part(Struct.parse(chunk)) for chunk in group.list(_COLUMNS, STRUCT))
        return Group(_required(group, _GROUP_ROWS), parts, group)

    def _part(self, chunk: Struct) -> Part:
        meta = chunk.struct(_META)
        if meta is None or {_CRYPTO, _ENCRYPTED} & chunk.fields.keys():
            raise ThriftError("a column chunk is encrypted")
        if _FILE_PATH in chunk.fields:
            raise ThriftError("a column chunk is in another file")
        stats = meta.struct(_STATISTICS)
        exact = stats is None or not any(id_ in stats.fields and stats.fields[id_].kind == _FALSE for id_ in _EXACT)
        return Part(
            self._inside(_start(meta), _required(meta, _SIZE)),
            _required(meta, _VALUES),
            (meta.integer(_DICTIONARY) or 0) > 0,
            _required(meta, _TYPE),
            _required(meta, _CODEC),
            exact,
            self._optional(chunk, *_OFFSET_INDEX),
            self._optional(chunk, *_COLUMN_INDEX),
            self._bloom(meta),
            chunk,
            meta,
        )

    def _optional(self, struct: Struct, offset: int, length: int) -> tuple[int, int] | None:
        start, size = struct.integer(offset), struct.integer(length)
        return None if not start or not size else self._inside(start, size)

    def _bloom(self, meta: Struct) -> tuple[int, int] | None:
        start, size = (meta.integer(id_) for id_ in _BLOOM)
        if not start:
            return None
        return self._inside(start, size) if size else (self._inside(start, 1)[0], -1)

    def _inside(self, start: int, length: int) -> tuple[int, int]:
        if start < 0 or length < 0 or start + length > self._size:
            raise ThriftError(f"{length} bytes from {start} are not inside the file")
        return start, length


def joined(groups: Sequence[Group]) -> Group:
    """A row group with the columns of all of these, which have the same rows; to be :func:`moved` to its file."""
    first, *more = groups
    if not more:
        return first
    parsed = first.parsed.copy()
    for size in (_BYTES, _COMPRESSED):
        parsed.replace(size, number(I64, sum(_required(group.parsed, size) for group in groups)))
    return Group(first.rows, tuple(part for group in groups for part in group.parts), parsed)


def moved(group: Group, places: Sequence[Place], paths: Sequence[Value]) -> bytes:
    """The metadata of a row group whose column chunks are now at ``places``. ``paths``: of the columns in the schema of
    the new file.
    """
    parsed = group.parsed.copy()
    chunks = zip(group.parts, places, paths, strict=True)
    parsed.replace(_COLUMNS, list_of(STRUCT, [_moved_chunk(*each) for each in chunks]))
    if places:
        parsed.replace(_GROUP_OFFSET, number(I64, min(place.pages for place in places)))
    return parsed.encode()


def _moved_chunk(part: Part, place: Place, path: Value) -> bytes:
    chunk, meta = part.chunk.copy(), part.meta.copy()
    shift = place.pages - part.pages[0]
    for id_ in (_DATA, _INDEX, _DICTIONARY):
        # Some writers store 0 for a page that they don't have.
        if old := meta.integer(id_):
            meta.replace(id_, number(I64, old + shift))
    meta.replace(_PATH, path)
    for id_ in _BLOOM:
        meta.fields.pop(id_, None)
    if place.bloom_filter is not None:
        meta.replace(_BLOOM[0], number(I64, place.bloom_filter[0]))
        meta.replace(_BLOOM[1], number(I32, place.bloom_filter[1]))
    # Deprecated: the position of a copy of the metadata, which no reader uses and new writers set to 0.
    chunk.replace(_FILE_OFFSET, number(I64, 0))
    chunk.replace(_META, Value(STRUCT, meta.encode()))
    for (offset, length), at in ((_OFFSET_INDEX, place.offset_index), (_COLUMN_INDEX, place.column_index)):
        if at is None:
            chunk.fields.pop(offset, None)
            chunk.fields.pop(length, None)
        else:
            chunk.replace(offset, number(I64, at[0]))
            chunk.replace(length, number(I32, at[1]))
    return chunk.encode()


def moved_offset_index(data: bytes, shift: int, pages: Sequence[int]) -> bytes:
    """An offset index whose pages have moved by ``shift``.

    pages : where the data pages were, in the old file.

    Raises
    ------
    ThriftError : it is damaged, or names other pages.
    """
    index = Struct.parse(data)
    old = [Struct.parse(item) for item in index.list(_LOCATIONS, STRUCT)]
    if [location.integer(_PAGE_OFFSET) for location in old] != list(pages):
        raise ThriftError("an offset index does not match the pages of its column chunk")
    locations = []
    for location, offset in zip(old, pages, strict=True):
        location.replace(_PAGE_OFFSET, number(I64, offset + shift))
        locations.append(location.encode())
    index.replace(_LOCATIONS, list_of(STRUCT, locations))
    return index.encode()


def bloom_filter_size(head: bytes) -> int:
    """Bytes of the Bloom filter that ``head`` begins with. Raises ThriftError."""
    header, end = Struct.parse_first(head)
    size = _required(header, _BLOOM_BYTES)
    if not 0 <= size <= _MOST_BLOOM:
        raise ThriftError(f"a Bloom filter has {size} bytes")
    return end + size


def composed(template: bytes, groups: Iterable[bytes], keys: Mapping[bytes, bytes]) -> bytes:
    """A footer with these row groups, numbered in their order, and keys.

    template : a footer with the schema of all row groups. The new one has its version, schema, orders and writer.
    """
    file = Struct.parse(template)
    rows = 0
    numbered = []
    for ordinal, data in enumerate(groups):
        group = Struct.parse(data)
        rows += _required(group, _GROUP_ROWS)
        if ordinal <= _MOST_ORDINAL:
            group.replace(_ORDINAL, number(I16, ordinal))
        else:
            group.fields.pop(_ORDINAL, None)
        numbered.append(group.encode())
    file.replace(_ROWS, number(I64, rows))
    file.replace(_GROUPS, list_of(STRUCT, numbered))
    file.fields.pop(_KEYS, None)
    if keys:
        file.replace(_KEYS, list_of(STRUCT, [_key(*pair) for pair in keys.items()]))
    return file.encode()


def written_by(footer: bytes, created_by: str) -> bytes:
    """The footer with this writer."""
    file = Struct.parse(footer)
    name = created_by.encode()
    file.replace(_CREATED_BY, Value(BINARY, varint(len(name)) + name))
    return file.encode()


def _key(name: bytes, value: bytes) -> bytes:
    return Struct({id_: Value(BINARY, varint(len(text)) + text) for id_, text in ((1, name), (2, value))}).encode()


def _start(meta: Struct) -> int:
    """The first byte of a column chunk. An offset of 0 is one that the writer did not set."""
    offsets = [found for id_ in (_DATA, _INDEX, _DICTIONARY) if (found := meta.integer(id_))]
    if not offsets:
        raise ThriftError("a column chunk does not say where it begins")
    return min(offsets)


def _required(struct: Struct, id_: int) -> int:
    found = struct.integer(id_)
    if found is None:
        raise ThriftError(f"a struct lacks field {id_}")
    return found
