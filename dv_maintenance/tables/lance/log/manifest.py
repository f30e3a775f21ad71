"""A manifest: the whole state of one version of a Lance table.

Format: the Manifest message of Lance's table.proto. The file consists of sections, each a ``uint32`` length and a
message. Its last 16 bytes are the position of the manifest's section (``uint64``), two ``uint16`` and ``LANC``.
Everything is little-endian. The manifest gives the positions of the index section and of the transaction that made the
version, so one read of one file gets them all.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

from dv_maintenance.dv.lance import ARRAY, BITMAP
from dv_maintenance.errors import DamagedTableError
from dv_maintenance.files.lance_footer import MAGIC
from dv_maintenance.files.protobuf import BYTES, INTS, VARINT, Message, Shape, parse, text

_TAIL: Final = struct.Struct("<QHH4s")

_MANIFEST: Final[Shape] = {
    1: BYTES,  # fields
    2: BYTES,  # fragments
    3: VARINT,  # version
    5: BYTES,  # schema metadata
    6: VARINT,  # position of the index section
    7: BYTES,  # timestamp
    9: VARINT,  # reader flags
    10: VARINT,  # writer flags
    11: VARINT,  # highest fragment id
    12: BYTES,  # transaction file
    13: BYTES,  # writer
    14: VARINT,  # next row id
    15: BYTES,  # data format
    16: BYTES,  # config
    18: BYTES,  # base paths
    19: BYTES,  # table metadata
    20: BYTES,  # branch
    21: VARINT,  # position of the transaction, from older writers
    22: BYTES,  # fragment tree
    23: VARINT,  # position of the transaction
}
_TIMESTAMP: Final[Shape] = {1: VARINT, 2: VARINT}
_WRITER: Final[Shape] = {1: BYTES, 2: BYTES, 3: BYTES}
_FORMAT: Final[Shape] = {1: BYTES, 2: BYTES}
_BASE: Final[Shape] = {1: VARINT, 2: BYTES, 3: VARINT, 4: BYTES}
_FRAGMENT: Final[Shape] = {1: VARINT, 2: BYTES, 3: BYTES, 4: VARINT, 5: BYTES, 6: BYTES, 11: BYTES, 12: BYTES}
# Row ids: in the manifest, in a file of their own (old drafts only), or in a column of a data file.
_ROW_IDS: Final = (5, 6, 12)
_DATA_FILE: Final[Shape] = {1: BYTES, 4: VARINT, 5: VARINT, 6: VARINT, 7: VARINT}
_DELETION: Final[Shape] = {1: VARINT, 2: VARINT, 3: VARINT, 4: VARINT, 7: VARINT}
_INDICES: Final[Shape] = {1: BYTES}
_INDEX: Final[Shape] = {1: BYTES, 2: INTS, 3: BYTES, 4: VARINT, 5: BYTES, 6: BYTES, 9: VARINT}
_UUID: Final[Shape] = {1: BYTES}
_ANY: Final[Shape] = {1: BYTES}

# DeletionFileType -> codec and file extension.
_KINDS: Final = {0: (ARRAY, "arrow"), 1: (BITMAP, "bin")}
_MAX_FRAGMENT: Final = (1 << 32) - 1
_MAX_ROWS: Final = 1 << 32
_MAX_PATH: Final = 1000  # characters; file systems and object stores allow fewer


@dataclass(frozen=True, slots=True)
class DataFile:
    """A file with some columns of a fragment.

    path : relative to the ``data`` folder of its base.
    size : bytes; ``None`` if the manifest has no size.
    base_id : id of its base path; ``None`` for the table itself.
    version : of the file format, major and minor.
    """

    path: str
    size: int | None
    base_id: int | None
    version: tuple[int, int]


@dataclass(frozen=True, slots=True)
class DeletionFile:
    """The file that lists the deleted rows of its fragment.

    codec : the encoding of its offsets.
    name : file name in the ``_deletions`` folder of its base.
    read_version : the version that it is based on.
    count : how many rows it lists; ``None`` if the manifest has no count.
    base_id : id of its base path; ``None`` for the table itself.
    """

    codec: str
    name: str
    read_version: int
    count: int | None
    base_id: int | None


@dataclass(frozen=True, slots=True)
class Fragment:
    """Rows of the table, in one or more data files with equal row counts.

    physical_rows : rows including deleted ones; ``None`` if the manifest has no count.
    overlays : number of overlay files, which replace the values of single cells.
    """

    id: int
    files: tuple[DataFile, ...]
    deletion: DeletionFile | None
    physical_rows: int | None
    has_row_ids: bool
    overlays: int


@dataclass(frozen=True, slots=True)
class BasePath:
    """Another location of files of the table: the root of a dataset, or a folder of files."""

    id: int
    path: str
    is_root: bool
    name: str


@dataclass(frozen=True, slots=True)
class Index:
    """An index.

    version : the table version that it was built from.
    kind : the type URL of its details; "" in old tables.
    fragments : ids of the fragments that it covers, a portable 32-bit bitmap; empty if the manifest has none.
    """

    uuid: str
    name: str
    field_ids: tuple[int, ...]
    version: int
    kind: str
    fragments: bytes
    base_id: int | None


@dataclass(frozen=True, slots=True)
class Manifest:
    """One version, checked. Parts that are seldom needed stay serialised messages.

    timestamp : epoch milliseconds.
    writer : library and version; ``None`` for old writers, whose counts are unreliable.
    max_fragment_id : ``None`` before the first fragment.
    branch : ``None`` is the main branch.
    has_tree : the fragments are in a separate tree.
    field_records, fragment_records, index_section : serialised messages.
    transaction : serialised message; ``None`` if it is in a separate file, or missing.
    path : of the manifest's file, relative to the table's root.
    """

    version: int
    timestamp: int
    reader_flags: int
    writer_flags: int
    writer: str | None
    max_fragment_id: int | None
    next_row_id: int
    data_format: tuple[str, str]
    transaction_file: str
    branch: str | None
    has_tree: bool
    config: Mapping[str, str]
    table_metadata: Mapping[str, str]
    schema_metadata: Mapping[str, bytes]
    base_paths: Mapping[int, BasePath]
    field_records: tuple[bytes, ...] = field(repr=False)
    fragment_records: tuple[bytes, ...] = field(repr=False)
    transaction: bytes | None = field(repr=False)
    index_section: bytes | None = field(repr=False)
    path: str = ""

    def fragments(self, known: Mapping[bytes, Fragment] | None = None) -> tuple[Fragment, ...]:
        """The parsed fragments. ``known``: fragments that were parsed before, by record.

        Raises DamagedTableError, also if two of them share an id.
        """
        known = known or {}
        found = tuple(known.get(record) or parse_fragment(record) for record in self.fragment_records)
        if len({fragment.id for fragment in found}) < len(found):
            ids = sorted(fragment.id for fragment in found)
            twice = next(first for first, second in pairwise(ids) if first == second)
            raise DamagedTableError(f"fragment {twice} occurs twice")
        return found

    def indices(self) -> tuple[Index, ...]:
        """The parsed indices. Raises DamagedTableError."""
        section = parse(self.index_section or b"", _INDICES)
        return tuple(_index(parse(record, _INDEX)) for record in section.each(1))


def parse_manifest(data: bytes, path: str = "", *, detached: bool = False) -> Manifest:
    """Parse the manifest of a file at ``path``.

    detached : the version is outside the history; the top bit of its 64-bit number is set.

    Raises
    ------
    DamagedTableError : with the reason, but without the table and the file.
    """
    if len(data) < _TAIL.size:
        raise DamagedTableError(f"truncated: {len(data)} bytes are too few for a manifest")
    position, _, _, magic = _TAIL.unpack(data[-_TAIL.size :])
    if magic != MAGIC:
        raise DamagedTableError("it does not end with the magic number LANC: truncated, or not a manifest")
    body = parse(_section(data, position, "manifest"), _MANIFEST)
    version = body.uint(3)
    if version == 0 or (version >> 63 == 1) != detached:
        raise DamagedTableError(f"version {version} does not exist")
    data_format = body.message(15, _FORMAT)
    bases = [_base_path(parse(record, _BASE)) for record in body.each(18)]
    return Manifest(
        version=version,
        timestamp=_millis(body.message(7, _TIMESTAMP)),
        reader_flags=body.uint(9),
        writer_flags=body.uint(10),
        writer=_writer(body.message(13, _WRITER)),
        max_fragment_id=body.uint(11) if body.has(11) else None,
        next_row_id=body.uint(14),
        data_format=(data_format.text(1), data_format.text(2)) if data_format else ("", ""),
        transaction_file=body.text(12),
        branch=body.text(20) or None,
        has_tree=body.has(22),
        config={key: text(value) for key, value in body.mapping(16).items()},
        table_metadata={key: text(value) for key, value in body.mapping(19).items()},
        schema_metadata=body.mapping(5),
        base_paths={base.id: base for base in bases},
        field_records=tuple(body.each(1)),
        fragment_records=tuple(body.each(2)),
        transaction=_transaction(data, body),
        index_section=_section(data, body.uint(6), "index section") if body.has(6) else None,
        path=path,
    )


def parse_fragment(record: bytes) -> Fragment:
    """A DataFragment message. Raises DamagedTableError."""
    body = parse(record, _FRAGMENT)
    number, rows = body.uint(1), body.optional_uint(4)
    if number > _MAX_FRAGMENT:
        raise DamagedTableError(f"fragment id {number} is above {_MAX_FRAGMENT}")
    if rows and rows > _MAX_ROWS:
        raise DamagedTableError(f"fragment {number} has {rows} rows, more than {_MAX_ROWS}")
    deletion = body.message(3, _DELETION)
    return Fragment(
        id=number,
        files=tuple(_data_file(parse(each, _DATA_FILE), number) for each in body.each(2)),
        deletion=_deletion(deletion, number) if deletion else None,
        physical_rows=rows,
        has_row_ids=any(body.has(number) for number in _ROW_IDS),
        overlays=len(body.each(11)),
    )


def _section(data: bytes, position: int, what: str) -> bytes:
    end = len(data) - _TAIL.size
    if position + 4 > end:
        raise DamagedTableError(f"the {what} begins at byte {position} of {len(data)}")
    (length,) = struct.unpack_from("<I", data, position)
    if position + 4 + length > end:
        raise DamagedTableError(f"the {what} has {length} bytes from byte {position} on, but the file has {len(data)}")
    return data[position + 4 : position + 4 + length]


def _transaction(data: bytes, body: Message) -> bytes | None:
    """The serialised transaction, ``None`` if it cannot be found. Only the history needs it."""
    for number in (23, 21):
        if body.has(number):
            try:
                return _section(data, body.uint(number), "transaction")
            except DamagedTableError:
                return None
    return None


def _millis(timestamp: Message | None) -> int:
    return timestamp.sint(1) * 1000 + timestamp.uint(2) // 1_000_000 if timestamp else 0


def _writer(writer: Message | None) -> str | None:
    if writer is None:
        return None
    version = "-".join(filter(None, (writer.text(2), writer.text(3))))
    return f"{writer.text(1)} {version}".strip() or None


def _base_path(body: Message) -> BasePath:
    path = body.text(4)
    if not path.isprintable():
        raise DamagedTableError(f"base path {body.uint(1)} is called {path[:200]!r}, which is not the name of a folder")
    return BasePath(body.uint(1), path, bool(body.uint(3)), body.text(2))


def _data_file(body: Message, fragment: int) -> DataFile:
    path = body.text(1)
    _check_inside(path, f"data file of fragment {fragment}")
    return DataFile(
        path=path,
        size=body.optional_uint(6),
        base_id=body.uint(7) if body.has(7) else None,
        version=(body.uint(4), body.uint(5)),
    )


def _deletion(body: Message, fragment: int) -> DeletionFile:
    kind = body.uint(1)
    if kind not in _KINDS:
        raise DamagedTableError(f"the deletion file of fragment {fragment} is of the unknown kind {kind}")
    codec, extension = _KINDS[kind]
    count = body.optional_uint(4)
    if count and count > _MAX_ROWS:
        raise DamagedTableError(f"{count} rows of fragment {fragment} are deleted, more than a fragment can have")
    return DeletionFile(
        codec=codec,
        name=f"{fragment}-{body.uint(2)}-{body.uint(3)}.{extension}",
        read_version=body.uint(2),
        count=count,
        base_id=body.uint(7) if body.has(7) else None,
    )


def _index(body: Message) -> Index:
    uuid, details = body.message(1, _UUID), body.message(6, _ANY)
    raw = uuid.data(1) if uuid else b""
    if len(raw) != 16:
        raise DamagedTableError(f"index {body.text(3)!r} has a UUID of {len(raw)} bytes")
    return Index(
        uuid="-".join(raw.hex()[start:stop] for start, stop in ((0, 8), (8, 12), (12, 16), (16, 20), (20, 32))),
        name=body.text(3),
        field_ids=tuple(body.ints(2)),
        version=body.uint(4),
        kind=details.text(1) if details else "",
        fragments=body.data(5),
        base_id=body.uint(9) if body.has(9) else None,
    )


def _check_inside(path: str, what: str) -> None:
    outside = not path or path.startswith("/") or "://" in path or ".." in path.split("/")
    if outside or len(path) > _MAX_PATH or not path.isprintable():
        raise DamagedTableError(f"the {what} is called {path[:200]!r}, which is not a path inside the table")
