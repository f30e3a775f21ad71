"""Values in files of lines: what their readers must know to see the values that Paimon sees, see ``engine.lines``.

Source: CsvOptions, CsvParser, JsonFileReader and TextFileReader of Paimon 1.4.2.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from dv_maintenance.errors import RefusedError
from dv_maintenance.tables.paimon.rows import lines
from dv_maintenance.tables.paimon.rows.types import Field, arrow_field
from dv_maintenance.tables.work import DIGITS, schema_text

if TYPE_CHECKING:
    from dv_maintenance.tables.paimon.log.schema import Schema
    from dv_maintenance.tables.paimon.snapshot import PaimonSnapshot
    from dv_maintenance.tables.work import SourceFile

_STRINGS: Final = ("CHAR", "VARCHAR", "STRING")
# Characters with a meaning in CSV, and the text that is null: the names of each option, the first of which counts, and
# its default. Paimon takes the first character of longer ones.
_CHARACTERS: Final = {
    "delimiter": (("csv.field-delimiter", "field-delimiter", "seq"), ","),
    "quote": (("csv.quote-character", "quote"), '"'),
    "escape": (("csv.escape-character", "escape"), "\\"),
}
_NULL: Final = ("csv.null-literal", "nullvalue")
# Only newer releases know it.
_NEWER: Final = "delimiter"
_LAST_OF_ONE_UNIT: Final = "\uffff"
_READ: Final = "read the table with Paimon itself"


def as_rows(snapshot: PaimonSnapshot, source: SourceFile, stored: Schema) -> SourceFile:
    """A file of lines, with values.

    stored : the schema that the file was written with.

    Raises
    ------
    RefusedError : its lines may be no rows, or what separates their values is unknown. The message has the reason.
    """
    kind = lines.kind_of(source.uri)
    reason = lines.why_not(snapshot, source.uri)
    details: dict[str, Any] = {"schema": _schema(stored.fields)}
    if kind == "text":
        column = next((each.name for each in stored.fields if each.type.root in _STRINGS), None)
        if len(stored.fields) > 1 or column is None:
            reason = "its rows have other columns than one of text"
        elif not source.uri.endswith(".text"):
            reason = "Paimon reads no compressed text"
        details = {"column": column}
    elif kind == "csv":
        details |= {"dialect": _dialect(snapshot), "null": lines.option(snapshot, _NULL, "")}
        details["headed"] = lines.is_headed(snapshot, source.uri)
        reason = reason or _why_no_dialect(snapshot, **details["dialect"])
    if reason:
        raise RefusedError(f"{source.key.path} is not read here: {reason}", at=snapshot, next_step=_READ)
    return replace(source, format=kind, details=details)


def _dialect(snapshot: PaimonSnapshot) -> dict[str, str]:
    return {name: lines.option(snapshot, *named)[:1] for name, named in _CHARACTERS.items()}


def _why_no_dialect(snapshot: PaimonSnapshot, delimiter: str, quote: str, escape: str) -> str | None:
    names, _ = _CHARACTERS["delimiter"]
    if _NEWER in snapshot.properties and not any(each in snapshot.properties for each in names):
        return f"not all releases of Paimon know the option {_NEWER}"
    for name, each in (("delimiter", delimiter), ("quote", quote), ("escape", escape)):
        if not each or each > _LAST_OF_ONE_UNIT:
            return f"{_CHARACTERS[name][0][0]} is no character to Paimon"
    same = delimiter in (quote, escape) or (quote == escape and quote != "\0")
    return "Paimon takes no two of its characters for the same" if same or delimiter == "\0" else None


@lru_cache
def _schema(fields: tuple[Field, ...]) -> str:
    return schema_text(pa.schema(map(_with_digits, fields)))


def _with_digits(field: Field) -> pa.Field:
    """The Arrow field of a column, with DIGITS."""
    type_, arrow = field.type, arrow_field(field)
    if type_.root == "TIMESTAMP":
        return arrow.with_metadata({DIGITS: str(type_.precision)})
    parts = [_with_digits(each) for each in type_.parts]
    match type_.root:
        case "ROW":
            return arrow.with_type(pa.struct(parts))
        case "ARRAY":
            return arrow.with_type(pa.list_(*parts))
        case "MAP":
            return arrow.with_type(pa.map_(parts[0].type, parts[1]))
    return arrow
