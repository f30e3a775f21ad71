"""Files of lines, packed by one of Hadoop's codecs, which the end of a file's name tells."""

from __future__ import annotations

import bz2
import hashlib
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final, Protocol

import pyarrow as pa

from dv_maintenance.errors import DamagedTableError, RefusedError
from dv_maintenance.files.varint import MAX_BYTES, read_varint

MARK: Final = b"\xef\xbb\xbf"
"""The byte order mark. Paimon's readers take one at the begin of a file for no part of its first line."""

_CHUNK: Final = 1 << 20
# A block is unpacked into a buffer of 256 KiB by Hadoop.
_BLOCK: Final = 128 << 10
_INT: Final = 4


def lines_of(file: Any) -> Iterator[list[bytes]]:
    r"""The lines of a file. As in Java's ``BufferedReader``, a line ends with a line feed, a carriage return, or both.

    >>> import io
    >>> list(lines_of(io.BytesIO(b"a\r\n\nb\rc")))
    [[b'a', b'', b'b'], [b'c']]
    """
    return _lines(_chunks(file))


def unpacked_lines(file: Any, packed: str) -> Iterator[list[bytes]]:
    """:func:`lines_of` a packed file.

    packed : one of CODECS.

    Raises
    ------
    DamagedTableError : it can't be unpacked. The message does not name the file.
    RefusedError : Hadoop wrote a block of LZ4 in several parts.
    """
    try:
        yield from _lines(_UNPACKERS[packed](file))
    except (pa.ArrowException, OSError, zlib.error) as error:
        if getattr(error, "errno", None) is not None:
            raise  # of the storage
        raise DamagedTableError(f"it is not what {packed} says: {error}") from error


def _lines(chunks: Iterator[bytes]) -> Iterator[list[bytes]]:
    rest: list[bytes] = []  # of a line that goes on, which may be longer than many chunks
    for chunk in chunks:
        # A line feed may follow in the next chunk.
        new = rest.pop() + chunk if rest and rest[-1].endswith(b"\r") else chunk
        end = max(new.rfind(b"\n"), new.rfind(b"\r", 0, len(new) - 1)) + 1
        if end:
            yield b"".join([*rest, new[:end]]).splitlines()
            rest = []
        if end < len(new):
            rest.append(new[end:])
    if rest:
        yield b"".join(rest).splitlines()


def joined(lines: Sequence[bytes]) -> bytes:
    """The lines as they are in a file."""
    return b"".join(line + b"\n" for line in lines)


# -- some lines as a file of their own ---------------------------------------------------------------------------------


def cut(file: pa.NativeFile, rows: range, of: int, sink: Any, *, packed: str) -> None:
    """Write some lines, packed as the file is.

    of : how many lines the file has.

    Raises
    ------
    DamagedTableError, RefusedError : as :func:`unpacked_lines`; or it has another number of lines.
    """
    packer = packer_of(packed)
    for lines in _some(file, rows, of, packed):
        sink.write(packer.compress(joined(lines)))
    sink.write(packer.flush())


def digest(file: pa.NativeFile, rows: range, of: int, *, packed: str) -> str:
    """Of the bytes of some lines. Raises as :func:`cut`."""
    found = hashlib.blake2b()
    for lines in _some(file, rows, of, packed):
        found.update(joined(lines))
    return found.hexdigest()


def _some(file: pa.NativeFile, rows: range, of: int, packed: str) -> Iterator[list[bytes]]:
    file.seek(0)
    first = 0
    for lines in unpacked_lines(file, packed):
        yield lines[max(rows.start - first, 0) : max(rows.stop - first, 0)]
        first += len(lines)
    if first != of:
        raise DamagedTableError(f"it has {first} lines, not {of}")


# -- codecs ------------------------------------------------------------------------------------------------------------


class Packer(Protocol):
    """Packs what it is given; ``flush`` is for the end of the file."""

    def compress(self, data: bytes, /) -> bytes: ...
    def flush(self) -> bytes: ...


def packer_of(packed: str) -> Packer:
    """``packed``: one of CODECS."""
    return _PACKERS[packed]()


class _Plain:
    def compress(self, data: bytes, /) -> bytes:
        return data

    def flush(self) -> bytes:
        return b""


class _Zstd:
    """One frame."""

    def __init__(self) -> None:
        self._packed = bytearray()
        self._stream = pa.CompressedOutputStream(pa.PythonFile(self, mode="w"), "zstd")

    closed = False

    def write(self, data: Any) -> int:
        self._packed += data
        return len(memoryview(data).cast("B"))

    def close(self) -> None:
        """Nothing is to be closed."""

    def compress(self, data: bytes, /) -> bytes:
        self._stream.write(data)
        return self._taken()

    def flush(self) -> bytes:
        self._stream.close()
        return self._taken()

    def _taken(self) -> bytes:
        found = bytes(self._packed)
        self._packed.clear()
        return found


class _Blocks:
    """Hadoop's framing of codecs that pack a block at once: the length of what is packed, then for each part of it the
    length that it has packed, and its bytes. Here each block has one part.
    """

    def __init__(self, codec: str) -> None:
        self._codec, self._rest = pa.Codec(codec), b""

    def compress(self, data: bytes, /) -> bytes:
        self._rest += data
        whole = len(self._rest) // _BLOCK * _BLOCK
        found = b"".join(self._block(self._rest[at : at + _BLOCK]) for at in range(0, whole, _BLOCK))
        self._rest = self._rest[whole:]
        return found

    def flush(self) -> bytes:
        return self._block(self._rest) if self._rest else b""

    def _block(self, data: bytes) -> bytes:
        packed: bytes = self._codec.compress(data, asbytes=True)
        return len(data).to_bytes(_INT, "big") + len(packed).to_bytes(_INT, "big") + packed


def _chunks(file: Any) -> Iterator[bytes]:
    return iter(partial(file.read, _CHUNK), b"")


class _LeftOpen:
    """Reads a file, which stays open when Arrow is done with what it unpacked."""

    closed = False

    def __init__(self, file: Any) -> None:
        self.read = file.read

    def close(self) -> None:
        """The file is read again."""


def _by_arrow(file: Any, codec: str) -> Iterator[bytes]:
    return _chunks(pa.CompressedInputStream(pa.PythonFile(_LeftOpen(file), mode="r"), codec))


def _inflated(file: Any) -> Iterator[bytes]:
    stream = zlib.decompressobj()
    for chunk in _chunks(file):
        packed = chunk
        while packed:
            yield stream.decompress(packed, _CHUNK)
            packed = stream.unconsumed_tail
    yield stream.flush()
    if not stream.eof or stream.unused_data:
        raise DamagedTableError("its stream of deflate is truncated, or not the only one")


def _unblocked(file: Any, length: Callable[[pa.Codec, bytes, int], int], codec: str) -> Iterator[bytes]:
    """See ``_Blocks``. ``length``: that of an unpacked part, which at most has the given one."""
    unpacker = pa.Codec(codec)
    while head := file.read(_INT):
        left = _number(head)
        while left:
            packed = file.read(size := _number(file.read(_INT)))
            if len(packed) < size:
                raise DamagedTableError(f"its last block of {codec} is truncated")
            part = length(unpacker, packed, left)
            if not 0 < part <= left:
                raise DamagedTableError(f"a part of a block of {codec} has {part} bytes, not 1 to {left}")
            yield unpacker.decompress(packed, part, asbytes=True)
            left -= part


def _number(data: bytes) -> int:
    if len(data) < _INT:
        raise DamagedTableError("it ends within the length of a block")
    return int.from_bytes(data, "big")


def _snappy_length(codec: pa.Codec, packed: bytes, left: int) -> int:
    """It begins with it."""
    del codec, left
    try:
        return read_varint(packed[:MAX_BYTES], 0)[0]
    except IndexError as error:
        raise DamagedTableError("a part of a block of snappy has no length") from error


def _lz4_length(codec: pa.Codec, packed: bytes, left: int) -> int:
    """LZ4 does not say it: all that is left, if it does not fit into less."""
    try:
        codec.decompress(packed, left - 1)
    except OSError:
        return left
    raise RefusedError(
        "a block of LZ4 has several parts, whose lengths it does not tell",
        next_step="let the table's own engine rewrite the file",
    )


_UNPACKERS: Final[Mapping[str, Callable[[Any], Iterator[bytes]]]] = {
    "": _chunks,
    ".gz": partial(_by_arrow, codec="gzip"),
    ".bz2": partial(_by_arrow, codec="bz2"),
    ".zst": partial(_by_arrow, codec="zstd"),
    ".deflate": _inflated,
    ".snappy": partial(_unblocked, length=_snappy_length, codec="snappy"),
    ".lz4": partial(_unblocked, length=_lz4_length, codec="lz4_raw"),
}
_PACKERS: Final[Mapping[str, Callable[[], Packer]]] = {
    "": _Plain,
    ".gz": partial(zlib.compressobj, wbits=zlib.MAX_WBITS | 16),
    ".bz2": bz2.BZ2Compressor,
    ".zst": _Zstd,
    ".deflate": zlib.compressobj,
    ".snappy": partial(_Blocks, "snappy"),
    ".lz4": partial(_Blocks, "lz4_raw"),
}
CODECS: Final = frozenset(_PACKERS)
"""The ends of names; without one, a file is not packed."""
