"""Numbers of variable length (LEB128), as in Avro, Thrift and Protocol Buffers: seven bits to a byte, lowest first."""

from __future__ import annotations

from typing import Final

MAX_BYTES: Final = 10
"""The maximum length of a number of 64 bits."""


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    """The number at ``at``, and where it ends.

    Raises
    ------
    IndexError : the bytes end within the number.
    OverflowError : it has more than MAX_BYTES bytes.
    """
    byte = data[at]
    if byte < 0x80:
        return byte, at + 1
    found, shift = byte & 0x7F, 7
    while True:
        at += 1
        byte = data[at]
        found |= (byte & 0x7F) << shift
        if byte < 0x80:
            return found, at + 1
        shift += 7
        if shift == 7 * MAX_BYTES:
            raise OverflowError("a number has too many bytes")


def varint(number: int) -> bytes:
    """The bytes of a number that is not negative."""
    found = bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    found.append(number)
    return bytes(found)


def zigzag(number: int) -> int:
    """A signed number of 64 bits as an unsigned one, small if it is near zero."""
    return number << 1 ^ number >> 63


def unzigzag(number: int) -> int:
    """Undoes :func:`zigzag`."""
    return number >> 1 ^ -(number & 1)
