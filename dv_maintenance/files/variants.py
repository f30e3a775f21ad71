"""Variants that a file stores shredded, put together again (Parquet: Variant Shredding, Variant Binary Encoding).

Of each variant, or part of one, a file stores what fits a type in ``typed_value``, and the rest in ``value``.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any, Final, NamedTuple

import pyarrow as pa
from pyarrow import types

TYPED: Final = "typed_value"
_VALUE: Final = "value"
_METADATA: Final = "metadata"
_NULL: Final = b"\x00"
_NO_NAMES: Final = b"\x01\x00\x00"
_SHORT: Final = 63
_SHORT_TEXT, _OBJECT, _ARRAY = 1, 2, 3
# Widths of whole numbers and decimals, each with the ids of its types. Spark takes the narrowest that fits, too.
_WHOLE: Final = ((1, 3), (2, 4), (4, 5), (8, 6))
_DECIMAL: Final = ((9, 4, 8), (18, 8, 9), (38, 16, 10))
_WHOLE_IDS: Final = {each[-1] for each in _WHOLE}
_DECIMAL_IDS: Final = {each[-1] for each in _DECIMAL}
_LONG_TEXT: Final = 16


class _Names(NamedTuple):
    """The names in the metadata of a variant: by id, and the id of each."""

    known: Sequence[str]
    ids: Mapping[str, int]


class MalformedVariantError(ValueError):
    """The parts of a variant contradict each other."""


def put_together(shredded: pa.StructArray, fields: Sequence[pa.Field]) -> pa.StructArray:
    """The variants with nothing shredded, as structs of ``fields``, which are ``value`` and ``metadata``.

    Raises
    ------
    MalformedVariantError : parts contradict each other.
    pyarrow.ArrowNotImplementedError : a typed value has a type that no variant has.
    """
    metadata = shredded.flatten()[shredded.type.get_field_index(_METADATA)]
    values = _values(shredded, [_names(text or _NO_NAMES) for text in metadata.to_pylist()])
    made = [
        value or _NULL if valid else None for valid, value in zip(shredded.is_valid().to_pylist(), values, strict=True)
    ]
    arrays = {_VALUE: pa.array(made, pa.binary()), _METADATA: metadata}
    ordered = [arrays[each.name] for each in fields]
    return pa.StructArray.from_arrays(ordered, fields=list(fields), mask=shredded.is_null())


def comparable(variants: pa.StructArray) -> pa.Array:
    """Bytes that are equal where variants are, however writers encode them: numbers with their names in metadata, in
    any width, or with zeros at the end of a decimal.

    Raises
    ------
    MalformedVariantError : a variant is damaged.
    """
    parts = {field.name: array.to_pylist() for field, array in zip(variants.type, variants.flatten(), strict=True)}
    pairs = zip(parts[_VALUE], parts[_METADATA], strict=True)
    made = [None if value is None else _meaning(value, _names(metadata).known) for value, metadata in pairs]
    return pa.array(made, pa.binary())


def can_be_put_together(shredded: pa.StructType) -> bool:
    """Whether the typed parts have types that variants have."""
    return all(_known(each) for each in shredded if each.name == TYPED)


def _known(field: pa.Field) -> bool:
    kind = field.type
    if types.is_struct(kind):
        parts = list(kind)
    elif types.is_list(kind):
        parts = [kind.value_field]
    else:
        return _encoder(kind) is not None
    return all(types.is_struct(part.type) and can_be_put_together(part.type) for part in parts)


def _child(group: pa.StructArray, name: str) -> pa.Array | None:
    at = group.type.get_field_index(name)
    return None if at < 0 else group.flatten()[at]  # with the group's nulls


def _values(group: pa.StructArray, names: Sequence[_Names]) -> list[bytes | None]:
    """The encoded value of each row; ``None`` where it is missing."""
    value, typed = _child(group, _VALUE), _child(group, TYPED)
    rest = [None] * len(group) if value is None else value.to_pylist()
    if typed is None:
        return rest
    if types.is_struct(typed.type):
        return _objects(typed, rest, names)
    if types.is_list(typed.type):
        return _arrays(typed, rest, names)
    encode = _encoder(typed.type)
    if encode is None:
        raise pa.ArrowNotImplementedError(f"no variant has values of type {typed.type}")
    made = zip(_plain(typed), rest, strict=True)
    return [left if each is None else encode(each) for each, left in made]


def _objects(typed: pa.StructArray, rest: list[bytes | None], names: Sequence[_Names]) -> list[bytes | None]:
    fields = [(each.name, _values(_child(typed, each.name), names)) for each in typed.type]
    known = {name for name, _ in fields}
    made: list[bytes | None] = []
    for row, here in enumerate(typed.is_valid().to_pylist()):
        left = rest[row]
        if not here:
            made.append(left)
            continue
        parts = {name: value for name, values in fields if (value := values[row]) is not None}
        if left is not None:
            others = _parts(left, names[row].known)
            if not known.isdisjoint(others):
                raise MalformedVariantError("a field of an object is both in its typed part and in the rest")
            parts |= others
        made.append(_object(parts, names[row].ids))
    return made


def _arrays(typed: pa.ListArray, rest: list[bytes | None], names: Sequence[_Names]) -> list[bytes | None]:
    lengths = typed.value_lengths().fill_null(0).to_pylist()
    of_elements = [of_row for of_row, length in zip(names, lengths, strict=True) for _ in range(length)]
    elements = _values(typed.flatten(), of_elements)
    made: list[bytes | None] = []
    start = 0
    for here, length, left in zip(typed.is_valid().to_pylist(), lengths, rest, strict=True):
        # Where a value is required, a missing one is null.
        made.append(_array([each or _NULL for each in elements[start : start + length]]) if here else left)
        start += length
    return made


def _plain(typed: pa.Array) -> list[Any]:
    """Values as their encoders take them: whole numbers of days, of a fraction of a second, of the last digit."""
    kind = typed.type
    if isinstance(kind, pa.BaseExtensionType):
        return _plain(typed.storage)
    if types.is_decimal(kind):
        wide = typed.cast(pa.decimal128(kind.precision, kind.scale))
        data, at = memoryview(wide.buffers()[1] or b""), wide.offset
        return [
            int.from_bytes(data[16 * (at + row) : 16 * (at + row + 1)], "little", signed=True) if valid else None
            for row, valid in enumerate(wide.is_valid().to_pylist())
        ]
    if types.is_date32(kind):
        typed = typed.view(pa.int32())
    elif types.is_timestamp(kind) or types.is_time64(kind):
        typed = typed.view(pa.int64())
    values: list[Any] = typed.to_pylist()
    return values


def _encoder(kind: pa.DataType) -> Callable[[Any], bytes] | None:
    if isinstance(kind, pa.BaseExtensionType):
        return _primitive(20) if types.is_fixed_size_binary(kind.storage_type) else None
    if types.is_boolean(kind):
        return lambda value: _head(1 if value else 2)
    if types.is_signed_integer(kind):
        return _whole
    if types.is_decimal(kind) and kind.scale >= 0 and kind.precision <= _DECIMAL[-1][0]:
        return lambda value: _decimal(value, kind.scale)
    if types.is_string(kind) or types.is_large_string(kind):
        return _text
    if types.is_binary(kind) or types.is_large_binary(kind):
        return lambda value: _head(15) + struct.pack("<I", len(value)) + value
    if kind == pa.binary(16):
        return _primitive(20)
    if types.is_timestamp(kind) and kind.unit in {"us", "ns"}:
        return _primitive({"us": 12, "ns": 18}[kind.unit] + (kind.tz is None), "<q")
    packed = {pa.float64(): (7, "<d"), pa.float32(): (14, "<f"), pa.date32(): (11, "<i"), pa.time64("us"): (17, "<q")}
    return _primitive(*packed[kind]) if kind in packed else None


def _head(type_id: int) -> bytes:
    return bytes((type_id << 2,))


def _primitive(type_id: int, form: str | None = None) -> Callable[[Any], bytes]:
    head = _head(type_id)
    return lambda value: head + (value if form is None else struct.pack(form, value))


def _whole(value: int) -> bytes:
    width, type_id = next(each for each in _WHOLE if -(1 << 8 * each[0] - 1) <= value < 1 << 8 * each[0] - 1)
    return _head(type_id) + value.to_bytes(width, "little", signed=True)


def _decimal(value: int, scale: int) -> bytes:
    digits = max(len(str(abs(value))), scale)
    width, type_id = next((width, type_id) for most, width, type_id in _DECIMAL if digits <= most)
    return _head(type_id) + bytes((scale,)) + value.to_bytes(width, "little", signed=True)


def _text(value: str) -> bytes:
    encoded = value.encode()
    if len(encoded) <= _SHORT:
        return bytes((len(encoded) << 2 | _SHORT_TEXT,)) + encoded
    return _head(_LONG_TEXT) + struct.pack("<I", len(encoded)) + encoded


def _object(parts: Mapping[str, bytes], ids: Mapping[str, int]) -> bytes:
    names = sorted(parts, key=str.encode)
    if missing := [name for name in names if name not in ids]:
        raise MalformedVariantError(f"the metadata does not have the name {missing[0]!r}")
    numbers = [ids[name] for name in names]
    offsets, values = _joined([parts[name] for name in names])
    large, id_width, width = len(names) > 255, _width(max(numbers, default=0)), _width(offsets[-1])
    head = (large << 4 | (id_width - 1) << 2 | (width - 1)) << 2 | _OBJECT
    return bytes((head,)) + _numbers([len(names)], 4 if large else 1) + _numbers(numbers, id_width) + _numbers(
        offsets, width
    ) + values  # fmt: skip


def _array(elements: Sequence[bytes]) -> bytes:
    offsets, values = _joined(elements)
    large, width = len(elements) > 255, _width(offsets[-1])
    head = (large << 2 | (width - 1)) << 2 | _ARRAY
    return bytes((head,)) + _numbers([len(elements)], 4 if large else 1) + _numbers(offsets, width) + values


def _joined(values: Sequence[bytes]) -> tuple[list[int], bytes]:
    offsets = [0]
    for each in values:
        offsets.append(offsets[-1] + len(each))
    return offsets, b"".join(values)


def _width(largest: int) -> int:
    return max(1, (largest.bit_length() + 7) // 8)


def _numbers(numbers: Sequence[int], width: int) -> bytes:
    return b"".join(each.to_bytes(width, "little") for each in numbers)


def _meaning(encoded: bytes, names: Sequence[str]) -> bytes:
    basic, head = encoded[0] & 3 if encoded else 0, encoded[0] >> 2 if encoded else 0
    if basic == _OBJECT:
        fields = sorted((name.encode(), _meaning(part, names)) for name, part in _parts(encoded, names).items())
        return b"o" + b"".join(_sized(each) for field in fields for each in field)
    if basic == _ARRAY:
        return b"a" + b"".join(_sized(_meaning(part, names)) for part in _elements(encoded))
    if basic == _SHORT_TEXT:
        return b"s" + encoded[1 : 1 + head]
    if head == _LONG_TEXT:
        return b"s" + encoded[5:]
    if head in _WHOLE_IDS or head in _DECIMAL_IDS:
        scale, start = (encoded[1], 2) if head in _DECIMAL_IDS else (0, 1)
        number = int.from_bytes(encoded[start:], "little", signed=True)
        while scale and number % 10 == 0:
            number, scale = number // 10, scale - 1
        return b"n%de-%d" % (number, scale)
    return encoded


def _sized(part: bytes) -> bytes:
    return struct.pack("<I", len(part)) + part


def _elements(encoded: bytes) -> list[bytes]:
    head = encoded[0] >> 2
    count_width, width = 4 if head >> 2 & 1 else 1, (head & 3) + 1
    (count,) = _read(encoded, 1, 1, count_width)
    offsets = _read(encoded, 1 + count_width, count + 1, width)
    values = encoded[1 + count_width + (count + 1) * width :]
    if offsets[-1] > len(values):
        raise MalformedVariantError("an array has values that are not there")
    return [values[start:end] for start, end in pairwise(offsets)]


def _parts(encoded: bytes, names: Sequence[str]) -> dict[str, bytes]:
    """The fields of an object."""
    head = encoded[0] >> 2 if encoded else 0
    if not encoded or encoded[0] & 3 != _OBJECT:
        raise MalformedVariantError("what is left of an object is not an object")
    count_width, id_width, width = 4 if head >> 4 & 1 else 1, (head >> 2 & 3) + 1, (head & 3) + 1
    at = 1 + count_width
    (count,) = _read(encoded, 1, 1, count_width)
    numbers = _read(encoded, at, count, id_width)
    offsets = _read(encoded, at + count * id_width, count + 1, width)
    values = encoded[at + count * id_width + (count + 1) * width :]
    # Values may be in another order than their names.
    ends = dict(pairwise(sorted({*offsets})))
    if any(number >= len(names) for number in numbers) or offsets[-1] > len(values):
        raise MalformedVariantError("the rest of an object has names or values that are not there")
    return {
        names[number]: values[start : ends.get(start, start)]
        for number, start in zip(numbers, offsets[:-1], strict=True)
    }


def _read(encoded: bytes, start: int, count: int, width: int) -> list[int]:
    if start + count * width > len(encoded):
        raise MalformedVariantError("it ends too early")
    return [int.from_bytes(encoded[at : at + width], "little") for at in range(start, start + count * width, width)]


@lru_cache(4096)
def _names(metadata: bytes) -> _Names:
    if metadata[0] & 0xF != 1:
        raise MalformedVariantError(f"its metadata have the unknown version {metadata[0] & 0xF}")
    width = (metadata[0] >> 6) + 1
    (count,) = _read(metadata, 1, 1, width)
    offsets = _read(metadata, 1 + width, count + 1, width)
    texts = metadata[1 + (count + 2) * width :]
    if offsets[-1] > len(texts):
        raise MalformedVariantError("its metadata end too early")
    known = [texts[start:end].decode() for start, end in pairwise(offsets)]
    return _Names(known, {name: at for at, name in enumerate(known)})
