"""Z85: four bytes as five printable characters (ZeroMQ RFC 32), the text form of UUIDs and inline DVs in table logs."""

from __future__ import annotations

import numpy as np

from dv_maintenance.errors import DamagedDeletionVectorError

_ALPHABET = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
_DIGIT_OF = {character: digit for digit, character in enumerate(_ALPHABET)}
_ALPHABET_BYTES = np.frombuffer(_ALPHABET.encode(), dtype=np.uint8)
_DIGITS = np.zeros(128, dtype=np.uint64)
_DIGITS[_ALPHABET_BYTES] = np.arange(85)
_POWERS = (85**4, 85**3, 85**2, 85, 1)
_POWER_ROW = np.array(_POWERS, dtype=np.uint64)
_LARGEST = 2**32 - 1
# Up to this many groups a plain loop beats the fixed cost of NumPy calls; a UUID has four.
_FEW = 16


def encode(data: bytes) -> str:
    """The text of ``data``. The caller pads to whole groups of 4 bytes.

    Raises
    ------
    ValueError : the length is not a multiple of 4.
    """
    if len(data) % 4:
        raise ValueError(f"Z85 encodes multiples of 4 bytes, not {len(data)}")
    if len(data) // 4 > _FEW:
        groups = np.frombuffer(data, dtype=">u4").astype(np.uint64)
        digits = groups[:, None] // _POWER_ROW % np.uint64(85)
        return str(_ALPHABET_BYTES[digits].tobytes(), "ascii")
    numbers = (int.from_bytes(data[at : at + 4], "big") for at in range(0, len(data), 4))
    return "".join(_ALPHABET[number // power % 85] for number in numbers for power in _POWERS)


def decode(text: str) -> bytes:
    """Decode ``text``.

    Raises
    ------
    DamagedDeletionVectorError : the length is not a multiple of 5, a character is illegal, or a group of five amounts
        to more than 2^32-1.
    """
    if len(text) % 5:
        raise DamagedDeletionVectorError(f"Z85 text of {len(text)} characters is not a multiple of 5")
    illegal = set(text) - _DIGIT_OF.keys()
    if illegal:
        raise DamagedDeletionVectorError(f"{min(illegal)!r} is not a Z85 character")
    if len(text) // 5 > _FEW:
        groups = _DIGITS[np.frombuffer(text.encode(), dtype=np.uint8)].reshape(-1, 5) @ _POWER_ROW
        _check(int(groups.max()))
        return groups.astype(">u4").tobytes()
    data = bytearray()
    for at in range(0, len(text), 5):
        group = sum(_DIGIT_OF[text[at + place]] * power for place, power in enumerate(_POWERS))
        _check(group)
        data += group.to_bytes(4, "big")
    return bytes(data)


def _check(group: int) -> None:
    if group > _LARGEST:
        raise DamagedDeletionVectorError(f"a Z85 group has the value {group}, above the largest legal {_LARGEST}")
