"""Files of vectors in formats that hold nothing else here: JSON, Lance and Vortex."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from dv_maintenance.errors import DamagedTableError, RefusedError
from dv_maintenance.files.lines import CODECS
from dv_maintenance.tables.paimon.rows.evolution import suffix_of
from dv_maintenance.tables.paimon.rows.lines import otherwise
from dv_maintenance.tables.paimon.rows.types import Field, arrow_type

if TYPE_CHECKING:
    from dv_maintenance.tables.paimon.log.schema import Schema
    from dv_maintenance.tables.paimon.snapshot import PaimonSnapshot
    from dv_maintenance.tables.work import SourceFile

_JSON: Final = "vectors.json"
_FORMATS: Final[Mapping[str, str]] = {
    ".vector.lance": "vectors.lance",
    ".vector.vortex": "vectors.vortex",
    **{f".vector.json{packed}": _JSON for packed in CODECS},
}


def has_its_own_reader(path: str) -> bool:
    """Whether a file of vectors is in one of these formats."""
    return suffix_of(path.rpartition("/")[2]) in _FORMATS


def as_vectors(snapshot: PaimonSnapshot, source: SourceFile, stored: Schema, fields: Sequence[Field]) -> SourceFile:
    """Such a file, with what it holds of the wanted ``fields``.

    stored : the schema that the file was written with.

    Raises
    ------
    RefusedError : its lines may be no rows. The message has the reason.
    DamagedTableError : a column does not hold vectors.
    """
    path = source.key.path
    known = _FORMATS[suffix_of(path.rpartition("/")[2])]
    if known == _JSON and (name := otherwise(snapshot)) is not None:
        raise RefusedError(
            f"{path} is not read here: its lines may be others than its rows ({name})",
            at=snapshot,
            next_step="read the table with Paimon itself",
        )
    ids = {each.id for each in fields}
    held = [each for each in stored.fields if each.id in ids]
    return replace(source, format=known, details={"vectors": dict(_told(each, path) for each in held)})


def _told(field: Field, path: str) -> tuple[str, Any]:
    if field.type.root != "VECTOR":
        raise DamagedTableError(
            f"{path} holds the column {field.name}, whose values are no vectors",
            next_step="restore an earlier snapshot",
        )
    return field.name, [str(arrow_type(field.type.parts[0].type)), field.type.precision]
