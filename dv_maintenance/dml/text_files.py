"""CSV and JSON lines as records of text: nothing is guessed, trimmed or cast.

CSV is RFC 4180 in UTF-8: commas, quotes doubled within quotes, line ends allowed within quotes, a header in the first
line. An empty field is null, ``""`` is an empty text. JSON has one object per line; its numbers keep their text.
"""

from __future__ import annotations

import csv
import json
import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any, Final
from urllib.parse import unquote

import pyarrow as pa

from dv_maintenance.dml.key_casts import Number
from dv_maintenance.errors import UsageError
from dv_maintenance.resources import raise_if_refused

if TYPE_CHECKING:
    from dv_maintenance.storage import Storage

_FORMS: Final = {".csv": "csv", ".json": "json", ".jsonl": "json", ".ndjson": "json"}
_CODECS: Final = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd"}
_FIELD: Final = re.compile(r'(?:"(?:[^"]|"")*")?[^,]*(?:,|$)')
_LONGEST: Final = 1 << 27  # characters of a field


@dataclass(frozen=True, slots=True)
class TextFile:
    """A text file of rows.

    form : csv or json.
    codec : compression, under Arrow's name.
    """

    uri: str
    form: str
    codec: str | None

    @property
    def name(self) -> str:
        return unquote(self.uri.rsplit("/", 1)[-1])


class FaultError(Exception):
    """A fault in ``line`` (from 1; 0: in the whole file). ``reason`` quotes no value: it may be personal data."""

    def __init__(self, line: int, reason: str) -> None:
        super().__init__(f"line {line}: {reason}")
        self.line, self.reason = line, reason


def form_of(name: str) -> tuple[str, str | None] | None:
    """Form and codec, by the ending of a name."""
    lower = name.lower().rstrip("/")
    codec = next((each for ending, each in _CODECS.items() if lower.endswith(ending)), None)
    if codec is not None:
        lower = lower.rpartition(".")[0]
    form = next((each for ending, each in _FORMS.items() if lower.endswith(ending)), None)
    return None if form is None else (form, codec)


def text_files(path: str, options: Mapping[str, str] | None) -> list[TextFile]:
    """The CSV or JSON file at ``path``, or those in the folder ``path``, by name; none if the folder has other files.

    Raises
    ------
    UsageError : no file exists there, or the folder has files of several kinds.
    StorageError : the storage did not answer.
    """
    from dv_maintenance.storage import Storage

    place = Storage(path, options)
    if place.exists(place.uri) and not (place.is_local and os.path.isdir(place.local(place.uri))):
        form = form_of(place.uri)
        return [] if form is None else [TextFile(place.uri, *form)]
    found = sorted(info.path for info in place.walk(skip=_hidden))
    if not found:
        raise UsageError(f"there are no files at {path}", next_step="give a table, or Parquet, CSV or JSON files")
    forms = {form and form[0] for form in map(form_of, found)}
    if forms == {None}:
        return []
    if len(forms) > 1:
        raise UsageError(
            f"the folder {path} holds files of several kinds",
            next_step="give a folder with files of one kind: .csv, .json or .parquet",
        )
    return [TextFile(place.uri_of(name), *form) for name in found if (form := form_of(name))]


def _hidden(path: str, is_dir: bool) -> bool:
    """Whether Spark ignores a file or folder: checksums, markers, logs."""
    del is_dir
    return path.rsplit("/", 1)[-1].startswith(("_", "."))


def columns_of(file: TextFile, storage: Storage) -> dict[str, bool]:
    """The columns, in the order of their first occurrence, and whether all values are true, false or null. Raises
    FaultError, StorageError.
    """
    with _lines(file, storage) as lines:
        if file.form == "csv":
            return dict.fromkeys(next(_rows(lines))[1], False)
        found: dict[str, bool] = {}
        for _, body in _objects(lines):
            for name, value in body.items():
                found[name] = found.get(name, True) and (value is None or isinstance(value, bool))
        return found


def records(
    file: TextFile, storage: Storage, wanted: Sequence[str], *, optional: bool = False
) -> Iterator[tuple[int, list[Any]]]:
    """The first line of each record, and its values in the ``wanted`` columns: text or null, from JSON also Number,
    bool, list and dict.

    wanted : column names; they match in any case, as in Spark.
    optional : a JSON file need not have all of them.

    Raises
    ------
    FaultError : a column is missing or occurs twice, or a line is not a record.
    StorageError : the storage did not answer.
    """
    with _lines(file, storage) as lines:
        yield from _csv(lines, wanted) if file.form == "csv" else _json(lines, wanted, optional)


class _Lines:
    """Lines of a file as text.

    number : of the last line.
    pending : the lines since it was last cleared.
    """

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.number = 0
        self.pending: list[str] = []

    def __iter__(self) -> Iterator[str]:
        encoding = "utf-8-sig"
        try:
            for raw in self._file:
                self.number += 1
                text = raw.decode(encoding)
                encoding = "utf-8"
                self.pending.append(text)
                yield text
        except UnicodeDecodeError:
            raise FaultError(self.number, "it is not UTF-8") from None
        except (OSError, pa.ArrowException) as error:
            raise_if_refused(error, "a list of keys")
            raise FaultError(0, "the file can't be read or decompressed to its end") from None


@contextmanager
def _lines(file: TextFile, storage: Storage) -> Iterator[_Lines]:
    import io

    with storage.open_input(file.uri) as opened:
        stream = opened if file.codec is None else pa.CompressedInputStream(opened, file.codec)
        with io.BufferedReader(stream, 1 << 20) as buffered:
            yield _Lines(buffered)


def _rows(lines: _Lines) -> Iterator[tuple[int, list[str]]]:
    """Records of CSV with their first line; the first record is the header. Empty lines are skipped."""
    csv.field_size_limit(_LONGEST)
    reader = csv.reader(lines, strict=True)
    first, empty = 1, True
    try:
        for row in reader:
            if row:
                empty = False
                yield first, row
            first = lines.number + 1
            lines.pending.clear()
    except csv.Error:
        raise FaultError(first, "its quotes or line ends are not valid CSV") from None
    if empty:
        raise FaultError(1, "the file is empty; its first line must name the columns")


def _csv(lines: _Lines, wanted: Sequence[str]) -> Iterator[tuple[int, list[str | None]]]:
    rows = _rows(lines)
    line, header = next(rows)
    counts = Counter(header)
    at = [header.index(_found(name, counts, line)) for name in wanted]
    for line, row in rows:
        if len(row) != len(header):
            raise FaultError(line, f"{len(row)} fields, but the first line names {len(header)} columns")
        values: list[str | None] = [row[each] for each in at]
        if "" in values:
            quoted = _are_quoted("".join(lines.pending))
            values = [text if text or quoted[each] else None for text, each in zip(values, at, strict=True)]
        yield line, values


def _are_quoted(record: str) -> list[bool]:
    """For each field of a well-formed record whether it is quoted: ``""`` is an empty text, an empty field is null."""
    found: list[bool] = []
    at, end = 0, len(record.rstrip("\r\n"))
    while not found or record[at - 1 : at] == ",":
        found.append(record.startswith('"', at))
        field = _FIELD.match(record, at, end)
        if field is None or field.end() == at:
            break
        at = field.end()
    return found


def _json(lines: _Lines, wanted: Sequence[str], optional: bool) -> Iterator[tuple[int, list[Any]]]:
    missing = {*wanted}
    line = 0
    for line, body in _objects(lines):
        values = []
        for name in wanted:
            at = name if name in body else _found(name, Counter([*body]), line, optional=True)
            values.append(None if at is None else body[at])
            if at is not None:
                missing.discard(name)
        yield line, values
    if missing and line and not optional:
        raise FaultError(0, f"no line has a column {min(missing)!r}")


def _objects(lines: _Lines) -> Iterator[tuple[int, dict[str, Any]]]:
    number = Number
    decoder = json.JSONDecoder(
        parse_float=number, parse_int=number, parse_constant=number, object_pairs_hook=_once_each
    )
    for text in lines:
        lines.pending.clear()
        if not text.strip():
            continue
        try:
            body = decoder.decode(text)
        except _TwiceError:
            raise FaultError(lines.number, "a name appears twice") from None
        except (ValueError, RecursionError):
            raise FaultError(lines.number, "it is not JSON") from None
        if not isinstance(body, dict):
            raise FaultError(lines.number, "it is not a JSON object")
        yield lines.number, body


class _TwiceError(Exception):
    pass


def _once_each(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise _TwiceError
    return found


def _found(name: str, names: Counter[str], line: int, *, optional: bool = False) -> Any:
    """The entry of ``names`` that equals ``name``, or else the one that Spark treats as equal."""
    alike = [each for each in names if each == name] or [each for each in names if each.lower() == name.lower()]
    if len(alike) > 1 or sum(names[each] for each in alike) > 1:
        raise FaultError(line, f"more than one column is named {name!r}")
    if not alike and not optional:
        raise FaultError(line, f"{names.total()} columns are named, separated by commas, and none of them is {name!r}")
    return alike[0] if alike else None
