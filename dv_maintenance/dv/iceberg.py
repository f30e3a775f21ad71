"""Iceberg's deletion vectors: Delta's bitmaps in the same frame, one after the other in a Puffin file.

Format: Puffin specification, blob type ``deletion-vector-v1``. A blob is ``int32 BE size, magic and bitmap, int32 BE
CRC-32``, never compressed. A file is ``PFA1``, the blobs, and a footer: ``PFA1``, JSON, ``int32 LE`` length of the
JSON, four bytes of flags, ``PFA1``. A manifest gives offset and length of a whole blob, so that readers need no footer;
some writers store nothing but the blob.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from dv_maintenance.dv import z85
from dv_maintenance.dv.delta import PORTABLE_MAGIC, deserialize, serialize
from dv_maintenance.dv.framing import FRAME, framed, unframed
from dv_maintenance.dv.vector import DeletionVector
from dv_maintenance.errors import DamagedDeletionVectorError

if TYPE_CHECKING:
    from dv_maintenance.dv.reference import DvRef, Fetch


CODEC: Final = "iceberg"
"""Name of the codec, as a ``DvRef`` gives it."""
BLOB_TYPE: Final = "deletion-vector-v1"

_MAGIC: Final = b"PFA1"
_DV_MAGIC: Final = struct.pack("<i", PORTABLE_MAGIC)
_TAIL: Final = 12
"""Bytes of a footer after its JSON: length, flags, magic."""
_LZ4: Final = 1
# The field id of row positions, which a blob names as its field.
_POSITION_FIELD: Final = 2147483645
_MAX_SIZE: Final = 2**31 - 1
_MAX_FOOTER: Final = 256 << 20
# A manifest that claims more than this must first be backed by a file of that size.
_PROBE_ABOVE: Final = 4 << 20


# -- blobs ----------------------------------------------------------------------------------------------------------


def encode(dv: DeletionVector) -> bytes:
    """A blob, run-optimised.

    Raises
    ------
    ValueError : nothing is deleted (such a DV is never stored), a position is above MAX_POSITION, or the blob would be
        2 GiB or larger.
    """
    if not dv:
        raise ValueError("an empty deletion vector is never stored")
    bitmap = serialize(dv)
    if len(bitmap) + FRAME > _MAX_SIZE:
        raise ValueError(f"a deletion vector of {len(bitmap)} bytes does not fit into a blob of less than 2^31")
    return b"".join(framed(bitmap))


def decode(blob: bytes, length: int) -> DeletionVector:
    """The set in a blob. ``length``: its bytes according to the manifest. The bytes are validated.

    Raises
    ------
    DamagedDeletionVectorError : with the reason.
    """
    return _bitmap(unframed(blob, length - FRAME, "the manifest without the frame"))


def _bitmap(data: bytes) -> DeletionVector:
    if data[:4] != _DV_MAGIC:
        raise DamagedDeletionVectorError(f"unknown magic number {data[:4].hex()}")
    return deserialize(data)


def read(ref: DvRef, fetch: Fetch) -> DeletionVector:
    """The DV at ``ref``: the blob at ``offset`` and of ``size`` bytes, as the manifest has them, in the file ``uri``.

    The format has no inline DVs. Here they carry positions that old delete files name, see :func:`inline`.

    Raises
    ------
    DamagedDeletionVectorError : with the reason only; ``dv_codecs.load`` adds the place.
    """
    if ref.uri is None:
        return _bitmap(z85.decode(ref.inline or "")[: ref.size])
    offset, length = ref.offset or 0, ref.size
    if not 0 <= offset <= _MAX_SIZE:
        raise DamagedDeletionVectorError(f"the manifest's offset {offset} is outside 0..{_MAX_SIZE}")
    if not FRAME <= length <= _MAX_SIZE:
        raise DamagedDeletionVectorError(f"the manifest's length {length} is outside {FRAME}..{_MAX_SIZE}")
    if length > _PROBE_ABOVE and not fetch(ref.uri, offset + length - 1, 1):
        raise DamagedDeletionVectorError(f"truncated: the file ends before byte {offset + length}")
    return decode(fetch(ref.uri, offset, length), length)


def inline(dv: DeletionVector) -> tuple[str, int]:
    """The text that :func:`read` takes as ``DvRef.inline``, and the ``size`` that belongs to it."""
    data = serialize(dv)
    return z85.encode(data + bytes(-len(data) % 4)), len(data)


# -- files ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Blob:
    """A blob as the footer of its file describes it.

    compression : ``None``, ``lz4`` or ``zstd``; those of DVs are never compressed.
    """

    type: str
    offset: int
    length: int
    fields: tuple[int, ...] = (_POSITION_FIELD,)
    snapshot_id: int = -1
    sequence_number: int = -1
    compression: str | None = None
    properties: Mapping[str, str] = field(default_factory=dict)

    @property
    def data_file(self) -> str | None:
        """The data file of a DV, as its writer spelled it."""
        return self.properties.get("referenced-data-file")

    @property
    def cardinality(self) -> int | None:
        """Positions in a DV; ``None`` if the footer does not say."""
        text = self.properties.get("cardinality", "")
        return int(text) if text.isdecimal() else None

    def to_json(self) -> dict[str, Any]:
        found: dict[str, Any] = {
            "type": self.type,
            "fields": list(self.fields),
            "snapshot-id": self.snapshot_id,
            "sequence-number": self.sequence_number,
            "offset": self.offset,
            "length": self.length,
        }
        if self.compression is not None:
            found["compression-codec"] = self.compression
        return {**found, "properties": dict(self.properties)}


@dataclass(frozen=True, slots=True)
class PuffinFile:
    """The bytes of a Puffin file, and its blobs in order."""

    data: bytes
    blobs: tuple[Blob, ...]


def pack(dvs: Iterable[tuple[str, DeletionVector]], *, created_by: str) -> PuffinFile:
    """A file with the DV of each data file, in their order. Paths are those of the manifests.

    Raises
    ------
    ValueError : as :func:`encode`; the file would be 2 GiB or larger; or no DV was given.
    """
    parts, blobs, filled = [_MAGIC], list[Blob](), len(_MAGIC)
    for path, dv in dvs:
        blob = encode(dv)
        properties = {"cardinality": str(dv.cardinality), "referenced-data-file": path}
        blobs.append(Blob(BLOB_TYPE, filled, len(blob), properties=properties))
        parts.append(blob)
        filled += len(blob)
    if not blobs or filled > _MAX_SIZE:
        raise ValueError("a Puffin file needs deletion vectors" if not blobs else "deletion vectors of 2 GiB or more")
    footer = {"blobs": [each.to_json() for each in blobs], "properties": {"created-by": created_by}}
    payload = json.dumps(footer, separators=(",", ":")).encode()
    parts += [_MAGIC, payload, struct.pack("<i", len(payload)), bytes(4), _MAGIC]
    return PuffinFile(b"".join(parts), tuple(blobs))


def read_footer(uri: str, size: int, fetch: Fetch) -> tuple[Blob, ...]:
    """The blobs of a file of ``size`` bytes.

    Raises
    ------
    DamagedDeletionVectorError : it is not a Puffin file, such as one that is nothing but a blob, or its footer is
        damaged. Names the file.
    FileNotFoundError : there is no such file.
    """
    try:
        return _blobs(_footer(uri, size, fetch), size)
    except DamagedDeletionVectorError as damage:
        raise DamagedDeletionVectorError(damage.reason, file=uri) from damage
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError, pa.ArrowException) as error:
        raise DamagedDeletionVectorError(f"its footer is damaged: {error!r}", file=uri) from error


def _footer(uri: str, size: int, fetch: Fetch) -> Any:
    if size < 2 * len(_MAGIC) + _TAIL:
        raise DamagedDeletionVectorError(f"{size} bytes are too few for a Puffin file")
    tail = fetch(uri, size - _TAIL, _TAIL)
    if len(tail) != _TAIL or tail[-4:] != _MAGIC:
        raise DamagedDeletionVectorError("it does not end with Puffin's magic number")
    length, flags = struct.unpack("<iI", tail[:8])
    if not 0 < length <= min(_MAX_FOOTER, size - 2 * len(_MAGIC) - _TAIL) or flags & ~_LZ4:
        raise DamagedDeletionVectorError(f"its footer has {length} bytes and flags {flags:#x}")
    start = size - _TAIL - length - len(_MAGIC)
    data = fetch(uri, start, length + len(_MAGIC))
    if data[:4] != _MAGIC:
        raise DamagedDeletionVectorError("its footer does not begin with Puffin's magic number")
    payload = data[4:]
    if flags & _LZ4:
        try:
            with pa.CompressedInputStream(pa.BufferReader(payload), "lz4") as stream:
                payload = stream.read(_MAX_FOOTER)
        except OSError as error:
            raise DamagedDeletionVectorError(f"its footer can't be unpacked: {error}") from error
    return json.loads(payload)


def _blobs(footer: Any, size: int) -> tuple[Blob, ...]:
    found = []
    for each in footer["blobs"]:
        blob = Blob(
            type=str(each["type"]),
            offset=int(each["offset"]),
            length=int(each["length"]),
            fields=tuple(map(int, each.get("fields", ()))),
            snapshot_id=int(each.get("snapshot-id", -1)),
            sequence_number=int(each.get("sequence-number", -1)),
            compression=each.get("compression-codec"),
            properties={str(name): str(value) for name, value in (each.get("properties") or {}).items()},
        )
        if blob.offset < 0 or blob.length < 0 or blob.offset + blob.length > size:
            raise DamagedDeletionVectorError(
                f"its footer has a blob of {blob.length} bytes at {blob.offset}, the file {size} bytes"
            )
        found.append(blob)
    return tuple(found)
