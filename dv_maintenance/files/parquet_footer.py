"""Parquet footers as bytes: changes that Arrow's reader and writer do not offer.

Field ids are those of parquet.thrift (apache/parquet-format).
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from dv_maintenance.errors import RefusedError
from dv_maintenance.files.parquet_checks import check_footer, encrypted_file
from dv_maintenance.files.thrift_compact import I32, STRUCT, Struct, ThriftError, Value, binary, list_of, number

if TYPE_CHECKING:
    import pyarrow.parquet as pq

MAGIC: Final = b"PAR1"
_ENCRYPTED: Final = b"PARE"
_END: Final = 8  # the footer's length, and the magic
_TAIL: Final = 64 << 10

ARROW_SCHEMA: Final = b"ARROW:schema"
# The first field of a struct, a text of 12 bytes: the key, as every writer encodes it.
_ENTRY: Final = b"\x18\x0c" + ARROW_SCHEMA
RENAMED: Final = b"arrow:schema"
# FileMetaData
_SCHEMA, _ROW_GROUPS, _KEY_VALUES = 2, 4, 5
# SchemaElement; the type is also the first field of ColumnMetaData
_TYPE, _TYPE_LENGTH, _NUM_CHILDREN = 1, 2, 5
# Type: INT96, FIXED_LEN_BYTE_ARRAY
_INT96, _FIXED = 3, 7
_INT96_BYTES: Final = 12
# KeyValue
_KEY: Final = 1
# RowGroup
_COLUMNS: Final = 1
# ColumnChunk
_META_DATA, _COLUMN_INDEX = 3, (6, 7)
# ColumnMetaData
_ENCODINGS, _STATISTICS, _ENCODING_STATS = 2, 12, 13
# Encoding
_PLAIN: Final = b"\x00"
# Statistics: max, min, max_value, min_value, is_max_value_exact, is_min_value_exact
_BOUNDS: Final = (1, 2, 5, 6, 7, 8)


def open_parquet_file(file: pa.NativeFile, footer: Any = None, **options: Any) -> pq.ParquetFile:
    """The file with the types that Parquet itself declares.

    footer : the result of :func:`read_footer`, if it was read already.
    options : of ``ParquetFile``.

    Writers that use Arrow store an Arrow schema as well. It is ignored, as by Spark: it may declare types that Parquet
    lacks, in layouts that Arrow can't convert, or be damaged.

    Raises
    ------
    pa.ArrowException, OSError : it is not a Parquet file.
    RefusedError : it is encrypted, in a codec that is not known, or has a type that this release of pyarrow does not
        know; does not name the file.
    """
    import pyarrow.parquet as pq

    return pq.ParquetFile(file, metadata=read_footer(file) if footer is None else footer, **options)


def read_footer(file: pa.NativeFile) -> Any:
    """The ``pyarrow.parquet.FileMetaData`` of a file, without an Arrow schema. Raises as ``open_parquet_file``."""
    data = footer_bytes(file)
    if data is None:
        import pyarrow.parquet as pq

        return pq.ParquetFile(file).metadata  # raises with the reason
    try:
        found = parsed(data) if ARROW_SCHEMA not in data else _without_arrow_schema(data)
        cut = check_footer(data, found)
        if any(cut):
            found = parsed(without_claims(data, cut, [set()] * len(cut)))
    except ThriftError as error:
        raise pa.ArrowInvalid(f"the footer is damaged: {error}") from error
    return found


def has_damaged_arrow_schema(footer: Any) -> bool:
    """Whether the file has an Arrow schema that nobody can decode. ``footer``: the result of :func:`read_footer`."""
    text = (footer.metadata or {}).get(RENAMED)
    try:
        if text is not None:
            pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text, validate=True)))
    except pa.ArrowNotImplementedError:
        return False  # of a newer release
    except (pa.ArrowException, OSError, ValueError):
        return True
    return False


def encoded(footer: Any) -> bytes:
    """The bytes of a ``pyarrow.parquet.FileMetaData``, exactly as a writer of this Arrow stores them."""
    sink = pa.BufferOutputStream()
    footer.write_metadata_file(sink)
    stored: bytes = sink.getvalue().to_pybytes()
    return stored[len(MAGIC) : -_END]


def framed(footer: bytes) -> bytes:
    """The end of a file with this footer. Readers begin at the end, so only the last one of several footers counts."""
    return footer + len(footer).to_bytes(4, "little") + MAGIC


def with_bytes(footer: Any, leaves: Collection[int]) -> Any:
    """The footer with leaves of INT96 as if they were of 12 bytes, which are stored in the same way."""

    def as_bytes(element: Struct) -> None:
        element.replace(_TYPE, number(I32, _FIXED))
        element.replace(_TYPE_LENGTH, number(I32, _INT96_BYTES))

    def without_bounds(meta: Struct) -> None:
        meta.replace(_TYPE, number(I32, _FIXED))
        meta.fields.pop(_STATISTICS, None)

    return parsed(_changed(encoded(footer), leaves, as_bytes, without_bounds))


def with_int96(footer: bytes, leaves: Collection[int]) -> bytes:
    """The footer with leaves of 12 bytes as INT96, which are stored in the same way. Their bounds are left."""

    def as_int96(element: Struct) -> None:
        element.replace(_TYPE, number(I32, _INT96))
        element.fields.pop(_TYPE_LENGTH, None)

    return _changed(footer, leaves, as_int96, lambda meta: meta.replace(_TYPE, number(I32, _INT96)))


def _changed(
    footer: bytes,
    leaves: Collection[int],
    element_change: Callable[[Struct], None],
    meta_change: Callable[[Struct], None],
) -> bytes:
    """The footer with changed leaves, in the schema and in the metadata of all column chunks."""
    file = Struct.parse(footer)
    schema, leaf = [], 0
    for data in file.list(_SCHEMA, STRUCT):
        element = Struct.parse(data)
        if not element.integer(_NUM_CHILDREN):
            if leaf in leaves:
                element_change(element)
            leaf += 1
        schema.append(element.encode())
    file.replace(_SCHEMA, list_of(STRUCT, schema))
    groups = []
    for data in file.list(_ROW_GROUPS, STRUCT):
        group = Struct.parse(data)
        chunks = []
        for at, each in enumerate(group.list(_COLUMNS, STRUCT)):
            chunk = Struct.parse(each)
            if at in leaves and (meta := chunk.struct(_META_DATA)) is not None:
                meta_change(meta)
                chunk.replace(_META_DATA, Value(STRUCT, meta.encode()))
            chunks.append(chunk.encode())
        group.replace(_COLUMNS, list_of(STRUCT, chunks))
        groups.append(group.encode())
    file.replace(_ROW_GROUPS, list_of(STRUCT, groups))
    return file.encode()


def without_claims(footer: bytes, unbounded: Sequence[Collection[int]], open_ended: Sequence[Collection[int]]) -> bytes:
    """The footer without some claims about columns. Both arguments have column numbers for each row group.

    unbounded : columns that lose minimum and maximum in their statistics and in their page index, but keep null counts.
    open_ended : columns that lose the claim that all their values are in their dictionaries.

    Raises
    ------
    ThriftError : it is not a footer, or lacks these row groups and columns.
    """
    file = Struct.parse(footer)
    groups = file.list(_ROW_GROUPS, STRUCT)
    if not len(groups) == len(unbounded) == len(open_ended):
        raise ThriftError(f"there are {len(groups)} row groups, not {len(unbounded)}")
    changed = map(_group_without, groups, unbounded, open_ended)
    file.fields[_ROW_GROUPS] = list_of(STRUCT, changed)
    return file.encode()


def _group_without(data: bytes, unbounded: Collection[int], open_ended: Collection[int]) -> bytes:
    leaves = {*unbounded, *open_ended}
    if not leaves:
        return data
    group = Struct.parse(data)
    chunks = group.list(_COLUMNS, STRUCT)
    if max(leaves) >= len(chunks):
        raise ThriftError(f"there is no column {max(leaves)}")
    for leaf in leaves:
        chunks[leaf] = _chunk_without(chunks[leaf], bounds=leaf in unbounded, dictionary=leaf in open_ended)
    group.fields[_COLUMNS] = list_of(STRUCT, chunks)
    return group.encode()


def _chunk_without(data: bytes, *, bounds: bool, dictionary: bool) -> bytes:
    chunk = Struct.parse(data)
    meta = chunk.struct(_META_DATA)
    stats = None if meta is None else meta.struct(_STATISTICS)
    if bounds:
        for id_ in _COLUMN_INDEX:
            chunk.fields.pop(id_, None)
    if meta is not None:
        if bounds and stats is not None:
            for id_ in _BOUNDS:
                stats.fields.pop(id_, None)
            meta.fields[_STATISTICS] = Value(STRUCT, stats.encode())
        if dictionary:
            meta.fields.pop(_ENCODING_STATS, None)
            # Without these, parquet-java takes a dictionary for complete if all encodings are those of dictionaries. It
            # writes one named PLAIN_DICTIONARY itself; Arrow always names PLAIN, too.
            used = meta.list(_ENCODINGS, I32)
            if _PLAIN not in used:
                meta.fields[_ENCODINGS] = list_of(I32, [*used, _PLAIN])
        chunk.fields[_META_DATA] = Value(STRUCT, meta.encode())
    return chunk.encode()


def _with_key_renamed(footer: bytes) -> Any:
    """The footer with the key of its Arrow schema overwritten by one that Arrow ignores; ``None`` if these bytes may
    have another meaning. Parsing a footer of 1,000 column chunks instead would take a hundred times as long.
    """
    if footer.count(_ENTRY) != 1 or RENAMED in footer:
        return None
    try:
        found = parsed(footer.replace(_ENTRY, _ENTRY[:2] + RENAMED))
    except pa.ArrowException:
        return None
    return found if RENAMED in (found.metadata or {}) else None


def parsed(footer: bytes) -> Any:
    """The ``pyarrow.parquet.FileMetaData`` of a footer's bytes. Raises as ``open_parquet_file``."""
    import pyarrow.parquet as pq

    try:
        return pq.ParquetFile(pa.BufferReader(MAGIC + framed(footer))).metadata
    except OSError as error:
        if "Logical type Variant" not in str(error):
            raise
        raise RefusedError(
            "it has a column of the type variant, which pyarrow 21 can't read", next_step="use pyarrow 22 or newer"
        ) from error


def _without_arrow_schema(footer: bytes) -> Any:
    return _with_key_renamed(footer) or parsed(_with_key_removed(footer))


def _with_key_removed(footer: bytes) -> bytes:
    # A signed footer is followed by its signature.
    file, end = Struct.parse_first(footer)
    pairs = file.list(_KEY_VALUES, STRUCT)
    kept = [pair for pair in pairs if _key(pair) != ARROW_SCHEMA]
    if len(kept) == len(pairs):
        return footer
    if kept:
        file.fields[_KEY_VALUES] = list_of(STRUCT, kept)
    else:
        del file.fields[_KEY_VALUES]
    return file.encode() + footer[end:]


def _key(pair: bytes) -> bytes | None:
    key = Struct.parse(pair).fields.get(_KEY)
    return None if key is None else binary(key)


def footer_bytes(file: pa.NativeFile) -> bytes | None:
    """A footer's bytes; ``None`` if the file does not end like a Parquet file. Raises RefusedError: it is encrypted."""
    size = file.size()
    if size < len(MAGIC) + _END:
        return None
    start = max(0, size - _TAIL)
    tail = file.read_at(size - start, start)
    if tail[-len(MAGIC) :] == _ENCRYPTED:
        raise encrypted_file()
    if tail[-len(MAGIC) :] != MAGIC:
        return None
    length = int.from_bytes(tail[-_END : -len(MAGIC)], "little")
    if length > size - _END - len(MAGIC):
        return None
    if length > len(tail) - _END:
        tail = file.read_at(length + _END, size - _END - length)
    return bytes(tail[-_END - length : -_END])
