"""Ids and sequence numbers of rows (``row-tracking.enabled``).

Format: row tracking of Paimon's documentation. Rows that an INSERT writes get their ids from the manifest: the first id
of the file, plus the position. Their sequence number is the snapshot that wrote them. A row that moves to another file
takes both along, in two columns after those of the table (``SpecialFields`` of Paimon's Java); the manifest then names
all columns of the file, and no first id. In a changed row the sequence number is null: it is the file's greatest one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import pyarrow.compute as pc

from dv_maintenance.files.arrays import flags
from dv_maintenance.tables.paimon.rows.types import DataType, Field
from dv_maintenance.tables.work import RowDefault

if TYPE_CHECKING:
    from dv_maintenance.tables.paimon.features import Options
    from dv_maintenance.tables.paimon.log.schema import Schema
    from dv_maintenance.tables.paimon.snapshot import PaimonSnapshot

_ID: Final = Field(2**31 - 1 - 5, "_ROW_ID", DataType("BIGINT", nullable=False))
_SEQUENCE: Final = Field(2**31 - 1 - 1, "_SEQUENCE_NUMBER", DataType("BIGINT", nullable=False))
LINEAGE: Final = (_ID, _SEQUENCE)

COLUMNS: Final = ["max_sequence"]


def tracks(options: Options) -> bool:
    """Whether rows take both along in columns. With data evolution the manifest has them, of whole files."""
    return options.flag("row-tracking.enabled") and not options.data_evolution


def with_lineage(schema: Schema, options: Options) -> Schema:
    """The columns of files that a rewrite writes."""
    return replace(schema, fields=(*schema.fields, *LINEAGE)) if tracks(options) else schema


def row_defaults(row: Mapping[str, Any], options: Options) -> dict[str, RowDefault]:
    """What stands for null in the two columns of a file. ``row``: of ``snapshot.files``, with COLUMNS, and
    those of ``tasks``.
    """
    if not tracks(options):
        return {}
    first, sequence = row["first_row_id"], row["max_sequence"]
    found = {} if first is None else {_ID.name: RowDefault(first, counts=True)}
    return found if sequence is None else {**found, _SEQUENCE.name: RowDefault(sequence)}


def lacks_ids(snapshot: PaimonSnapshot) -> bool:
    """Whether a file has rows without ids: it is older than row tracking."""
    files = snapshot.files
    stored = pc.fill_null(pc.match_substring(files["write_cols"], f'"{_ID.name}"'), False)
    return bool((~flags(stored) & ~flags(pc.is_valid(files["first_row_id"]))).any())
