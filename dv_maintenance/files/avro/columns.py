"""Records of Avro blocks as columns: all records are decoded together, one field after the other.

A record begins where the previous one ends, which is known only once that one is decoded. So every position that may
begin a record is a candidate. All candidates are decoded at once, and the chain of records from the first byte to the
last selects the real ones. Everything is verified: a record must end where the next one begins, and a block where its
last record ends, with the record count that it states. If anything differs, or the schema has a type that is unknown
here, nothing is returned; the caller then reads record by record, which also finds the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa

from dv_maintenance.files.arrays import int32s, int64s, strings
from dv_maintenance.files.avro.schema import Rebuilt, Wanted, record_of
from dv_maintenance.files.varint import MAX_BYTES, read_varint, unzigzag, varint, zigzag

Block = tuple[int, bytes]
"""The number of records, and their bytes."""

Columns = dict[str, Any]
"""By name: integers as ``int64``, text as ``string``, bytes as ``binary``, an array of text as ``list<string>``, a
record as Columns.
"""

_Rows = np.ndarray[Any, np.dtype[np.int64]]
_Words = np.ndarray[Any, np.dtype[np.uint64]]

# The values of numbers of one byte.
_SHORT: Final = np.array([unzigzag(byte & 0x7F) for byte in range(256)], np.int64)
_ONE: Final = np.uint64(1)
_HIGH: Final = np.uint64(0x8080808080808080)
_LOW: Final = np.uint64(0x7F7F7F7F7F7F7F7F)
_BYTES: Final = np.uint64(0x007F007F007F007F)
_PAIRS: Final = np.uint64(0x00003FFF00003FFF)
_FOURS: Final = np.uint64(0x000000000FFFFFFF)
# Times 256**n, its highest byte is n + 1.
_PLACES: Final = np.uint64(0x0102030405060708)
_LIST: Final = pa.list_(pa.string())
_NO_ROWS: Final[_Rows] = np.empty(0, np.int64)
_GROUP: Final = 2 << 20  # bytes
# Fewer records are decoded faster one by one.
_WORTH_IT: Final = 256
# Arrays with more items are left to the caller: each item is a separate step.
_MOST_ITEMS: Final = 4096
# Of an array of numbers, so many are passed over before lanes that are gone are left out.
_ITEMS: Final = 64
_NUMBERS: Final = {"int": 32, "long": 64}
_WIDTHS: Final = {"boolean": 1, "float": 4, "double": 8}


def decode(
    schema: Rebuilt, blocks: Sequence[Block], wanted: Wanted, first: Mapping[str, Collection[int]]
) -> Columns | None:
    """Those of the ``wanted`` fields that the schema has, for all records; ``None`` if they can't be decoded here.

    first : possible values of the first fields of a record. At least one field must be given: otherwise too many
        positions are candidates for the beginning of a record.
    """
    prefix = _prefix(schema, first)
    if not prefix or sum(count for count, _ in blocks) < _WORTH_IT:
        return None
    try:
        parts = [_decoded(schema, some, wanted, prefix) for some in _groups(blocks)]
    except (_NotHereError, pa.ArrowInvalid):
        return None
    found: Columns = _joined(parts)
    return found


def _decoded(schema: Rebuilt, blocks: Sequence[Block], wanted: Wanted, prefix: Sequence[Sequence[int]]) -> Columns:
    lanes = _Lanes(b"".join(block for _, block in blocks), prefix)
    read = lanes.value(schema, None, wanted)
    found: Columns = read(_chain(lanes, blocks))
    return found


def _groups(blocks: Sequence[Block]) -> Iterator[list[Block]]:
    """Blocks that are decoded at once: so many that the cost per field is small, and so few that the data fit in the
    processor's cache.
    """
    some: list[Block] = []
    size = 0
    for block in blocks:
        some.append(block)
        size += len(block[1])
        if size >= _GROUP:
            yield some
            some, size = [], 0
    if some:
        yield some


def _joined(parts: Sequence[Any]) -> Any:
    first = parts[0]
    if isinstance(first, dict):
        return {name: _joined([part[name] for part in parts]) for name in first}
    return pa.concat_arrays(parts)


class _NotHereError(Exception):
    """Left to the caller."""


def _prefix(schema: Rebuilt, first: Mapping[str, Collection[int]]) -> list[list[int]]:
    """The possible values of each of the first bytes of a record."""
    found: list[list[int]] = []
    if schema["type"] == "union":
        found.append([2 * [each["type"] for each in schema["branches"]].index("record")])
    for field in record_of(schema)["fields"]:
        values = first.get(field["name"])
        if values is None or field["type"]["type"] not in _NUMBERS:
            return found if field is not record_of(schema)["fields"][0] else []
        found.append([varint(zigzag(value))[0] for value in values])
    return found


_Column = Callable[[_Rows], Any]
"""The values of chosen lanes."""


class _Lanes:
    """Candidates for the beginning of a record, and the progress of their decoding. A lane is dropped when it meets
    bytes that no record has.

    begin : positions of the candidates, in order.
    at : positions of the next field.
    """

    def __init__(self, data: bytes, prefix: Sequence[Sequence[int]]) -> None:
        self.stop = len(data)
        self.bytes = data
        # The padding after the last byte is read, but never used.
        padded = data + bytes(2 * MAX_BYTES + len(prefix))
        self.data = np.frombuffer(padded, np.uint8)
        # The eight bytes from each place on.
        self.words = np.ndarray((len(padded) - 7,), "<u8", padded, strides=(1,))
        self.begin: _Rows = np.flatnonzero(_one_of(self.data[: self.stop], prefix[0]))
        for place, values in enumerate(prefix[1:], start=1):
            self.begin = self.begin[_one_of(self.data[self.begin + place], values)]
        self.at = self.begin.copy()
        self._alive = np.ones(len(self.begin), bool)
        # Lanes by their number in the beginning.
        self.ids: _Rows = np.arange(len(self.begin))

    def value(self, schema: Rebuilt, rows: _Rows | None, wanted: Wanted | None, *, keep: bool = True) -> _Column:
        """Decode the next value of all lanes, or of those in ``rows``. ``keep``: whether the value is needed."""
        match schema["type"]:
            case "record":
                return self._record(schema, rows, wanted, keep=keep)
            case "union":
                return self._union(schema, rows, wanted, keep=keep)
            case "int" | "long":
                ids = self._ids(rows) if keep else _NO_ROWS
                values = self._number(rows, _NUMBERS[schema["type"]])
                return lambda chosen: int64s(values[_find(ids, chosen)])
            case "string" | "bytes":
                ids = self._ids(rows) if keep else _NO_ROWS
                start, length = self._text(rows)
                type_ = pa.string() if schema["type"] == "string" else pa.binary()
                return lambda chosen: self._texts(start, length, _find(ids, chosen), type_)
            case "array":
                ids = self._ids(rows)
                start = self._positions(rows)
                start = start.copy() if rows is None else start
                if keep and schema["items"]["type"] != "string":
                    raise _NotHereError
                self._array(schema["items"], rows)
                return lambda chosen: self._lists(start[_find(ids, chosen)])
            case "boolean" | "float" | "double" if not keep:
                self._skip(rows, _WIDTHS[schema["type"]])
                return lambda _: None
            case "fixed" if not keep:
                self._skip(rows, schema["size"])
                return lambda _: None
        raise _NotHereError

    def _record(self, schema: Rebuilt, rows: _Rows | None, wanted: Wanted | None, *, keep: bool) -> _Column:
        read: dict[str, _Column] = {}
        for field in schema["fields"]:
            name = field["name"]
            asked = keep and (wanted is None or name in wanted)
            column = self.value(field["type"], rows, (wanted or {}).get(name) if asked else None, keep=asked)
            if asked:
                read[name] = column
            if rows is None:
                self._bury()
        return lambda chosen: {name: column(chosen) for name, column in read.items()}

    def _union(self, schema: Rebuilt, rows: _Rows | None, wanted: Wanted | None, *, keep: bool) -> _Column:
        kinds = [each["type"] for each in schema["branches"]]
        if len(kinds) != 2 or kinds.count("null") != 1:
            raise _NotHereError
        some = 1 - kinds.index("null")
        inner = schema["branches"][some]
        at = self._positions(rows)
        branch = self.data.take(at)
        has = branch == 2 * some
        is_record = inner["type"] == "record" and rows is None
        if not has.all():
            self._drop(rows, ~has if is_record else branch & 0xFD != 0)
        self._move(rows, at + 1)
        if is_record:
            self._bury()
            return self.value(inner, None, wanted, keep=keep)
        ids = self._ids(rows) if keep else _NO_ROWS
        present = np.flatnonzero(has)
        if not len(present):
            return lambda chosen: _nulls(inner, len(chosen))
        if inner["type"] == "record" and keep:
            raise _NotHereError
        if len(present) == len(has):
            return self.value(inner, rows, wanted, keep=keep)
        column = self.value(inner, present if rows is None else rows[present], wanted, keep=keep)
        return lambda chosen: _scattered(column, chosen, has[_find(ids, chosen)], inner)

    def _array(self, items: Rebuilt, rows: _Rows | None) -> None:
        left = self._number(rows, 64)
        if not left.any():
            return
        # A negative count precedes the size of a block, which none of the known writers writes.
        self._drop(rows, left < 0)
        rows = np.arange(len(self.at)) if rows is None else rows
        number = _number_of(items)
        if number is not None:
            more = left > 0
            self._skip_numbers(rows[more], left[more], number)
            return
        for _ in range(_MOST_ITEMS):
            more = left > 0
            if not more.all():
                rows, left = rows[more], left[more]
            if not len(rows):
                return
            self.value(items, rows, None, keep=False)
            left -= 1
            last = np.flatnonzero(left == 0)
            if len(last):
                left[last] = self._number(rows[last], 64)
                self._drop(rows[last], left[last] < 0)
            left[~self._alive[rows]] = 0
        raise _NotHereError

    # -- steps -----------------------------------------------------------------------------------------------------

    def _number(self, rows: _Rows | None, bits: int) -> _Rows:
        """The next number of each lane. Lanes without a number of at most ``bits`` bits are dropped."""
        at = self._positions(rows)
        byte = self.data.take(at)
        more = np.flatnonzero(byte > 0x7F)
        if len(more) > len(at) // 2:
            found, end = self._longer(rows, None, at, bits)
        else:
            found, end = _SHORT.take(byte), at + 1
            if len(more):
                found[more], end[more] = self._longer(rows, more, at.take(more), bits)
        self._move(rows, end)
        return found

    def _longer(self, rows: _Rows | None, places: _Rows | None, at: _Rows, bits: int) -> tuple[_Rows, _Rows]:
        """Numbers of up to eight bytes, all at once, and where they end. ``places``: which of the rows they are of."""
        word = self.words[at]
        last = _last(word)
        size = _size(last)
        # Below the number's last bit; then seven bits of each byte come together: in pairs, fours, and all eight.
        word &= (last - _ONE) & _LOW
        word = (word & _BYTES) | ((word & ~_BYTES) >> _ONE)
        word = (word & _PAIRS) | ((word & ~_PAIRS) >> np.uint64(2))
        word = (word & _FOURS) | ((word & ~_FOURS) >> np.uint64(4))
        found: _Rows = (word >> _ONE).view(np.int64) ^ -(word & _ONE).view(np.int64)
        end = at + size
        long = np.flatnonzero(size == 0)
        if len(long):
            where = long if places is None else places[long]
            found[long], end[long] = self._longest(_of(rows, where), at[long])
        if bits == 32:
            wrong = found != found.astype(np.int32)
            if wrong.any():
                self._drop(rows if places is None else _of(rows, places), wrong)
        return found, end

    def _longest(self, rows: _Rows, at: _Rows) -> tuple[_Rows, _Rows]:
        """Numbers of any size."""
        byte = self.data[at]
        value = (byte & np.uint8(0x7F)).astype(np.uint64)
        end = at + 1
        more = np.arange(len(at))
        for shift in range(7, 7 * MAX_BYTES, 7):
            byte = self.data[end[more]]
            value[more] |= (byte & np.uint8(0x7F)).astype(np.uint64) << np.uint64(shift)
            end[more] += 1
            more = more[byte > 0x7F]
            if not len(more):
                break
        # The tenth byte has only one bit left.
        self._drop(rows, (end - at == MAX_BYTES) & (self.data[end - 1] > 1))
        return (value >> _ONE).view(np.int64) ^ -(value & _ONE).view(np.int64), end

    def _skip_numbers(self, rows: _Rows, left: _Rows, branch: int) -> None:
        """Pass over arrays of numbers, ``left`` of them in the first block. ``branch``: see ``_number_of``."""
        # First those lanes that have as many as most of them do. False lanes hardly ever do.
        some = np.flatnonzero(left == np.median(left))
        steps = 0
        while len(rows):
            some = some if len(some) else np.arange(len(rows))
            count = min(int(left[some].min()), _ITEMS)
            steps += count
            if steps > _MOST_ITEMS:
                raise _NotHereError
            lanes = rows.take(some)
            wrong = self._pass_numbers(lanes, count, branch)
            left[some] -= count
            left[some[wrong]] = 0
            ended = some[(left[some] == 0) & ~wrong]
            if len(ended):
                left[ended] = self._number(rows[ended], 64)
                self._drop(rows[ended], left[ended] < 0)
            more = np.flatnonzero(left > 0)
            rows, left, some = rows.take(more), left.take(more), _NO_ROWS

    def _pass_numbers(self, lanes: _Rows, count: int, branch: int) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Pass over ``count`` items in each lane. Returns which of the lanes are gone; those with numbers of more than
        eight bytes are.
        """
        at = self.at.take(lanes)
        wrong = np.zeros(len(at), bool)
        there = np.ones(len(at), bool)
        for _ in range(count):
            if branch >= 0:
                byte = self.data.take(at)
                there = byte == 2 * branch
                wrong |= byte & 0xFD != 0
                at += 1
            longer = np.flatnonzero((self.data.take(at) > 0x7F) & there)
            at += there
            if len(longer):
                size = _size(_last(self.words[at[longer] - 1]))
                wrong[longer] |= size == 0
                at[longer] += size - 1
            if at.max() > self.stop:
                wrong |= at > self.stop
                at = np.minimum(at, self.stop)
            if wrong.all():
                break
        self.at[lanes] = at
        self._drop(lanes, wrong)
        return wrong

    def _text(self, rows: _Rows | None) -> tuple[_Rows, _Rows]:
        length = self._number(rows, 64)
        start = self._positions(rows)
        # Negative ones are very large.
        wrong = length.view(np.uint64) > (self.stop - start).view(np.uint64)
        if wrong.any():
            self._drop(rows, wrong)
            length = np.where(wrong, 0, length)
        self._move(rows, start + length)
        return start, length

    def _skip(self, rows: _Rows | None, width: int) -> None:
        self._move(rows, self._positions(rows) + width)

    def _positions(self, rows: _Rows | None) -> _Rows:
        return self.at if rows is None else self.at.take(rows)

    def _ids(self, rows: _Rows | None) -> _Rows:
        return self.ids if rows is None else self.ids.take(rows)

    def _move(self, rows: _Rows | None, end: _Rows) -> None:
        if end.max(initial=0) > self.stop:
            self._drop(rows, end > self.stop)
            end = np.minimum(end, self.stop)
        if rows is None:
            self.at = end
        else:
            self.at[rows] = end

    def _drop(self, rows: _Rows | None, wrong: np.ndarray[Any, np.dtype[np.bool_]]) -> None:
        if wrong.any():
            self._alive[np.flatnonzero(wrong) if rows is None else rows[wrong]] = False

    def _bury(self) -> None:
        """Forget the dropped lanes."""
        if not self._alive.all():
            self.begin, self.at, self.ids = self.begin[self._alive], self.at[self._alive], self.ids[self._alive]
            self._alive = np.ones(len(self.at), bool)

    def _lists(self, start: _Rows) -> pa.ListArray:
        lengths = np.zeros(len(start), np.int64)
        texts: list[str] = []
        for place in np.flatnonzero(self.data[start]).tolist():  # not empty
            some = _list_at(self.bytes, int(start[place]))
            lengths[place] = len(some)
            texts += some
        ends = int32s(np.concatenate([[0], np.cumsum(lengths)]))
        return pa.ListArray.from_arrays(ends, strings(texts))

    def _texts(self, start: _Rows, length: _Rows, chosen: _Rows, type_: pa.DataType) -> pa.Array:
        """An array of texts, copied from the data without the bytes between them."""
        if not len(chosen):
            return pa.nulls(0, type_)
        offsets = np.empty(2 * len(chosen), np.int64)
        offsets[::2] = start[chosen]
        offsets[1::2] = start[chosen] + length[chosen]
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(self.bytes)]
        both = pa.Array.from_buffers(pa.large_binary(), 2 * len(chosen) - 1, buffers)
        every_other = pa.Array.from_buffers(
            pa.int64(), len(chosen), [None, pa.py_buffer(np.arange(0, 2 * len(chosen), 2))]
        )
        # The cast finds text that is not UTF-8.
        return both.take(every_other).cast(type_)


def _chain(lanes: _Lanes, blocks: Sequence[Block]) -> _Rows:
    """The ids of the lanes that are records. They cover every byte from the first to the last exactly once."""
    begin, end = lanes.begin, lanes.at
    records = sum(count for count, _ in blocks)
    if not len(begin) or begin[0] != 0:
        raise _NotHereError
    if len(begin) == records and end[-1] == lanes.stop and (end[:-1] == begin[1:]).all():
        chosen = np.arange(records)
    else:
        following = np.searchsorted(begin, end)
        known = following < len(begin)
        known[known] = begin[following[known]] == end[known]
        # Nearly always only records begin where another one ends.
        reached = np.zeros(len(begin), bool)
        reached[0] = True
        reached[following[known]] = True
        chosen = np.flatnonzero(reached)
        if len(chosen) != records or (end[chosen[:-1]] != begin[chosen[1:]]).any():
            steps: list[int] = np.where(known, following, -1).tolist()
            place, path = 0, [0]
            while (place := steps[place]) >= 0:
                path.append(place)
            chosen = np.array(path)
        if len(chosen) != records or end[chosen[-1]] != lanes.stop:
            raise _NotHereError
    counts = np.cumsum([count for count, _ in blocks])
    ends = np.cumsum([len(block) for _, block in blocks])
    if (end[chosen[counts - 1]] != ends).any():
        raise _NotHereError
    return lanes.ids[chosen]


def _number_of(items: Rebuilt) -> int | None:
    """Which branch of the items is a number; -1 where all of them are numbers, ``None`` where they are not."""
    if items["type"] in _NUMBERS:
        return -1
    kinds = [each["type"] for each in items.get("branches", ())]
    if len(kinds) != 2 or kinds.count("null") != 1:
        return None
    some = 1 - kinds.index("null")
    return some if kinds[some] in _NUMBERS else None


def _last(word: _Words) -> _Words:
    """The highest bit of the first byte below 0x80 of eight, which ends a number; 0 where there is none."""
    ends = ~word & _HIGH
    return ends & (~ends + _ONE)


def _size(last: _Words) -> _Rows:
    """How many bytes of eight belong to the number, from :func:`_last`; 0 where it is longer."""
    return (((last >> np.uint64(7)) * _PLACES) >> np.uint64(56)).view(np.int64)


def _one_of(data: np.ndarray[Any, np.dtype[np.uint8]], values: Sequence[int]) -> np.ndarray[Any, np.dtype[np.bool_]]:
    found: np.ndarray[Any, np.dtype[np.bool_]] = data == values[0]
    for value in values[1:]:
        found |= data == value
    return found


def _of(rows: _Rows | None, some: _Rows) -> _Rows:
    return some if rows is None else rows[some]


def _find(ids: _Rows, chosen: _Rows) -> _Rows:
    """Positions of the chosen lanes in ``ids``, which contains all of them."""
    if len(ids) == len(chosen):
        return np.arange(len(chosen))
    places = np.empty(int(ids[-1]) + 1, np.int64)
    places[ids] = np.arange(len(ids))
    return places[chosen]


# -- arrays -------------------------------------------------------------------------------------------------------


def _nulls(schema: Rebuilt, count: int) -> Any:
    match schema["type"]:
        case "int" | "long":
            return pa.nulls(count, pa.int64())
        case "string":
            return pa.nulls(count, pa.string())
        case "bytes":
            return pa.nulls(count, pa.binary())
    return pa.nulls(count, _LIST)


def _scattered(column: _Column, chosen: _Rows, present: np.ndarray[Any, np.dtype[np.bool_]], schema: Rebuilt) -> Any:
    """The column, with nulls where no value is present."""
    if not present.any():
        return _nulls(schema, len(chosen))
    values = column(chosen[present])
    places = np.where(present, np.cumsum(present) - 1, 0)
    valid = None if present.all() else pa.py_buffer(np.packbits(present, bitorder="little"))
    return values.take(pa.Array.from_buffers(pa.int64(), len(chosen), [valid, pa.py_buffer(places)]))


def _list_at(data: bytes, at: int) -> list[str]:
    """An array of text whose position is known. Raises pa.ArrowInvalid if it is not UTF-8."""
    found: list[str] = []
    while True:
        number, at = read_varint(data, at)
        count = unzigzag(number)
        if not count:
            return found
        for _ in range(count):
            number, at = read_varint(data, at)
            end = at + unzigzag(number)
            try:
                found.append(data[at:end].decode())
            except UnicodeDecodeError as error:
                raise pa.ArrowInvalid(str(error)) from None
            at = end
